/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical queries and headers. */
#include "s3/canonical.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "s3/escape.h"

/* Offsets into a buffer that may still be reallocated. */
struct parameter {
	size_t name;
	size_t name_length;
	size_t value;
	size_t value_length;
};

/* Decodes and encodes again, so that equal texts are encoded alike. */
static int put_anew(struct ckpt_buf *out, const char *text, size_t length)
{
	char *plain = ckpt_memdup(text, length);
	size_t plain_length = 0;
	int r = 0;

	if (!plain)
		return -ENOMEM;
	if (ckpt_s3_unescape(plain, length, false, &plain_length))
		ckpt_s3_escape(out, plain, plain_length);
	else
		r = -EINVAL;
	ckpt_free(plain);
	return r;
}

static int read_parameter(
	const char *text, size_t length, struct ckpt_buf *pool, struct parameter *ret)
{
	const char *equals = memchr(text, '=', length);
	size_t name = equals ? (size_t)(equals - text) : length;
	int r;

	ret->name = pool->len;
	r = put_anew(pool, text, name);
	ret->name_length = pool->len - ret->name;
	ret->value = pool->len;
	if (r == 0 && equals)
		r = put_anew(pool, equals + 1, length - name - 1);
	ret->value_length = pool->len - ret->value;
	return r;
}

static int compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
	size_t common = ckpt_min_u64(a_length, b_length);
	int r = common > 0 ? memcmp(a, b, common) : 0;

	return r != 0 ? r : (a_length > b_length) - (a_length < b_length);
}

/* By name, then by value. "a=1" comes before "a-b=1", though '-' is less than '='. */
static void sort_parameters(const char *pool, struct parameter *list, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		struct parameter moved = list[i];
		size_t at = i;

		for (; at > 0; at--) {
			const struct parameter *p = &list[at - 1];
			int r = compare(pool + p->name, p->name_length, pool + moved.name,
				moved.name_length);

			if (r == 0)
				r = compare(pool + p->value, p->value_length, pool + moved.value,
					moved.value_length);
			if (r <= 0)
				break;
			list[at] = *p;
		}
		list[at] = moved;
	}
}

int ckpt_s3_canonical_query(const char *query, struct ckpt_buf *out)
{
	struct parameter list[CKPT_S3_PARAMETERS_MAX];
	struct ckpt_buf pool = {0};
	size_t count = 0;
	int r = 0;

	ckpt_buf_fill(&pool, 0, 1); /* allocates it even if all texts are empty */
	while (r == 0 && *query) {
		size_t length = strcspn(query, "&");

		if (length > 0 && count == CKPT_COUNT(list))
			r = -E2BIG;
		else if (length > 0)
			r = read_parameter(query, length, &pool, &list[count++]);
		query += length + (query[length] == '&');
	}
	if (r == 0 && pool.failed)
		r = -ENOMEM;
	if (r == 0) {
		sort_parameters(pool.data, list, count);
		for (size_t i = 0; i < count; i++) {
			if (i > 0)
				ckpt_buf_puts(out, "&");
			ckpt_buf_put(out, pool.data + list[i].name, list[i].name_length);
			ckpt_buf_puts(out, "=");
			ckpt_buf_put(out, pool.data + list[i].value, list[i].value_length);
		}
		r = out->failed ? -ENOMEM : 0;
	}
	ckpt_buf_free(&pool);
	return r;
}

bool ckpt_s3_header_signed(const char *name)
{
	static const char *const changed[] = {"accept-encoding", "authorization", "connection",
		"expect", "keep-alive", "proxy-authenticate", "proxy-authorization",
		"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
		"via", "x-amzn-trace-id", "x-forwarded-for"};

	for (size_t i = 0; i < CKPT_COUNT(changed); i++) {
		if (strcasecmp(name, changed[i]) == 0)
			return false;
	}
	return true;
}

static bool blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void put_value(struct ckpt_buf *out, const char *value)
{
	bool gap = false;
	bool first = true;

	for (; *value; value++) {
		if (blank(*value)) {
			gap = true;
			continue;
		}
		if (gap && !first)
			ckpt_buf_puts(out, " ");
		ckpt_buf_put(out, value, 1);
		gap = false;
		first = false;
	}
}

static void put_name(struct ckpt_buf *out, const char *name)
{
	for (; *name; name++) {
		char c = (char)(*name >= 'A' && *name <= 'Z' ? *name - 'A' + 'a' : *name);

		ckpt_buf_put(out, &c, 1);
	}
}

int ckpt_s3_canonical_headers(const struct ckpt_http_header *headers, size_t count,
	struct ckpt_buf *out, struct ckpt_buf *names)
{
	const struct ckpt_http_header *list[CKPT_S3_HEADERS_MAX];
	size_t used = 0;

	for (size_t i = 0; i < count; i++) {
		size_t at = used;

		if (!ckpt_s3_header_signed(headers[i].name))
			continue;
		if (used == CKPT_COUNT(list))
			return -E2BIG;
		/* Headers of one name keep their order. */
		for (; at > 0 && strcasecmp(list[at - 1]->name, headers[i].name) > 0; at--)
			list[at] = list[at - 1];
		list[at] = &headers[i];
		used++;
	}
	for (size_t i = 0; i < used; i++) {
		if (i > 0 && strcasecmp(list[i - 1]->name, list[i]->name) == 0) {
			ckpt_buf_puts(out, ",");
		} else {
			if (i > 0) {
				ckpt_buf_puts(out, "\n");
				ckpt_buf_puts(names, ";");
			}
			put_name(out, list[i]->name);
			ckpt_buf_puts(out, ":");
			put_name(names, list[i]->name);
		}
		put_value(out, list[i]->value);
	}
	if (used > 0)
		ckpt_buf_puts(out, "\n");
	return out->failed || names->failed ? -ENOMEM : 0;
}
