/* SPDX-License-Identifier: Apache-2.0 */
/* What is said to STS, and what it answers: pure functions. */
#ifndef CKPT_S3_STS_H
#define CKPT_S3_STS_H

#include "s3/credential_chain.h"
#include "s3/credentials.h"
#include "s3/settings.h"

#define CKPT_S3_STS_HOST_MAX 256

/* Where it is: the URL, and from `host` on what is signed as the header host. Path is "/" always. */
struct ckpt_s3_sts_place {
	char url[CKPT_S3_STS_HOST_MAX + 16];
	char host[CKPT_S3_STS_HOST_MAX];
};
int ckpt_s3_sts_place(const struct ckpt_s3_settings *settings, struct ckpt_error *err,
	struct ckpt_s3_sts_place *ret_place);

/*
 * The form to post: AssumeRoleWithWebIdentity with `token`, AssumeRole without. `session` is the name that the
 * role gets where it has none. Allocated; cleared by ckpt_s3_forget(). NULL: there is no memory.
 */
char *ckpt_s3_sts_form(const struct ckpt_s3_role *role, const char *session, const char *token);

/*
 * The keys in an answer of status 200; what another one says goes into words, unless it quotes `token` (may be
 * NULL). CKPT_EAUTH, CKPT_ENETWORK or CKPT_EFORMAT. `ret_keys` is clear before.
 */
int ckpt_s3_sts_reply(int status, const char *text, size_t length, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);

#endif
