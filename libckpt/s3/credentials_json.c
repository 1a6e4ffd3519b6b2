/* SPDX-License-Identifier: Apache-2.0 */
/* Parses keys in JSON. */
#include "s3/credentials_json.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/secret.h"
#include "s3/date.h"

enum member { ACCESS, SECRET, SESSION_TOKEN, TOKEN, EXPIRATION, VERSION, CODE };

static const char *const members[] = {
	[ACCESS] = "AccessKeyId",
	[SECRET] = "SecretAccessKey",
	[SESSION_TOKEN] = "SessionToken",
	[TOKEN] = "Token",
	[EXPIRATION] = "Expiration",
	[VERSION] = "Version",
	[CODE] = "Code",
	NULL,
};

/* Parsed fields; cleared as a whole. */
struct reading {
	char access[CKPT_S3_ACCESS_MAX +
		    2]; /* one byte more than allowed, so that too long values are found */
	char secret[CKPT_S3_SECRET_MAX + 2];
	char token[CKPT_S3_TOKEN_MAX + 2];
	char other[CKPT_S3_TOKEN_MAX +
		   2]; /* the token under the other kind's name, which is ignored */
	char expiration[64];
	char code[64];
	uint64_t version;
	enum ckpt_s3_credentials_kind kind;
};

/* A string or null; null counts as missing. */
static bool text_or_null(struct ckpt_reader *r, char *out, size_t size)
{
	if (ckpt_reader_peek(r) == 'n')
		return ckpt_reader_scalar(r);
	return ckpt_reader_text(r, out, size, NULL);
}

static bool read_member(struct ckpt_reader *r, int member, struct reading *in)
{
	bool process = in->kind == CKPT_S3_CREDENTIALS_PROCESS;

	switch (member) {
	case ACCESS:
		return text_or_null(r, in->access, sizeof(in->access));
	case SECRET:
		return text_or_null(r, in->secret, sizeof(in->secret));
	case SESSION_TOKEN:
		return text_or_null(r, process ? in->token : in->other, sizeof(in->token));
	case TOKEN:
		return text_or_null(r, process ? in->other : in->token, sizeof(in->token));
	case EXPIRATION:
		return text_or_null(r, in->expiration, sizeof(in->expiration));
	case VERSION:
		if (!process)
			return ckpt_reader_skip(r);
		return ckpt_reader_u64(r, &in->version);
	case CODE:
		if (process)
			return ckpt_reader_skip(r);
		return text_or_null(r, in->code, sizeof(in->code));
	default:
		return ckpt_reader_skip(r);
	}
}

static int read_object(const char *text, size_t length, const char *whose, struct ckpt_error *err,
	struct reading *in)
{
	struct ckpt_reader r;
	uint32_t seen = 0;
	int member;

	ckpt_reader_init(&r, text, length, 0, whose, err);
	(void)ckpt_reader_open(&r, '{');
	while ((member = ckpt_reader_member(&r, members, &seen)) != CKPT_READER_END)
		(void)read_member(&r, member, in);
	return ckpt_reader_finish(&r);
}

static int refuse(struct ckpt_error *err, const char *whose, const char *why)
{
	return ckpt_fail(err, CKPT_EFORMAT, "%s returned no usable keys: %s", whose, why);
}

static int check(const struct reading *in, const char *whose, struct ckpt_error *err)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

	if (in->kind == CKPT_S3_CREDENTIALS_PROCESS && in->version != 1)
		return refuse(err, whose, "\"Version\" is not 1");
	if (*in->code && strcmp(in->code, "Success") != 0)
		return ckpt_fail(err, CKPT_EAUTH, "%s refused to return keys: '%s'", whose,
			in->code[strspn(in->code, letters)] ? "?" : in->code);
	if (!*in->access || !*in->secret)
		return refuse(err, whose, "\"AccessKeyId\" or \"SecretAccessKey\" is missing");
	return 0;
}

int ckpt_s3_credentials_json(const char *text, size_t length, enum ckpt_s3_credentials_kind kind,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys)
{
	struct reading *in = ckpt_secret_alloc(sizeof(*in));
	uint64_t expires = 0;
	int r;

	*ret_keys = (struct ckpt_s3_credentials){0};
	if (!in)
		return ckpt_fail(err, -ENOMEM, "there is no memory for the keys of %s", whose);
	in->kind = kind;
	r = read_object(text, length, whose, err, in);
	if (r == 0)
		r = check(in, whose, err);
	if (r == 0 && *in->expiration && !ckpt_s3_date_iso(in->expiration, &expires))
		r = refuse(err, whose, "\"Expiration\" is not a date");
	if (r == 0)
		r = ckpt_s3_credentials_set(
			in->access, in->secret, in->token, whose, err, ret_keys);
	if (r == 0)
		ret_keys->expires_s = expires;
	ckpt_secret_free(in);
	return r;
}
