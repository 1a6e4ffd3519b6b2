/* SPDX-License-Identifier: Apache-2.0 */
/* A request and its answer, taken out of HTTP: what a bucket is asked, and what it says. */
#ifndef S3_MESSAGE_H
#define S3_MESSAGE_H

#include "s3/hashes.h"
#include "s3/text.h"

struct pair {
	char *name;
	char *value;
};

struct pairs {
	struct pair *at;
	size_t count;
};

void pairs_add(struct pairs *pairs, const char *name, const char *value);
/* The first of that name, or NULL. */
const char *pairs_get(const struct pairs *pairs, const char *name);
void pairs_copy(struct pairs *to, const struct pairs *from);
void pairs_clear(struct pairs *pairs);
/* "a=1&b" taken apart; false: a broken escape. */
bool pairs_add_query(struct pairs *pairs, const char *query);

struct s3_request {
	char *method;
	char *bucket; /* "": none is named */
	char *key;    /* decoded; "": the bucket itself */
	char *path; /* decoded, as it was asked for: with a virtual host it is without the bucket */
	struct pairs query; /* decoded, in the order in which they were sent; "" without a value */
	struct pairs headers;    /* names in lower case */
	struct bytes *body;      /* NULL: none */
	bool secure;             /* came by TLS */
	bool hashed[HASH_COUNT]; /* sums of the body that are known already */
	uint8_t hashes[HASH_COUNT][HASH_MAX];
};

/* Made of a target as HTTP has it, "/bucket/key?query", percent-encoded; false: it is broken. */
bool s3_request_set(struct s3_request *req, const char *method, const char *target);
/* The same where the host has named the bucket. */
bool s3_request_set_hosted(
	struct s3_request *req, const char *method, const char *bucket, const char *target);
void s3_request_copy(struct s3_request *to, const struct s3_request *from);
void s3_request_clear(struct s3_request *req);

/* A sum of the body, taken once. */
const uint8_t *s3_request_hash(struct s3_request *req, enum hash hash);
size_t s3_request_length(const struct s3_request *req);

struct s3_reply {
	int status;
	char code[48]; /* S3's word for an error; "": none */
	struct pairs headers;
	struct rope body;
	uint64_t missing; /* bytes that Content-Length promises and that never come */
	bool close;       /* the connection is of no more use */
};

void s3_reply_header(struct s3_reply *reply, const char *name, const char *value);
/* The body is `xml` with a declaration before it; clears `xml`. */
void s3_reply_xml(struct s3_reply *reply, struct text *xml);
/* An error as S3 writes it, in place of what the reply held. `more` is XML, or NULL. */
void s3_reply_refuse(struct s3_reply *reply, int status, const char *code, const char *message,
	const char *more);
void s3_reply_clear(struct s3_reply *reply);

#endif
