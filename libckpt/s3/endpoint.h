/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a bucket is asked: AWS's hosts by region, or an endpoint of the user's. What is signed (host,
 * path) and what is sent (URL) are made here of the same parts.
 */
#ifndef CKPT_S3_ENDPOINT_H
#define CKPT_S3_ENDPOINT_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "s3/uri.h"

#define CKPT_S3_REGION_MAX  63
#define CKPT_S3_HOST_MAX    253 /* a name of the DNS */
#define CKPT_S3_BASE_MAX    255
#define CKPT_S3_REGION_NONE "us-east-1" /* where none is given; a server that has another says so */

enum ckpt_s3_addressing {
	/* By the bucket's name in the host at AWS, where TLS allows it; else by path. */
	CKPT_S3_ADDRESSING_AUTO = 0,
	CKPT_S3_ADDRESSING_PATH,
	CKPT_S3_ADDRESSING_VIRTUAL,
};

/* NULL is "". */
struct ckpt_s3_endpoint_config {
	const char *url; /* http[s]://host[:port][/path]; "": AWS */
	const char *region;
	const char *bucket; /* as ckpt_s3_uri_parse() takes it */
	enum ckpt_s3_addressing addressing;
	bool dualstack; /* AWS's hosts that have IPv6 addresses, too */
	bool fips;
};

struct ckpt_s3_endpoint {
	char region[CKPT_S3_REGION_MAX + 1]; /* what requests are signed for */
	char bucket[CKPT_S3_BUCKET_MAX + 1];
	/* The Host header: "host" or "host:port", the port left out when it is the scheme's own. */
	char host[CKPT_S3_HOST_MAX + CKPT_S3_BUCKET_MAX + 10];
	char base[CKPT_S3_BASE_MAX + 1]; /* path of the endpoint: "" or "/storage/v1" */
	bool tls;
	bool aws;
	bool virtual_host; /* `host` begins with the bucket */
};

/* -EINVAL or CKPT_EUNSUPPORTED, with words. */
int ckpt_s3_endpoint_make(const struct ckpt_s3_endpoint_config *config, struct ckpt_error *err,
	struct ckpt_s3_endpoint *ret_endpoint);

/* The path of `key` ("": of the bucket itself), encoded once, as it is signed and sent. */
void ckpt_s3_endpoint_path(
	const struct ckpt_s3_endpoint *endpoint, const char *key, struct ckpt_buf *out);
/* The whole URL of it; `query` is encoded, or "". */
void ckpt_s3_endpoint_url(const struct ckpt_s3_endpoint *endpoint, const char *key,
	const char *query, struct ckpt_buf *out);

#endif
