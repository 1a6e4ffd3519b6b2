/* SPDX-License-Identifier: Apache-2.0 */
/* Roles: of a web identity, which needs no keys, and those assumed with the previous keys. */
#include "s3/credential_fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "s3/sign.h"

#define TIMEOUT_MS 5000u
#define ATTEMPTS   3u

/* The session name of a role without one, shown in AWS's logs. */
static int name_session(struct ckpt_s3_credential_fetch *fetch)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "libckpt-%llu",
		(unsigned long long)(ckpt_env_wall_ms(fetch->with.env) / 1000));
	if (!fetch->session)
		fetch->session = ckpt_strdup(name);
	return fetch->session ? 0 : -ENOMEM;
}

static int prepare(
	struct ckpt_s3_credential_fetch *fetch, const struct ckpt_s3_role *role, const char *token)
{
	struct ckpt_s3_ask *ask;
	int r = ckpt_s3_sts_place(fetch->settings, &fetch->error, &fetch->sts);

	if (r < 0)
		return r;
	ckpt_s3_forget(fetch->form);
	fetch->form =
		name_session(fetch) < 0 ? NULL : ckpt_s3_sts_form(role, fetch->session, token);
	if (!fetch->form)
		return ckpt_fail(&fetch->error, -ENOMEM, "there is no memory to ask STS");
	(void)snprintf(fetch->whose, sizeof(fetch->whose), "the role %s of %s", role->arn,
		fetch->source.from);
	ask = ckpt_s3_credential_fetch_prepare(fetch, "STS");
	ask->method = CKPT_HTTP_POST;
	ask->url = fetch->sts.url;
	ask->body = fetch->form;
	ask->timeout_ms = TIMEOUT_MS;
	ask->attempts = ATTEMPTS;
	ask->headers[ask->header_count++] = (struct ckpt_http_header){
		"content-type", "application/x-www-form-urlencoded; charset=utf-8"};
	return 0;
}

/* Replaces the keys by those from STS. */
static int take(struct ckpt_s3_credential_fetch *fetch, const char *token)
{
	struct ckpt_s3_credentials keys;
	int r = ckpt_s3_credential_fetch_answer(fetch);

	if (r == 0)
		r = ckpt_s3_sts_reply(fetch->ask.status, fetch->ask.reply, fetch->ask.reply_length,
			token, fetch->whose, &fetch->error, &keys);
	if (r < 0)
		return r;
	ckpt_s3_credentials_clear(&fetch->keys);
	fetch->keys = keys;
	explicit_bzero(&keys, sizeof(keys));
	return 0;
}

int ckpt_s3_credential_fetch_web(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = prepare(fetch, &fetch->source.web, fetch->token);
	if (r < 0)
		return r;
	ckpt_s3_credential_fetch_ask(fetch);
	CKPT_AWAIT(task, fetch->ask.done);
	r = take(fetch, fetch->token);
	return r < 0 ? r : ckpt_task_continue(task, ckpt_s3_credential_fetch_roles);
	CKPT_TASK_END(task);
}

/* Signs a request to STS. The headers are those of fetch->signature. */
static int sign(struct ckpt_s3_credential_fetch *fetch)
{
	struct ckpt_s3_signing_key key = {0};
	char hash[CKPT_S3_SHA256_HEX];
	uint8_t bytes[CKPT_S3_SHA256] = {0};
	struct ckpt_s3_ask *ask = &fetch->ask;
	struct ckpt_s3_signing signing = {.method = "POST",
		.host = fetch->sts.host,
		.path = "/",
		.query = "",
		.headers = ask->headers,
		.header_count = ask->header_count,
		.payload = hash,
		.region = fetch->settings->region.value,
		.service = "sts",
		.time_s =
			ckpt_env_wall_ms(fetch->with.env) / 1000 + (uint64_t)fetch->clock_offset_s,
		.access = fetch->keys.access,
		.secret = fetch->keys.secret,
		.token = fetch->keys.token};
	int r = ckpt_s3_sha256(fetch->form, strlen(fetch->form), bytes);

	ckpt_s3_hex(bytes, sizeof(bytes), hash);
	if (r == 0)
		r = ckpt_s3_sign(&key, &signing, &fetch->signature);
	ckpt_s3_signing_key_clear(&key);
	if (r < 0)
		return ckpt_fail(&fetch->error, r, "the request for %s cannot be signed: %s",
			fetch->whose, ckpt_code_text(r));
	for (size_t i = 0; i < fetch->signature.count; i++)
		ask->headers[ask->header_count++] = fetch->signature.headers[i];
	return 0;
}

int ckpt_s3_credential_fetch_roles(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (fetch->assumed = 0; fetch->assumed < fetch->source.role_count; fetch->assumed++) {
		r = prepare(fetch, &fetch->source.roles[fetch->assumed], NULL);
		if (r == 0)
			r = sign(fetch);
		if (r < 0)
			return r;
		ckpt_s3_credential_fetch_ask(fetch);
		CKPT_AWAIT(task, fetch->ask.done);
		r = take(fetch, fetch->keys.token);
		ckpt_s3_signed_clear(&fetch->signature);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}
