/* SPDX-License-Identifier: Apache-2.0 */
/* The two services that need no keys: of a container (ECS, EKS), and of an EC2 instance (IMDSv2). */
#include "s3/credential_fetch.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/secret.h"
#include "s3/credentials_json.h"

#define INSTANCE           "the instance metadata service"
#define TIMEOUT_MS         2000u
#define CONTAINER_ATTEMPTS 3u
#define INSTANCE_ATTEMPTS  2u
#define TOKEN_MAX          4096u

static int refused(struct ckpt_s3_credential_fetch *fetch, const char *whose, const char *what)
{
	int status = fetch->ask.status;

	return ckpt_fail(&fetch->error, status >= 500 || status == 429 ? CKPT_ENETWORK : CKPT_EAUTH,
		"%s answered %d to the request for %s", whose, status, what);
}

static int take_keys(struct ckpt_s3_credential_fetch *fetch, const char *whose)
{
	const char *text = fetch->ask.reply ? fetch->ask.reply : "";

	return ckpt_s3_credentials_json(text, fetch->ask.reply_length, CKPT_S3_CREDENTIALS_SERVER,
		whose, &fetch->error, &fetch->keys);
}

/* Containers. */

/* Keys and tokens are sent only over TLS, or to this machine or node. */
static bool may_be_asked(const char *url)
{
	static const char *const hosts[] = {
		"localhost", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "[::1]"};
	const char *host;
	size_t length;

	if (strncasecmp(url, "https://", 8) == 0)
		return url[8] && !strchr("/?#:@", url[8]) && !strchr(url, '@');
	if (strncasecmp(url, "http://", 7) != 0)
		return false;
	host = url + 7;
	/* With a '@', this part would be a user name, and the host would follow it. */
	if (host[strcspn(host, "@/?#\\")] == '@')
		return false;
	length = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
	for (size_t i = 0; i < CKPT_COUNT(hosts); i++) {
		if (strlen(hosts[i]) == length && strncasecmp(host, hosts[i], length) == 0)
			return true;
	}
	/* 127.0.0.0/8, but no name that begins with it. */
	return length > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == length;
}

static bool printable(const char *text)
{
	for (; *text; text++) {
		if (*text <= ' ' || *text > '~')
			return false;
	}
	return true;
}

static int container_url(struct ckpt_s3_credential_fetch *fetch)
{
	const char *relative = ckpt_s3_var(fetch->vars, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = ckpt_s3_var(fetch->vars, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
	const char *uri = relative ? relative : full;
	int n = snprintf(fetch->url, sizeof(fetch->url), "%s%s",
		relative ? "http://169.254.170.2" : "", uri);

	if (n < 0 || (size_t)n >= sizeof(fetch->url) || !printable(uri) ||
		(relative && *relative != '/'))
		return ckpt_fail(&fetch->error, CKPT_EAUTH, "%s cannot be used: it is not a %s",
			relative ? "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
				 : "AWS_CONTAINER_CREDENTIALS_FULL_URI",
			relative ? "path that begins with '/'" : "URL");
	if (relative || may_be_asked(fetch->url))
		return 0;
	return ckpt_fail(&fetch->error, CKPT_EAUTH,
		"AWS_CONTAINER_CREDENTIALS_FULL_URI names a host that keys are not requested from "
		"over http: it may be localhost, 127.0.0.1, 169.254.170.2, 169.254.170.23 or "
		"fd00:ec2::23; or use https");
}

int ckpt_s3_credential_fetch_container(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	struct ckpt_s3_ask *ask;
	int r;

	CKPT_TASK_BEGIN(task);
	r = container_url(fetch);
	if (r < 0)
		return r;
	ask = ckpt_s3_credential_fetch_prepare(fetch, fetch->source.from);
	ask->headers[ask->header_count++] = (struct ckpt_http_header){"accept", "application/json"};
	if (fetch->token)
		ask->headers[ask->header_count++] =
			(struct ckpt_http_header){"authorization", fetch->token};
	/* A proxy could read the keys, or would ask the service of its own machine. */
	ask->direct = strncasecmp(fetch->url, "http://", 7) == 0;
	ask->timeout_ms = TIMEOUT_MS;
	ask->attempts = CONTAINER_ATTEMPTS;
	ckpt_s3_credential_fetch_ask(fetch);
	CKPT_AWAIT(task, fetch->ask.done);
	r = ckpt_s3_credential_fetch_answer(fetch);
	if (r == 0 && fetch->ask.status != 200)
		r = refused(fetch, fetch->source.from, "keys");
	if (r == 0)
		r = take_keys(fetch, fetch->source.from);
	return r < 0 ? r : ckpt_task_continue(task, ckpt_s3_credential_fetch_roles);
	CKPT_TASK_END(task);
}

/* The instance. */

static unsigned number(
	const struct ckpt_s3_environ *vars, const char *name, unsigned most, unsigned other)
{
	const char *text = ckpt_s3_var(vars, name);
	char *end = NULL;
	unsigned long value;

	if (!text || !isdigit((unsigned char)*text))
		return other;
	value = strtoul(text, &end, 10);
	return *end == 0 && value >= 1 && value <= most ? (unsigned)value : other;
}

static void begin_instance(struct ckpt_s3_credential_fetch *fetch, const char *path)
{
	const char *mode = ckpt_s3_var(fetch->vars, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
	const char *base = ckpt_s3_var(fetch->vars, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
	size_t length;
	struct ckpt_s3_ask *ask;

	if (!base)
		base = mode && strcasecmp(mode, "ipv6") == 0 ? "http://[fd00:ec2::254]"
							     : "http://169.254.169.254";
	length = strlen(base);
	while (length > 0 && base[length - 1] == '/')
		length--;
	(void)snprintf(fetch->url, sizeof(fetch->url), "%.*s/latest/%s%s", (int)length, base, path,
		fetch->role);
	ask = ckpt_s3_credential_fetch_prepare(fetch, INSTANCE);
	ask->direct = true;
	ask->timeout_ms =
		1000 * number(fetch->vars, "AWS_METADATA_SERVICE_TIMEOUT", 300, TIMEOUT_MS / 1000);
	ask->attempts =
		number(fetch->vars, "AWS_METADATA_SERVICE_NUM_ATTEMPTS", 100, INSTANCE_ATTEMPTS);
	if (fetch->token)
		ask->headers[ask->header_count++] =
			(struct ckpt_http_header){"x-aws-ec2-metadata-token", fetch->token};
}

static int take_session(struct ckpt_s3_credential_fetch *fetch)
{
	const struct ckpt_s3_ask *ask = &fetch->ask;

	if (ask->status != 200)
		return refused(fetch, INSTANCE, "a session (IMDSv2)");
	if (!ask->reply || ask->reply_length > TOKEN_MAX || strlen(ask->reply) != ask->reply_length)
		return ckpt_fail(
			&fetch->error, CKPT_EFORMAT, INSTANCE " returned an invalid token");
	fetch->token = ckpt_secret_strdup(ask->reply);
	if (!fetch->token)
		return ckpt_fail(&fetch->error, -ENOMEM, "there is no memory for a token");
	return ckpt_s3_credential_fetch_check_token(fetch->token, INSTANCE, &fetch->error);
}

static int take_role(struct ckpt_s3_credential_fetch *fetch)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+=,.@_-";
	const char *reply = fetch->ask.reply ? fetch->ask.reply : "";
	size_t length = strcspn(reply, "\r\n");

	if (fetch->ask.status == 404 || (fetch->ask.status == 200 && length == 0))
		return ckpt_fail(&fetch->error, CKPT_EAUTH,
			INSTANCE
			" has no role: this instance was started without an instance profile");
	if (fetch->ask.status != 200)
		return refused(fetch, INSTANCE, "the name of the role");
	if (length >= sizeof(fetch->role) || strspn(reply, letters) != length)
		return ckpt_fail(
			&fetch->error, CKPT_EFORMAT, INSTANCE " returned an invalid role name");
	memcpy(fetch->role, reply, length);
	fetch->role[length] = 0;
	return 0;
}

/* The last source: the message also says why the others had no keys. */
static int with_notes(struct ckpt_s3_credential_fetch *fetch, int r)
{
	struct ckpt_error last = fetch->error;

	if (r == -ENOMEM || r == -ECANCELED || !fetch->source.notes[0])
		return r;
	ckpt_error_clear(&fetch->error);
	return ckpt_fail(&fetch->error, r, "there are no keys for S3: %s. Tried before: %s",
		last.message, fetch->source.notes);
}

static int take_instance_keys(struct ckpt_s3_credential_fetch *fetch)
{
	return fetch->ask.status == 200 ? take_keys(fetch, INSTANCE)
					: refused(fetch, INSTANCE, "keys");
}

/* The requests to the instance service, in order. */
static const struct {
	const char *path; /* followed by the role's name, once that is known */
	int (*take)(struct ckpt_s3_credential_fetch *fetch);
} questions[] = {
	{"api/token", take_session},
	{"meta-data/iam/security-credentials/", take_role},
	{"meta-data/iam/security-credentials/", take_instance_keys},
};

static void ask_instance(struct ckpt_s3_credential_fetch *fetch)
{
	begin_instance(fetch, questions[fetch->question].path);
	if (fetch->question == 0) {
		fetch->ask.method = CKPT_HTTP_PUT;
		fetch->ask.headers[fetch->ask.header_count++] =
			(struct ckpt_http_header){"x-aws-ec2-metadata-token-ttl-seconds", "21600"};
	}
	ckpt_s3_credential_fetch_ask(fetch);
}

int ckpt_s3_credential_fetch_instance(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	int r;

	CKPT_TASK_BEGIN(task);
	fetch->role[0] = 0;
	for (fetch->question = 0; fetch->question < CKPT_COUNT(questions); fetch->question++) {
		ask_instance(fetch);
		CKPT_AWAIT(task, fetch->ask.done);
		r = ckpt_s3_credential_fetch_answer(fetch);
		if (r == 0)
			r = questions[fetch->question].take(fetch);
		if (r < 0)
			return with_notes(fetch, r);
	}
	return ckpt_task_continue(task, ckpt_s3_credential_fetch_roles);
	CKPT_TASK_END(task);
}
