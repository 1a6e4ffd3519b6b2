/* SPDX-License-Identifier: Apache-2.0 */
/* AWS Signature Version 4. */
#include "s3/sign.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/secret.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define SCOPE_END "aws4_request"
#define DAY       8 /* characters */

/* Allocated by ckpt_secret_alloc(). */
struct ckpt_s3_day_key {
	char secret[CKPT_S3_SECRET_SIZE];
	char day[DAY + 1];
	char region[CKPT_S3_REGION_MAX + 1];
	char service[CKPT_S3_SERVICE_SIZE];
	uint8_t key[CKPT_S3_SHA256];
};

void ckpt_s3_signing_key_clear(struct ckpt_s3_signing_key *key)
{
	ckpt_secret_free(key->made);
	key->made = NULL;
}

static bool key_fits(
	const struct ckpt_s3_day_key *key, const struct ckpt_s3_signing *signing, const char *day)
{
	return strcmp(key->day, day) == 0 && strcmp(key->secret, signing->secret) == 0 &&
	       strcmp(key->region, signing->region) == 0 &&
	       strcmp(key->service, signing->service) == 0;
}

static int make_key(
	struct ckpt_s3_day_key *key, const struct ckpt_s3_signing *signing, const char *day)
{
	char first[4 + CKPT_S3_SECRET_SIZE];
	uint8_t mac[CKPT_S3_SHA256];
	const char *const then[] = {signing->region, signing->service, SCOPE_END};
	int length;
	int r;

	CKPT_ASSERT(strlen(signing->secret) < sizeof(key->secret));
	CKPT_ASSERT(strlen(signing->region) < sizeof(key->region));
	CKPT_ASSERT(strlen(signing->service) < sizeof(key->service));
	explicit_bzero(key, sizeof(*key));
	length = snprintf(first, sizeof(first), "AWS4%s", signing->secret);
	r = ckpt_s3_hmac(first, (size_t)length, day, DAY, mac);
	for (size_t i = 0; r == 0 && i < CKPT_COUNT(then); i++) {
		uint8_t next[CKPT_S3_SHA256];

		r = ckpt_s3_hmac(mac, sizeof(mac), then[i], strlen(then[i]), next);
		memcpy(mac, next, sizeof(mac));
		explicit_bzero(next, sizeof(next));
	}
	if (r == 0) {
		memcpy(key->key, mac, sizeof(mac));
		memcpy(key->secret, signing->secret, strlen(signing->secret) + 1);
		memcpy(key->day, day, DAY + 1);
		memcpy(key->region, signing->region, strlen(signing->region) + 1);
		memcpy(key->service, signing->service, strlen(signing->service) + 1);
	}
	explicit_bzero(first, sizeof(first));
	explicit_bzero(mac, sizeof(mac));
	return r;
}

static void add(struct ckpt_s3_signed *out, const char *name, const char *value)
{
	out->headers[out->count++] = (struct ckpt_http_header){name, value};
}

/* The request's headers and the generated ones, except authorization. */
static int canonical_headers(const struct ckpt_s3_signing *signing,
	const struct ckpt_s3_signed *made, struct ckpt_buf *out, struct ckpt_buf *names)
{
	struct ckpt_http_header all[CKPT_S3_HEADERS_MAX];
	size_t count = 0;

	if (signing->header_count > CKPT_COUNT(all) - 1 - made->count)
		return -E2BIG;
	all[count++] = (struct ckpt_http_header){"host", signing->host};
	for (size_t i = 0; i < made->count; i++)
		all[count++] = made->headers[i];
	for (size_t i = 0; i < signing->header_count; i++)
		all[count++] = signing->headers[i];
	return ckpt_s3_canonical_headers(all, count, out, names);
}

/* An upper bound of the canonical request: a buffer that grows would leave copies of the token. */
static size_t room(const struct ckpt_s3_signing *signing, const struct ckpt_s3_signed *made)
{
	size_t size = 1024 + strlen(signing->method) + strlen(signing->path) +
		      3 * strlen(signing->query) + strlen(signing->host) +
		      strlen(signing->payload) + CKPT_S3_PARAMETERS_MAX;

	for (size_t i = 0; i < made->count; i++)
		size += 2 * strlen(made->headers[i].name) + strlen(made->headers[i].value) + 4;
	for (size_t i = 0; i < signing->header_count; i++)
		size += 2 * strlen(signing->headers[i].name) + strlen(signing->headers[i].value) +
			4;
	return size;
}

/* The SHA-256 of the canonical request. */
static int hash_request(const struct ckpt_s3_signing *signing, const struct ckpt_s3_signed *made,
	struct ckpt_buf *names, char ret_hex[CKPT_S3_SHA256_HEX])
{
	struct ckpt_buf text = {0};
	uint8_t hash[CKPT_S3_SHA256];
	size_t size = room(signing, made);
	int r;

	ckpt_buf_fill(&text, 0, size);
	text.len = 0;
	ckpt_buf_printf(&text, "%s\n%s\n", signing->method, signing->path);
	r = ckpt_s3_canonical_query(signing->query, &text);
	ckpt_buf_puts(&text, "\n");
	if (r == 0)
		r = canonical_headers(signing, made, &text, names);
	ckpt_buf_puts(&text, "\n");
	ckpt_buf_put(&text, names->data, names->len);
	ckpt_buf_printf(&text, "\n%s", signing->payload);
	if (r == 0)
		r = text.failed ? -ENOMEM : ckpt_s3_sha256(text.data, text.len, hash);
	if (r == 0)
		ckpt_s3_hex(hash, sizeof(hash), ret_hex);
	CKPT_ASSERT(text.len < size);
	if (text.data)
		explicit_bzero(text.data, text.cap);
	ckpt_buf_free(&text);
	return r;
}

/* The authorization header with the signature. */
static int authorize(const struct ckpt_s3_day_key *key, const struct ckpt_s3_signing *signing,
	const char *request, const struct ckpt_buf *names, struct ckpt_s3_signed *out)
{
	struct ckpt_buf text = {0};
	uint8_t mac[CKPT_S3_SHA256];
	char hex[CKPT_S3_SHA256_HEX];
	int r;

	ckpt_buf_printf(&text, ALGORITHM "\n%s\n%s/%s/%s/" SCOPE_END "\n%s", out->date, key->day,
		key->region, key->service, request);
	r = text.failed ? -ENOMEM
			: ckpt_s3_hmac(key->key, sizeof(key->key), text.data, text.len, mac);
	if (r == 0) {
		ckpt_s3_hex(mac, sizeof(mac), hex);
		text.len = 0;
		ckpt_buf_printf(&text,
			ALGORITHM " Credential=%s/%s/%s/%s/" SCOPE_END
				  ", SignedHeaders=%.*s, Signature=%s",
			signing->access, key->day, key->region, key->service, (int)names->len,
			names->data, hex);
		r = text.failed ? -ENOMEM : 0;
	}
	if (r == 0) {
		out->authorization = text.data;
		return 0;
	}
	ckpt_buf_free(&text);
	return r;
}

int ckpt_s3_sign(struct ckpt_s3_signing_key *key, const struct ckpt_s3_signing *signing,
	struct ckpt_s3_signed *ret_signed)
{
	struct ckpt_s3_signed *out = ret_signed;
	struct ckpt_buf names = {0};
	char request[CKPT_S3_SHA256_HEX];
	char day[DAY + 1];
	int r = 0;

	CKPT_ASSERT(signing->path[0] == '/');
	*out = (struct ckpt_s3_signed){.count = 0};
	ckpt_s3_date(signing->time_s, out->date);
	memcpy(day, out->date, DAY);
	day[DAY] = 0;
	add(out, "x-amz-date", out->date);
	if (signing->payload_header)
		add(out, "x-amz-content-sha256", signing->payload);
	if (signing->token)
		add(out, "x-amz-security-token", signing->token);
	if (!key->made)
		key->made = ckpt_secret_alloc(sizeof(*key->made));
	if (!key->made)
		r = -ENOMEM;
	else if (!key_fits(key->made, signing, day))
		r = make_key(key->made, signing, day);
	if (r == 0)
		r = hash_request(signing, out, &names, request);
	if (r == 0)
		r = authorize(key->made, signing, request, &names, out);
	ckpt_buf_free(&names);
	if (r < 0)
		out->count = 0;
	else
		add(out, "authorization", out->authorization);
	return r;
}

void ckpt_s3_signed_clear(struct ckpt_s3_signed *signature)
{
	if (signature->authorization)
		explicit_bzero(signature->authorization, strlen(signature->authorization));
	ckpt_free(signature->authorization);
	*signature = (struct ckpt_s3_signed){.count = 0};
}
