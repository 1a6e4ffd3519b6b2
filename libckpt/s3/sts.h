/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to STS and its responses. Pure. */
#ifndef CKPT_S3_STS_H
#define CKPT_S3_STS_H

#include "s3/credential_chain.h"
#include "s3/credentials.h"
#include "s3/settings.h"

#define CKPT_S3_STS_HOST_MAX 256

/* The endpoint: the URL, and within it `host` for the Host header. The path is always "/". */
struct ckpt_s3_sts_place {
	char url[CKPT_S3_STS_HOST_MAX + 16];
	char host[CKPT_S3_STS_HOST_MAX];
};
int ckpt_s3_sts_place(const struct ckpt_s3_settings *settings, struct ckpt_error *err,
	struct ckpt_s3_sts_place *ret_place);

/*
 * The body to post: AssumeRoleWithWebIdentity if there is a `token`, else AssumeRole. `session` is used if the role has
 * no session name. Allocated; free it with ckpt_s3_forget(). NULL: out of memory.
 */
char *ckpt_s3_sts_form(const struct ckpt_s3_role *role, const char *session, const char *token);

/*
 * The keys in a response of status 200; else an error with STS's message, unless that quotes `token` (may be NULL).
 * CKPT_EAUTH, CKPT_ENETWORK or CKPT_EFORMAT. `ret_keys` must be empty.
 */
int ckpt_s3_sts_reply(int status, const char *text, size_t length, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);

#endif
