/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches keys as the settings say. */
#include "s3/credential_fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"
#include "s3/credentials_json.h"
#include "s3/credential_process.h"
#include "s3/file_read.h"

#define TOKEN_FILE_MAX 20480u

/* On a worker. */

int ckpt_s3_credential_fetch_check_token(char *token, const char *whose, struct ckpt_error *err)
{
	size_t length = strlen(token);

	while (length > 0 && strchr(" \t\r\n", token[length - 1]))
		token[--length] = 0;
	if (length == 0)
		return ckpt_fail(err, CKPT_EAUTH, "the token of %s is empty", whose);
	for (size_t i = 0; i < length; i++) {
		if (token[i] < ' ' || token[i] > '~')
			return ckpt_fail(err, CKPT_EAUTH,
				"the token of %s contains a line break or a character that is not "
				"printable",
				whose);
	}
	return 0;
}

/* Read again each time, because the file is replaced before the token expires. */
static int read_token(struct ckpt_s3_credential_fetch *fetch, const char *file, const char *whose,
	struct ckpt_error *err)
{
	char *path = NULL;
	size_t length = 0;
	int r = ckpt_s3_environ_path(fetch->vars, file, &path);

	if (r == 0)
		r = ckpt_s3_textfile_read(path, TOKEN_FILE_MAX, &fetch->token, &length);
	ckpt_free(path);
	if (r < 0)
		return ckpt_fail(err, r, "the token of %s cannot be read from %s: %s", whose, file,
			ckpt_code_text(r));
	if (memchr(fetch->token, 0, length)) {
		ckpt_secret_free(fetch->token);
		fetch->token = NULL;
		return ckpt_fail(err, CKPT_EAUTH, "the token of %s in %s is not text", whose, file);
	}
	return ckpt_s3_credential_fetch_check_token(fetch->token, whose, err);
}

static int run_process(struct ckpt_s3_credential_fetch *fetch, struct ckpt_error *err)
{
	struct ckpt_s3_process process = {.command = fetch->source.command,
		.whose = fetch->whose,
		.environment = fetch->vars->lines,
		.path = ckpt_s3_var(fetch->vars, "PATH"),
		.timeout_ms = fetch->process_ms,
		.stop_fd = fetch->stop_fd};
	char *output;
	size_t length;
	int r;

	(void)snprintf(fetch->whose, sizeof(fetch->whose), "the credential_process of %s",
		fetch->source.from);
	r = ckpt_s3_process_run(&process, err, &output, &length);
	if (r < 0)
		return r;
	r = ckpt_s3_credentials_json(
		output, length, CKPT_S3_CREDENTIALS_PROCESS, fetch->whose, err, &fetch->keys);
	ckpt_secret_free(output);
	return r;
}

static int container_token(struct ckpt_s3_credential_fetch *fetch, struct ckpt_error *err)
{
	const char *file = ckpt_s3_var(fetch->vars, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = ckpt_s3_var(fetch->vars, "AWS_CONTAINER_AUTHORIZATION_TOKEN");

	if (file)
		return read_token(fetch, file, fetch->source.from, err);
	if (!token)
		return 0;
	fetch->token = ckpt_secret_strdup(token);
	if (!fetch->token)
		return ckpt_fail(err, -ENOMEM, "there is no memory for a token");
	return ckpt_s3_credential_fetch_check_token(fetch->token, fetch->source.from, err);
}

static int look(struct ckpt_s3_credential_fetch *fetch, struct ckpt_error *err)
{
	struct ckpt_s3_profiles profiles;
	int r = ckpt_s3_profiles_read(fetch->vars, err, &profiles);

	if (r < 0)
		return r;
	r = ckpt_s3_credential_chain_find(
		fetch->vars, fetch->settings, &profiles, err, &fetch->source);
	ckpt_s3_profiles_clear(&profiles);
	if (r < 0)
		return r;
	switch (fetch->source.kind) {
	case CKPT_S3_CREDENTIAL_CHAIN_PROCESS:
		return run_process(fetch, err);
	case CKPT_S3_CREDENTIAL_CHAIN_WEB:
		return read_token(fetch, fetch->source.token_file, fetch->source.from, err);
	case CKPT_S3_CREDENTIAL_CHAIN_CONTAINER:
		return container_token(fetch, err);
	case CKPT_S3_CREDENTIAL_CHAIN_STATIC:
		fetch->keys = fetch->source.keys;
		explicit_bzero(&fetch->source.keys, sizeof(fetch->source.keys));
		return 0;
	case CKPT_S3_CREDENTIAL_CHAIN_NOBODY:
	case CKPT_S3_CREDENTIAL_CHAIN_INSTANCE:
		break;
	}
	return 0;
}

static void look_work(struct ckpt_job *job)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(job, struct ckpt_s3_credential_fetch, job.job);

	fetch->job.result = look(fetch, &fetch->job.error);
}

/* On the core's thread. */

struct ckpt_s3_ask *ckpt_s3_credential_fetch_prepare(
	struct ckpt_s3_credential_fetch *fetch, const char *whose)
{
	ckpt_s3_ask_clear(&fetch->ask);
	fetch->ask.method = CKPT_HTTP_GET;
	fetch->ask.url = fetch->url;
	fetch->ask.whose = whose;
	return &fetch->ask;
}

void ckpt_s3_credential_fetch_ask(struct ckpt_s3_credential_fetch *fetch)
{
	ckpt_s3_ask_start(&fetch->ask, &fetch->with, &fetch->task);
	if (fetch->stopped)
		ckpt_s3_ask_stop(&fetch->ask);
}

int ckpt_s3_credential_fetch_answer(struct ckpt_s3_credential_fetch *fetch)
{
	if (fetch->ask.result < 0)
		fetch->error = fetch->ask.error;
	return fetch->ask.result;
}

static int fetch_body(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_task_job_start(&fetch->job, fetch->with.env, task, look_work);
	CKPT_AWAIT(task, fetch->job.done);
	r = ckpt_task_job_take(&fetch->job, &fetch->error);
	if (r < 0)
		return r;
	if (fetch->stopped)
		return ckpt_fail(&fetch->error, -ECANCELED, "waiting for keys was cancelled");
	if (fetch->source.kind == CKPT_S3_CREDENTIAL_CHAIN_CONTAINER)
		return ckpt_task_continue(task, ckpt_s3_credential_fetch_container);
	if (fetch->source.kind == CKPT_S3_CREDENTIAL_CHAIN_INSTANCE)
		return ckpt_task_continue(task, ckpt_s3_credential_fetch_instance);
	if (fetch->source.kind == CKPT_S3_CREDENTIAL_CHAIN_WEB)
		return ckpt_task_continue(task, ckpt_s3_credential_fetch_web);
	return ckpt_task_continue(task, ckpt_s3_credential_fetch_roles);
	CKPT_TASK_END(task);
}

int ckpt_s3_credential_fetch_start(
	struct ckpt_s3_credential_fetch *fetch, void (*done)(struct ckpt_task *task))
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	ckpt_s3_credential_fetch_clear(fetch);
	fetch->stop_fd = fd;
	ckpt_error_clear(&fetch->error);
	ckpt_task_start(&fetch->task, fetch->with.sched, fetch_body, done);
	return 0;
}

void ckpt_s3_credential_fetch_stop(struct ckpt_s3_credential_fetch *fetch)
{
	if (!ckpt_task_active(&fetch->task))
		return;
	fetch->stopped = true;
	(void)eventfd_write(fetch->stop_fd, 1);
	ckpt_s3_ask_stop(&fetch->ask);
}

void ckpt_s3_credential_fetch_clear(struct ckpt_s3_credential_fetch *fetch)
{
	CKPT_ASSERT(!ckpt_task_active(&fetch->task));
	if (fetch->stop_fd >= 0)
		(void)close(fetch->stop_fd);
	fetch->stop_fd = -1;
	fetch->stopped = false;
	fetch->assumed = 0;
	ckpt_s3_ask_clear(&fetch->ask);
	ckpt_s3_credential_chain_clear(&fetch->source);
	ckpt_s3_credentials_clear(&fetch->keys);
	ckpt_secret_free(fetch->token);
	ckpt_s3_forget(fetch->form);
	ckpt_s3_signed_clear(&fetch->signature);
	ckpt_free(fetch->session);
	fetch->token = NULL;
	fetch->form = NULL;
	fetch->session = NULL;
}
