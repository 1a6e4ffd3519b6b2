/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4 in headers. The caller has the request and the keys; what comes back are the
 * headers to send with it.
 */
#ifndef CKPT_S3_SIGN_H
#define CKPT_S3_SIGN_H

#include <ckpt/error.h>
#include "s3/canonical.h"
#include "s3/date.h"
#include "s3/endpoint.h"
#include "s3/hash.h"

#define CKPT_S3_SECRET_SIZE  256
#define CKPT_S3_SERVICE_SIZE 16

/* The key of a day, kept by its owner: made once for a secret, day, region and service. Zero: none. */
struct ckpt_s3_signing_key {
	struct ckpt_s3_day_key *made;
};
void ckpt_s3_signing_key_clear(struct ckpt_s3_signing_key *key);

struct ckpt_s3_signing {
	const char *method; /* "PUT" */
	const char *host;   /* as it is sent: signed as the header host */
	const char *path;   /* encoded, begins with '/': signed as it is */
	const char *query;  /* as ckpt_s3_canonical_query() takes it; "" */
	/* Signed, but for what ckpt_s3_header_signed() leaves out. Neither host nor what is made here. */
	const struct ckpt_http_header *headers;
	size_t header_count;
	const char *payload; /* SHA-256 of the body in hexadecimal digits, or CKPT_S3_UNSIGNED */
	bool payload_header; /* S3 wants it as x-amz-content-sha256; STS does not */
	const char *region;
	const char *service; /* "s3", "sts" */
	uint64_t time_s;     /* Unix time by the server's clock */
	const char *access;
	const char *secret;
	const char *token; /* NULL: none */
};

#define CKPT_S3_SIGNED_MAX 4

struct ckpt_s3_signed {
	/* x-amz-date, and where there are such x-amz-content-sha256, x-amz-security-token; authorization. */
	struct ckpt_http_header headers[CKPT_S3_SIGNED_MAX];
	size_t count;
	/* Its own; payload and token are borrowed from what was signed. */
	char date[CKPT_S3_DATE_SIZE];
	char *authorization;
};

/*
 * -ENOMEM, CKPT_EUNSUPPORTED (OpenSSL), -EINVAL (query), -E2BIG; nothing is worded. `ret_signed` must
 * stay where it is: its headers point into it.
 */
int ckpt_s3_sign(struct ckpt_s3_signing_key *key, const struct ckpt_s3_signing *signing,
	struct ckpt_s3_signed *ret_signed);
void ckpt_s3_signed_clear(struct ckpt_s3_signed *signature);

#endif
