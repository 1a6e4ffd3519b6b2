/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and answers in a line, for tests of the buckets. */
#ifndef S3_ASKING_H
#define S3_ASKING_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/test.h"
#include "s3/bucket.h"

#define NOW_NS (UINT64_C(1369353600) * 1000000000) /* 20130524T000000Z */

/* Headers are pairs of names and values, ended by NULL. */
static inline void asked(struct s3_request *req, const char *method, const char *target,
	const void *body, size_t length, ...)
{
	va_list args;
	const char *name;

	*req = (struct s3_request){0};
	assert_true(s3_request_set(req, method, target));
	if (body)
		req->body = bytes_copy(body, length);
	va_start(args, length);
	while ((name = va_arg(args, const char *)))
		pairs_add(&req->headers, name, va_arg(args, const char *));
	va_end(args);
}

/* Asks, clears the request, and says the status; `reply` is the caller's to clear. */
static inline int ask_for(struct buckets *buckets, struct s3_request *req, struct s3_reply *reply)
{
	buckets_do(buckets, NOW_NS, 1, req, reply);
	s3_request_clear(req);
	return reply->status;
}

/* The same, and only the status counts. */
static inline int ask(struct buckets *buckets, struct s3_request *req)
{
	struct s3_reply reply;
	int status = ask_for(buckets, req, &reply);

	s3_reply_clear(&reply);
	return status;
}

/* The body as text. Freed with free(). */
static inline char *body_of(const struct s3_reply *reply)
{
	char *text = need((size_t)reply->body.length + 1);

	(void)rope_read(&reply->body, 0, text, (size_t)reply->body.length);
	return text;
}

/* What stands in the first element of that name, into a buffer that the next call overwrites. */
static inline const char *element(const char *xml, const char *name)
{
	static char found[256];
	char open[64];

	(void)snprintf(open, sizeof(open), "<%s>", name);
	const char *at = strstr(xml, open);
	if (!at)
		return NULL;
	at += strlen(open);
	(void)snprintf(found, sizeof(found), "%.*s", (int)strcspn(at, "<"), at);
	return found;
}

static inline struct buckets *one_bucket(struct buckets_config config)
{
	struct buckets *buckets = buckets_new(&config);

	assert_non_null(buckets);
	buckets_make(buckets, "bkt");
	return buckets;
}

#endif
