/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that requests are signed with. What held them, or a token, is cleared before it is freed. */
#ifndef CKPT_S3_CREDENTIALS_H
#define CKPT_S3_CREDENTIALS_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_ACCESS_MAX 128u
#define CKPT_S3_SECRET_MAX 255u
#define CKPT_S3_TOKEN_MAX  16384u

/* Zero: none. */
struct ckpt_s3_credentials {
	char access[CKPT_S3_ACCESS_MAX + 1];
	char secret[CKPT_S3_SECRET_MAX + 1];
	char *token;        /* of a session; or NULL */
	uint64_t expires_s; /* Unix time; 0: never */
};

/*
 * Copies them; `token` may be NULL. Keys that no request could be signed with are CKPT_EAUTH, in words that
 * say what is wrong with what `whose` gives ("the environment") and nothing of them. `ret_keys` is clear before.
 */
int ckpt_s3_credentials_set(const char *access, const char *secret, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);
bool ckpt_s3_credentials_same(
	const struct ckpt_s3_credentials *a, const struct ckpt_s3_credentials *b);
void ckpt_s3_credentials_clear(struct ckpt_s3_credentials *keys);

/* For any text that holds a secret: clears all of it up to its NUL, and frees it. NULL is ignored. */
void ckpt_s3_forget(char *text);
/* The same for so many bytes of whatever. */
void ckpt_s3_forget_bytes(void *data, size_t size);

#endif
