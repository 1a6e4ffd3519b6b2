/* SPDX-License-Identifier: Apache-2.0 */
#include "key_rig.h"

#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/scratch.h"

static uint64_t now(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct key_rig, env)->now_ns;
}

static uint64_t wall(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct key_rig, env)->wall_s * 1000;
}

static uint64_t draw(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct key_rig, env)->random;
}

static void take_job(struct ckpt_env *env, struct ckpt_job *job)
{
	struct key_rig *rig = CKPT_CONTAINER(env, struct key_rig, env);

	assert_null(rig->job);
	rig->job = job;
}

static void submit(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct key_rig *rig = CKPT_CONTAINER(http, struct key_rig, http);
	static const char *const methods[] = {"", "GET", "HEAD", "PUT", "POST", "DELETE"};
	size_t length = strlen(rig->urls);

	/* One at a time. */
	assert_null(rig->req);
	rig->req = req;
	(void)snprintf(rig->urls + length, sizeof(rig->urls) - length, "%s %s\n",
		methods[req->method], req->url);
}

static void cancel(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct key_rig *rig = CKPT_CONTAINER(http, struct key_rig, http);

	assert_ptr_equal(rig->req, req);
	req->result = -ECANCELED;
	rig->hold = false;
}

static const struct ckpt_env_ops env_ops = {
	.name = "rig", .now_ns = now, .wall_ms = wall, .random = draw, .run = take_job};
static const struct ckpt_http_ops http_ops = {.name = "rig", .submit = submit, .cancel = cancel};

void key_rig_make(struct key_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	rig->dir = scratch_make();
	(void)snprintf(rig->home, sizeof(rig->home), "HOME=%s", rig->dir);
	rig->lines[0] = rig->home;
	rig->env.ops = &env_ops;
	rig->http.ops = &http_ops;
	rig->http.connections = 1;
	rig->wall_s = KEY_RIG_WALL;
	rig->now_ns = 1;
	ckpt_error_clear(&rig->err);
	assert_int_equal(ckpt_log_open(CKPT_LOG_DEBUG, &rig->log), 0);
}

void key_rig_put(struct key_rig *rig, const char *name, const char *text)
{
	const char *path = scratch_join(rig->dir, name);
	FILE *f;

	if (strncmp(name, ".aws/", 5) == 0)
		(void)mkdir(scratch_join(rig->dir, ".aws"), 0777);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

void key_rig_set(struct key_rig *rig, const char *line)
{
	size_t at = 0;

	while (rig->lines[at])
		at++;
	assert_true(at < KEY_RIG_LINES);
	rig->lines[at] = line;
}

int key_rig_open(struct key_rig *rig)
{
	struct ckpt_s3_credential_cache_config config = {
		.with = {&rig->env, &rig->sched, &rig->timers, &rig->http},
		.vars = &rig->vars,
		.settings = &rig->settings,
		.log = rig->log,
		.process_ms = rig->process_ms};
	int r = ckpt_s3_environ_take(rig->lines, &rig->err, &rig->vars);

	if (r == 0)
		r = ckpt_s3_settings_resolve(&rig->options, &rig->vars, &rig->err, &rig->settings);
	return r < 0 ? r : ckpt_s3_credential_cache_open(&config, &rig->credentials);
}

static void answer(struct key_rig *rig)
{
	struct ckpt_http_req *req = rig->req;
	struct key_answer a = {.result = -ETIMEDOUT};

	rig->req = NULL;
	rig->asked++;
	if (req->result == 0 && rig->answer)
		a = rig->answer(rig, req, rig->asked);
	if (req->result == 0)
		req->result = a.result;
	req->status = a.status;
	if (a.text && req->result == 0) {
		req->reply = ckpt_strdup(a.text);
		req->reply_length = req->reply ? strlen(a.text) : 0;
		if (!req->reply)
			req->result = -ENOMEM;
	}
	req->node.run(&req->node);
}

void key_rig_run(struct key_rig *rig)
{
	struct ckpt_timer *timer;
	uint64_t next;

	for (;;) {
		ckpt_sched_run(&rig->sched);
		timer = ckpt_timer_due(&rig->timers, rig->now_ns, &next);
		if (rig->job) {
			struct ckpt_job *job = rig->job;

			rig->job = NULL;
			job->work(job);
			job->node.run(&job->node);
		} else if (rig->req && !rig->hold) {
			answer(rig);
		} else if (timer) {
			ckpt_timer_clear(&rig->timers, timer);
			timer->fire(timer);
		} else {
			return;
		}
	}
}

void key_rig_sleep(struct key_rig *rig, uint64_t s)
{
	rig->now_ns += s * UINT64_C(1000000000);
	rig->wall_s += s;
	key_rig_run(rig);
}

struct waiter {
	struct ckpt_task task;
	struct ckpt_s3_want want;
	struct key_rig *rig;
};

static int want_body(struct ckpt_task *task)
{
	struct waiter *w = CKPT_CONTAINER(task, struct waiter, task);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_credential_cache_want(w->rig->credentials, &w->want, task);
	CKPT_AWAIT(task, w->want.done);
	return w->want.result;
	CKPT_TASK_END(task);
}

int key_rig_want(struct key_rig *rig)
{
	struct waiter w = {.rig = rig};

	ckpt_error_clear(&rig->err);
	ckpt_task_start(&w.task, &rig->sched, want_body, NULL);
	key_rig_run(rig);
	for (int i = 0; i < 60 && !w.task.finished; i++)
		key_rig_sleep(rig, 1);
	assert_true(w.task.finished);
	if (w.task.result < 0)
		rig->err = *ckpt_s3_credential_cache_error(rig->credentials);
	return w.task.result;
}

const char *key_rig_header(const struct ckpt_http_req *req, const char *name)
{
	for (size_t i = 0; i < req->header_count; i++) {
		if (strcasecmp(req->headers[i].name, name) == 0)
			return req->headers[i].value;
	}
	return NULL;
}

void key_rig_close(struct key_rig *rig, const char *canary)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	if (rig->credentials) {
		ckpt_s3_credential_cache_stop(rig->credentials);
		key_rig_run(rig);
		assert_true(ckpt_s3_credential_cache_idle(rig->credentials, NULL));
	}
	ckpt_s3_credential_cache_close(rig->credentials);
	ckpt_s3_settings_clear(&rig->settings);
	ckpt_s3_environ_clear(&rig->vars);
	assert_null(rig->timers.first);
	while (ckpt_log_next(rig->log, 0, &record) == 0 && canary)
		assert_null(strstr(record.message, canary));
	ckpt_log_close(rig->log);
	scratch_remove(rig->dir);
}
