/* SPDX-License-Identifier: Apache-2.0 */
/* STS: assumes roles. */
#include "s3/sts.h"

#include <errno.h>
#include <expat.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "s3/date.h"
#include "s3/escape.h"

#define QUOTE 12 /* a token's bytes that do not match by chance */

/* The endpoint. */

static const char *domain(const char *region)
{
	return strncmp(region, "cn-", 3) == 0        ? "amazonaws.com.cn"
	       : strncmp(region, "us-isob-", 8) == 0 ? "sc2s.sgov.gov"
	       : strncmp(region, "us-iso-", 7) == 0  ? "c2s.ic.gov"
						     : "amazonaws.com";
}

int ckpt_s3_sts_place(const struct ckpt_s3_settings *settings, struct ckpt_error *err,
	struct ckpt_s3_sts_place *ret_place)
{
	const struct ckpt_s3_setting *own = &settings->sts_endpoint;
	const char *host = own->value ? strstr(own->value, "://") : NULL;
	size_t length;
	const char *region = settings->region.value;

	if (!host) {
		(void)snprintf(ret_place->host, sizeof(ret_place->host), "sts%s.%s.%s",
			settings->fips ? "-fips" : "", region, domain(region));
		(void)snprintf(
			ret_place->url, sizeof(ret_place->url), "https://%s/", ret_place->host);
		return 0;
	}
	host += strlen("://");
	length = strcspn(host, "/?#");
	if (length >= sizeof(ret_place->host) || (host[length] && strcmp(host + length, "/") != 0))
		return ckpt_fail(err, -EINVAL,
			"the endpoint of STS (from %s) is invalid: it must be a scheme and a "
			"host, with no path",
			own->from);
	memcpy(ret_place->host, host, length);
	ret_place->host[length] = 0;
	(void)snprintf(ret_place->url, sizeof(ret_place->url), "%.*s/",
		(int)(host + length - own->value), own->value);
	return 0;
}

/* The request body. */

static void put(struct ckpt_buf *out, const char *name, const char *value)
{
	if (!value)
		return;
	ckpt_buf_printf(out, "&%s=", name);
	ckpt_s3_escape(out, value, strlen(value));
}

static size_t room_for(const char *text)
{
	return text ? 3 * strlen(text) : 0;
}

char *ckpt_s3_sts_form(const struct ckpt_s3_role *role, const char *session, const char *token)
{
	struct ckpt_buf out = {0};

	/* Allocated at once: a buffer that grows would leave copies of the token. */
	out.cap = 512 + room_for(role->arn) + room_for(role->session ? role->session : session) +
		  room_for(role->external_id) + room_for(token);
	out.data = ckpt_alloc(out.cap);
	if (!out.data)
		return NULL;
	ckpt_buf_printf(&out, "Action=%s&Version=2011-06-15",
		token ? "AssumeRoleWithWebIdentity" : "AssumeRole");
	put(&out, "RoleArn", role->arn);
	put(&out, "RoleSessionName", role->session ? role->session : session);
	if (role->duration_s > 0)
		ckpt_buf_printf(&out, "&DurationSeconds=%u", role->duration_s);
	if (token)
		put(&out, "WebIdentityToken", token);
	else
		put(&out, "ExternalId", role->external_id);
	ckpt_buf_put(&out, "", 1);
	if (!out.failed)
		return out.data;
	ckpt_s3_forget_bytes(out.data, out.cap);
	return NULL;
}

/* The response. */

/* Elements that are used, at any depth. */
enum element { ACCESS, SECRET, TOKEN, EXPIRATION, CODE, MESSAGE, OTHER };

static const char *const elements[] = {
	"AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration", "Code", "Message"};

struct answer {
	XML_Parser parser;
	enum element in;
	size_t length; /* length of the current element's text */
	char access[CKPT_S3_ACCESS_MAX + 2];
	char secret[CKPT_S3_SECRET_MAX + 2];
	char token[CKPT_S3_TOKEN_MAX + 2];
	char expiration[64];
	char code[64];
	char message[512];
};

/* expat keeps copies of its input, so its memory is cleared, too. Each block stores its size. */
struct block {
	size_t size;
	max_align_t data[];
};

static void *block_alloc(size_t size)
{
	struct block *block =
		size < SIZE_MAX - sizeof(*block) ? ckpt_alloc(sizeof(*block) + size) : NULL;

	if (!block)
		return NULL;
	block->size = size;
	return block->data;
}

static void block_free(void *ptr)
{
	struct block *block;

	if (!ptr)
		return;
	block = CKPT_CONTAINER(ptr, struct block, data);
	ckpt_s3_forget_bytes(block, sizeof(*block) + block->size);
}

static void *block_realloc(void *ptr, size_t size)
{
	void *grown = block_alloc(size);

	if (grown && ptr) {
		const struct block *old = CKPT_CONTAINER(ptr, struct block, data);

		memcpy(grown, ptr, old->size < size ? old->size : size);
		block_free(ptr);
	}
	return grown;
}

static char *text_of(struct answer *a, size_t *ret_size)
{
	struct {
		char *text;
		size_t size;
	} texts[] = {{a->access, sizeof(a->access)}, {a->secret, sizeof(a->secret)},
		{a->token, sizeof(a->token)}, {a->expiration, sizeof(a->expiration)},
		{a->code, sizeof(a->code)}, {a->message, sizeof(a->message)}};

	*ret_size = texts[a->in].size;
	return texts[a->in].text;
}

static void XMLCALL on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
	struct answer *a = user;

	(void)attributes;
	a->length = 0;
	for (a->in = ACCESS; a->in < OTHER && strcmp(name, elements[a->in]) != 0;)
		a->in++;
}

static void XMLCALL on_text(void *user, const XML_Char *text, int length)
{
	struct answer *a = user;
	size_t size;
	char *out;
	size_t count = (size_t)length;

	if (a->in == OTHER)
		return;
	out = text_of(a, &size);
	/* A text that is too long is cut to one byte above the limit, and refused later. */
	if (count > size - 1 - a->length)
		count = size - 1 - a->length;
	memcpy(out + a->length, text, count);
	a->length += count;
	out[a->length] = 0;
}

static void XMLCALL on_end(void *user, const XML_Char *name)
{
	struct answer *a = user;

	(void)name;
	a->in = OTHER;
}

/* No server sends a document type, and it can expand a small text to a large one. */
static void XMLCALL on_doctype(void *user, const XML_Char *name, const XML_Char *system,
	const XML_Char *public, int subset)
{
	struct answer *a = user;

	(void)name;
	(void)system;
	(void)public;
	(void)subset;
	(void)XML_StopParser(a->parser, XML_FALSE);
}

static int read_answer(const char *text, size_t length, struct answer *a)
{
	static const XML_Memory_Handling_Suite memory = {block_alloc, block_realloc, block_free};
	enum XML_Status status;
	bool no_memory;

	a->parser = XML_ParserCreate_MM("UTF-8", &memory, NULL);
	if (!a->parser)
		return -ENOMEM;
	a->in = OTHER;
	XML_SetUserData(a->parser, a);
	XML_SetElementHandler(a->parser, on_start, on_end);
	XML_SetCharacterDataHandler(a->parser, on_text);
	XML_SetStartDoctypeDeclHandler(a->parser, on_doctype);
	status = XML_Parse(a->parser, text, (int)length, 1);
	no_memory = status != XML_STATUS_OK && XML_GetErrorCode(a->parser) == XML_ERROR_NO_MEMORY;
	XML_ParserFree(a->parser);
	return status == XML_STATUS_OK ? 0 : no_memory ? -ENOMEM : CKPT_EFORMAT;
}

/* Whether the text contains a part of `token`: after a signature mismatch, STS quotes what should have been signed. */
static bool quotes(const char *text, const char *token)
{
	char piece[QUOTE + 1] = {0};

	for (size_t i = 0; token && strlen(text + i) >= QUOTE; i++) {
		memcpy(piece, text + i, QUOTE);
		if (strstr(token, piece))
			return true;
	}
	return false;
}

/* The error, with STS's message if it may be repeated. */
static int refused(
	int status, struct answer *a, const char *token, const char *whose, struct ckpt_error *err)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.";

	if (a->code[strspn(a->code, letters)] || quotes(a->code, token))
		*a->code = 0;
	a->message[strcspn(a->message, "\r\n")] = 0;
	if (quotes(a->message, token))
		*a->message = 0;
	return ckpt_fail(err, status >= 500 || status == 429 ? CKPT_ENETWORK : CKPT_EAUTH,
		"STS returned no keys for %s: status %d%s%s%s%s", whose, status,
		*a->code ? " " : "", a->code, *a->message ? ": " : "", a->message);
}

static int keys_of(const struct answer *a, const char *whose, struct ckpt_error *err,
	struct ckpt_s3_credentials *ret_keys)
{
	uint64_t expires = 0;
	int r;

	if (!*a->access || !*a->secret || !*a->token)
		return ckpt_fail(err, CKPT_EFORMAT,
			"STS returned no keys for %s: its answer is incomplete", whose);
	if (!ckpt_s3_date_iso(a->expiration, &expires))
		return ckpt_fail(err, CKPT_EFORMAT,
			"STS returned no keys for %s: its answer has no expiry date", whose);
	r = ckpt_s3_credentials_set(a->access, a->secret, a->token, whose, err, ret_keys);
	if (r == 0)
		ret_keys->expires_s = expires;
	return r;
}

int ckpt_s3_sts_reply(int status, const char *text, size_t length, const char *token,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys)
{
	struct answer *a = ckpt_alloc(sizeof(*a));
	int r = a ? read_answer(text ? text : "", text ? length : 0, a) : -ENOMEM;

	*ret_keys = (struct ckpt_s3_credentials){0};
	if (r == -ENOMEM)
		(void)ckpt_fail(err, r, "there is no memory for the keys of %s", whose);
	else if (status != 200)
		r = refused(status, a, token, whose, err);
	else if (r < 0)
		(void)ckpt_fail(err, r,
			"STS returned no keys for %s: its answer is not the expected XML", whose);
	else
		r = keys_of(a, whose, err, ret_keys);
	ckpt_s3_forget_bytes(a, a ? sizeof(*a) : 0);
	return r;
}
