/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints of buckets: AWS's hosts by region, or a configured endpoint. What is signed (host, path) and what is sent
 * (URL) are made of the same parts here.
 */
#ifndef CKPT_S3_ENDPOINT_H
#define CKPT_S3_ENDPOINT_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "s3/uri.h"

#define CKPT_S3_REGION_MAX  63
#define CKPT_S3_HOST_MAX    253 /* a DNS name */
#define CKPT_S3_BASE_MAX    255
#define CKPT_S3_REGION_NONE "us-east-1" /* the default; a bucket elsewhere names its region */

enum ckpt_s3_addressing {
	/* The bucket is in the host name at AWS, where TLS allows it; else in the path. */
	CKPT_S3_ADDRESSING_AUTO = 0,
	CKPT_S3_ADDRESSING_PATH,
	CKPT_S3_ADDRESSING_VIRTUAL,
};

/* NULL means "". */
struct ckpt_s3_endpoint_config {
	const char *url; /* http[s]://host[:port][/path]; "": AWS */
	const char *region;
	const char *bucket; /* as parsed by ckpt_s3_uri_parse() */
	enum ckpt_s3_addressing addressing;
	bool dualstack; /* use AWS's hosts with IPv6 */
	bool fips;
};

struct ckpt_s3_endpoint {
	char region[CKPT_S3_REGION_MAX + 1]; /* requests are signed for it */
	char bucket[CKPT_S3_BUCKET_MAX + 1];
	/* The Host header: "host" or "host:port", without the default port of the scheme. */
	char host[CKPT_S3_HOST_MAX + CKPT_S3_BUCKET_MAX + 10];
	char base[CKPT_S3_BASE_MAX + 1]; /* path of the endpoint: "" or "/storage/v1" */
	bool tls;
	bool aws;
	bool virtual_host; /* `host` begins with the bucket */
};

/* -EINVAL or CKPT_EUNSUPPORTED, with a message. */
int ckpt_s3_endpoint_make(const struct ckpt_s3_endpoint_config *config, struct ckpt_error *err,
	struct ckpt_s3_endpoint *ret_endpoint);

/* The path of `key` ("": the bucket itself), encoded once, as it is signed and sent. */
void ckpt_s3_endpoint_path(
	const struct ckpt_s3_endpoint *endpoint, const char *key, struct ckpt_buf *out);
/* Its complete URL; `query` is encoded, or "". */
void ckpt_s3_endpoint_url(const struct ckpt_s3_endpoint *endpoint, const char *key,
	const char *query, struct ckpt_buf *out);

#endif
