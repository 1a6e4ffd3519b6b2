/* SPDX-License-Identifier: Apache-2.0 */
/* Checks, copies and clears keys. */
#include "s3/credentials.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/secret.h"

/* Why it cannot sign requests; NULL: it can. */
static const char *fault(const char *text, size_t max)
{
	size_t length = strlen(text);

	if (length == 0)
		return "is empty";
	if (length > max)
		return "is too long";
	for (size_t i = 0; i < length; i++) {
		if (text[i] == '\n' || text[i] == '\r')
			return "contains a line break: it may have been copied with it";
		if (text[i] <= ' ' || text[i] > '~')
			return "holds a character that none has: was it copied with a blank, or "
			       "quotes?";
	}
	return NULL;
}

/* It is put into a header and a scope unescaped, so it must not contain their separators. */
static const char *access_fault(const char *text)
{
	const char *why = fault(text, CKPT_S3_ACCESS_MAX);

	return !why && strpbrk(text, "/,") ? "contains a '/' or ',', which is not valid" : why;
}

int ckpt_s3_credentials_set(const char *access, const char *secret, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys)
{
	static const char words[] = "the keys of %s cannot be used: the %s %s";
	const char *why;

	*ret_keys = (struct ckpt_s3_credentials){0};
	if ((why = access_fault(access)))
		return ckpt_fail(err, CKPT_EAUTH, words, whose, "access key id", why);
	if ((why = fault(secret, CKPT_S3_SECRET_MAX)))
		return ckpt_fail(err, CKPT_EAUTH, words, whose, "secret access key", why);
	if (token && *token && (why = fault(token, CKPT_S3_TOKEN_MAX)))
		return ckpt_fail(err, CKPT_EAUTH, words, whose, "session token", why);
	if (token && *token) {
		ret_keys->token = ckpt_secret_strdup(token);
		if (!ret_keys->token)
			return ckpt_fail(
				err, -ENOMEM, "there is no memory for the keys of %s", whose);
	}
	memcpy(ret_keys->access, access, strlen(access) + 1);
	memcpy(ret_keys->secret, secret, strlen(secret) + 1);
	return 0;
}

bool ckpt_s3_credentials_same(
	const struct ckpt_s3_credentials *a, const struct ckpt_s3_credentials *b)
{
	if (strcmp(a->access, b->access) != 0 || strcmp(a->secret, b->secret) != 0)
		return false;
	return a->token && b->token ? strcmp(a->token, b->token) == 0 : a->token == b->token;
}

void ckpt_s3_credentials_clear(struct ckpt_s3_credentials *keys)
{
	ckpt_secret_free(keys->token);
	explicit_bzero(keys, sizeof(*keys));
}

void ckpt_s3_forget(char *text)
{
	if (text)
		ckpt_s3_forget_bytes(text, strlen(text));
}

void ckpt_s3_forget_bytes(void *data, size_t size)
{
	if (data)
		explicit_bzero(data, size);
	ckpt_free(data);
}
