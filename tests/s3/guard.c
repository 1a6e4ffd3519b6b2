/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>

#define UNSIGNED "UNSIGNED-PAYLOAD"

/* What an Authorization header says. */
struct claim {
	char access[160];
	char day[16];
	char region[64];
	char service[16];
	char end[16];
	char signed_headers[2048];
	char signature[80];
};

void guard_add(struct guard *guard, const char *access, const char *secret, const char *token,
	uint64_t expires_s)
{
	guard->keys = need_again(guard->keys, guard->count + 1, sizeof(*guard->keys));
	guard->keys[guard->count++] = (struct guard_key){
		need_text(access), need_text(secret), token ? need_text(token) : NULL, expires_s};
}

void guard_clear(struct guard *guard)
{
	for (size_t i = 0; i < guard->count; i++) {
		free(guard->keys[i].access);
		free(guard->keys[i].secret);
		free(guard->keys[i].token);
	}
	free(guard->keys);
	free(guard->region);
	*guard = (struct guard){0};
}

static bool refuse(struct s3_reply *reply, int status, const char *code, const char *message)
{
	s3_reply_refuse(reply, status, code, message, NULL);
	return false;
}

static bool malformed(struct s3_reply *reply, const char *why)
{
	return refuse(reply, 400, "AuthorizationHeaderMalformed", why);
}

/* Copies what follows `name` up to one of `until`; NULL: it is not there, or too long. */
static const char *field(
	const char *from, const char *name, const char *until, char *out, size_t size)
{
	if (strncmp(from, name, strlen(name)) != 0)
		return NULL;
	from += strlen(name);
	size_t length = strcspn(from, until);
	if (length == 0 || length >= size)
		return NULL;
	memcpy(out, from, length);
	out[length] = '\0';
	return from + length;
}

static bool read_claim(const char *header, struct claim *c)
{
	const char *at = header;
	static const char scheme[] = "AWS4-HMAC-SHA256";

	if (strncmp(at, scheme, strlen(scheme)) != 0)
		return false;
	at += strlen(scheme);
	at += strspn(at, " ");
	if (!(at = field(at, "Credential=", "/", c->access, sizeof(c->access))) ||
		!(at = field(at, "/", "/", c->day, sizeof(c->day))) ||
		!(at = field(at, "/", "/", c->region, sizeof(c->region))) ||
		!(at = field(at, "/", "/", c->service, sizeof(c->service))) ||
		!(at = field(at, "/", ", ", c->end, sizeof(c->end))))
		return false;
	at += strspn(at, ", ");
	at = field(at, "SignedHeaders=", ", ", c->signed_headers, sizeof(c->signed_headers));
	if (!at)
		return false;
	at += strspn(at, ", ");
	at = field(at, "Signature=", ", ", c->signature, sizeof(c->signature));
	return at && *at == '\0';
}

static bool is_signed(const struct claim *c, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = c->signed_headers; at; at = strchr(at, ';')) {
		at += *at == ';';
		if (strncmp(at, name, length) == 0 && (at[length] == ';' || at[length] == '\0'))
			return true;
	}
	return false;
}

/* The value without blanks at its ends, and with one where there are several. */
static void add_trimmed(struct text *text, const char *value)
{
	bool gap = false;
	size_t before = text->length;

	for (; *value; value++) {
		if (*value == ' ' || *value == '\t') {
			gap = true;
			continue;
		}
		if (gap && text->length > before)
			text_add(text, " ");
		gap = false;
		text_add_bytes(text, value, 1);
	}
}

/* Every header that is signed, in the order given, which must be the sorted one. */
static bool add_headers(struct text *text, const struct claim *c, const struct s3_request *req)
{
	char before[128] = "", name[128];

	for (const char *at = c->signed_headers; *at;) {
		at = field(at, "", ";", name, sizeof(name));
		if (!at || strcmp(before, name) >= 0)
			return false;
		at += *at == ';';
		bool first = true;
		text_addf(text, "%s:", name);
		for (size_t i = 0; i < req->headers.count; i++) {
			if (strcmp(req->headers.at[i].name, name) != 0)
				continue;
			if (!first)
				text_add(text, ",");
			first = false;
			add_trimmed(text, req->headers.at[i].value);
		}
		if (first)
			return false;
		text_add(text, "\n");
		memcpy(before, name, sizeof(before));
	}
	return true;
}

static int by_name_and_value(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted as encoded text: '=' would sort behind digits and '-', so it is put in when all are in order. */
static void add_query(struct text *text, const struct pairs *query)
{
	char **parts = need(query->count * sizeof(*parts));

	for (size_t i = 0; i < query->count; i++) {
		struct text part = {0};
		text_add_url(&part, query->at[i].name, false);
		text_add(&part, "\x01");
		text_add_url(&part, query->at[i].value, false);
		parts[i] = part.at;
	}
	qsort(parts, query->count, sizeof(*parts), by_name_and_value);
	for (size_t i = 0; i < query->count; i++) {
		*strchr(parts[i], '\x01') = '=';
		text_add(text, i ? "&" : "");
		text_add(text, parts[i]);
		free(parts[i]);
	}
	free(parts);
}

static void sign(const struct guard_key *key, const struct claim *c, const char *date,
	const char *canonical, size_t length, char out[HASH_TEXT_MAX])
{
	uint8_t sum[HASH_MAX];
	char hex[HASH_TEXT_MAX];
	struct text words = {0};

	text_addf(&words, "AWS4%s", key->secret);
	hmac_take(words.at, words.length, c->day, sum);
	hmac_take(sum, HASH_MAX, c->region, sum);
	hmac_take(sum, HASH_MAX, c->service, sum);
	hmac_take(sum, HASH_MAX, "aws4_request", sum);
	text_clear(&words);

	uint8_t of_request[HASH_MAX];
	hash_take(HASH_SHA256, canonical, length, of_request);
	hex_put(of_request, HASH_MAX, hex);
	text_addf(&words, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", date, c->day,
		c->region, c->service, hex);
	hmac_take(sum, HASH_MAX, words.at, sum);
	text_clear(&words);
	hex_put(sum, HASH_MAX, out);
}

static const struct guard_key *key_of(const struct guard *guard, const char *access)
{
	for (size_t i = 0; i < guard->count; i++)
		if (strcmp(guard->keys[i].access, access) == 0)
			return &guard->keys[i];
	return NULL;
}

/* Everything that has to do with x-amz- must be signed, and the host. */
static bool signs_enough(const struct claim *c, const struct s3_request *req)
{
	if (!is_signed(c, "host"))
		return false;
	for (size_t i = 0; i < req->headers.count; i++)
		if (strncmp(req->headers.at[i].name, "x-amz-", 6) == 0 &&
			!is_signed(c, req->headers.at[i].name))
			return false;
	return true;
}

static bool scope_fits(
	const struct guard *guard, const struct claim *c, const char *date, struct s3_reply *reply)
{
	char more[128], why[256];

	if (strcmp(c->service, "s3") != 0 || strcmp(c->end, "aws4_request") != 0)
		return malformed(reply, "The credential scope is not of s3 and aws4_request.");
	if (strncmp(c->day, date, 8) != 0 || strlen(c->day) != 8)
		return malformed(reply, "The day of the credential is not that of x-amz-date.");
	if (strcmp(c->region, guard->region) == 0)
		return true;
	(void)snprintf(why, sizeof(why),
		"The authorization header is malformed; the region '%s' is wrong; expecting '%s'",
		c->region, guard->region);
	(void)snprintf(more, sizeof(more), "<Region>%s</Region>", guard->region);
	s3_reply_refuse(reply, 400, "AuthorizationHeaderMalformed", why, more);
	s3_reply_header(reply, "x-amz-bucket-region", guard->region);
	return false;
}

static bool key_holds(const struct guard_key *key, const struct s3_request *req, uint64_t now_s,
	struct s3_reply *reply)
{
	const char *token = pairs_get(&req->headers, "x-amz-security-token");

	if (!key || (key->token && !token))
		return refuse(reply, 403, "InvalidAccessKeyId",
			"The AWS Access Key Id you provided does not exist in our records.");
	if (token && (!key->token || strcmp(token, key->token) != 0))
		return refuse(reply, 400, "InvalidToken",
			"The provided token is malformed or otherwise invalid.");
	if (key->expires_s && now_s >= key->expires_s)
		return refuse(reply, 400, "ExpiredToken", "The provided token has expired.");
	return true;
}

static bool time_fits(
	const struct guard *guard, const char *date, uint64_t now_s, struct s3_reply *reply)
{
	uint64_t signed_s, skew_s = guard->skew_s ? guard->skew_s : 900;

	if (!time_read_basic(date, &signed_s))
		return refuse(reply, 403, "AccessDenied",
			"AWS authentication requires a valid Date or x-amz-date header");
	if (signed_s + skew_s >= now_s && now_s + skew_s >= signed_s)
		return true;
	return refuse(reply, 403, "RequestTimeTooSkewed",
		"The difference between the request time and the current time is too large.");
}

static bool signature_fits(const struct guard_key *key, const struct claim *c, const char *date,
	const char *payload, const struct s3_request *req, struct s3_reply *reply)
{
	struct text canonical = {0};
	char wanted[HASH_TEXT_MAX];

	text_addf(&canonical, "%s\n", req->method);
	text_add_url(&canonical, req->path, true);
	text_add(&canonical, "\n");
	add_query(&canonical, &req->query);
	text_add(&canonical, "\n");
	bool good = add_headers(&canonical, c, req);
	text_add(&canonical, "\n");
	text_add(&canonical, c->signed_headers);
	text_add(&canonical, "\n");
	text_add(&canonical, payload);
	sign(key, c, date, canonical.at, canonical.length, wanted);
	text_clear(&canonical);
	if (good && strlen(c->signature) == strlen(wanted) &&
		CRYPTO_memcmp(c->signature, wanted, strlen(wanted)) == 0)
		return true;
	return refuse(reply, 403, "SignatureDoesNotMatch",
		"The request signature we calculated does not match the signature you provided.");
}

bool guard_admits(const struct guard *guard, const struct s3_request *req, uint64_t now_s,
	struct s3_reply *reply)
{
	const char *header = pairs_get(&req->headers, "authorization");
	const char *date = pairs_get(&req->headers, "x-amz-date");
	const char *payload = pairs_get(&req->headers, "x-amz-content-sha256");
	struct claim c;

	if (guard->count == 0)
		return true;
	if (!header)
		return refuse(reply, 403, "AccessDenied", "Access Denied");
	if (!read_claim(header, &c))
		return malformed(reply, "The authorization header is malformed.");
	if (!payload)
		return refuse(reply, 400, "InvalidRequest",
			"Missing required header for this request: x-amz-content-sha256");
	if (strncmp(payload, "STREAMING-", 10) == 0)
		return refuse(reply, 501, "NotImplemented", "Chunks are not signed here.");
	const struct guard_key *key = key_of(guard, c.access);
	if (!time_fits(guard, date ? date : "", now_s, reply) ||
		!key_holds(key, req, now_s, reply) || !scope_fits(guard, &c, date, reply))
		return false;
	if (!signs_enough(&c, req))
		return refuse(reply, 403, "AccessDenied",
			"There were headers present in the request which were not signed");
	return signature_fits(key, &c, date, payload, req, reply);
}

bool guard_admits_body(const struct guard *guard, struct s3_request *req, struct s3_reply *reply)
{
	const char *payload = pairs_get(&req->headers, "x-amz-content-sha256");
	char hex[HASH_TEXT_MAX];

	if (guard->count == 0 || !payload || strcmp(payload, UNSIGNED) == 0 ||
		(req->body && req->body->hollow))
		return true;
	if (strlen(payload) == 64 && strspn(payload, "0123456789abcdefABCDEF") == 64) {
		hex_put(s3_request_hash(req, HASH_SHA256), HASH_MAX, hex);
		if (strcasecmp(payload, hex) == 0)
			return true;
		return refuse(reply, 400, "XAmzContentSHA256Mismatch",
			"The provided 'x-amz-content-sha256' header does not match what was "
			"computed.");
	}
	return refuse(reply, 400, "InvalidArgument",
		"x-amz-content-sha256 must be UNSIGNED-PAYLOAD or a valid sha256 value.");
}
