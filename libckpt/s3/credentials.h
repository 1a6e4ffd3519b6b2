/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that sign requests. Memory that has contained keys or tokens is cleared before it is freed. */
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
	char *token;        /* session token, or NULL */
	uint64_t expires_s; /* Unix time; 0: never */
};

/*
 * Copies them; `token` may be NULL. CKPT_EAUTH for keys that cannot sign; the message names `whose` ("the environment")
 * and what is wrong, but contains nothing of the keys. `ret_keys` must be empty.
 */
int ckpt_s3_credentials_set(const char *access, const char *secret, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);
bool ckpt_s3_credentials_same(
	const struct ckpt_s3_credentials *a, const struct ckpt_s3_credentials *b);
void ckpt_s3_credentials_clear(struct ckpt_s3_credentials *keys);

/* Clears and frees a string that contains a secret. NULL is ignored. */
void ckpt_s3_forget(char *text);
/* The same for `size` bytes of any data. */
void ckpt_s3_forget_bytes(void *data, size_t size);

#endif
