/* SPDX-License-Identifier: Apache-2.0 */
/* AWS Signature Version 4 in headers. Takes the request and the keys, and returns the headers to add. */
#ifndef CKPT_S3_SIGN_H
#define CKPT_S3_SIGN_H

#include <ckpt/error.h>
#include "s3/canonical.h"
#include "s3/date.h"
#include "s3/endpoint.h"
#include "s3/hash.h"

#define CKPT_S3_SECRET_SIZE  256
#define CKPT_S3_SERVICE_SIZE 16

/* The signing key of a day, derived once per secret, day, region and service. Zero: none. */
struct ckpt_s3_signing_key {
	struct ckpt_s3_day_key *made;
};
void ckpt_s3_signing_key_clear(struct ckpt_s3_signing_key *key);

struct ckpt_s3_signing {
	const char *method; /* "PUT" */
	const char *host;   /* value of the Host header */
	const char *path;   /* encoded; begins with '/' */
	const char *query;  /* any form that ckpt_s3_canonical_query() accepts; "" */
	/* Signed, except those that ckpt_s3_header_signed() excludes. Without Host and the generated headers. */
	const struct ckpt_http_header *headers;
	size_t header_count;
	const char *payload; /* SHA-256 of the body in hex, or CKPT_S3_UNSIGNED */
	bool payload_header; /* add x-amz-content-sha256: S3 needs it, STS does not */
	const char *region;
	const char *service; /* "s3", "sts" */
	uint64_t time_s;     /* Unix time by the server's clock */
	const char *access;
	const char *secret;
	const char *token; /* NULL: none */
};

#define CKPT_S3_SIGNED_MAX 4

struct ckpt_s3_signed {
	/* x-amz-date, x-amz-content-sha256 and x-amz-security-token if they apply, authorization. */
	struct ckpt_http_header headers[CKPT_S3_SIGNED_MAX];
	size_t count;
	/* Private; payload and token are borrowed from the request. */
	char date[CKPT_S3_DATE_SIZE];
	char *authorization;
};

/*
 * -ENOMEM, CKPT_EUNSUPPORTED (OpenSSL), -EINVAL (query), -E2BIG; no message is set. Do not move `ret_signed`: its
 * headers point into it.
 */
int ckpt_s3_sign(struct ckpt_s3_signing_key *key, const struct ckpt_s3_signing *signing,
	struct ckpt_s3_signed *ret_signed);
void ckpt_s3_signed_clear(struct ckpt_s3_signed *signature);

#endif
