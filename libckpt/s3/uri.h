/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a store is, as a user writes it: a directory, "file:///directory" or "s3://bucket/prefix".
 *
 * Bucket names are taken as every store may have them, and not only AWS: 3 to 255 letters of either
 * case, digits, '.', '-' and '_', of which the first is a letter or digit. A prefix is UTF-8 without
 * control characters. Keys may legally hold empty components, "." and ".."; a prefix may not, because
 * HTTP clients, proxies and gateways over file systems take such paths for others, or refuse them.
 * What follows the bucket is no URL: '%', '?' and '#' stand for themselves.
 */
#ifndef CKPT_S3_URI_H
#define CKPT_S3_URI_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_KEY_MAX    1024 /* bytes of a key, S3's own limit */
#define CKPT_S3_NAME_MAX   191  /* of what a store puts below its prefix */
#define CKPT_S3_PREFIX_MAX (CKPT_S3_KEY_MAX - 1 - CKPT_S3_NAME_MAX)
#define CKPT_S3_BUCKET_MAX 255

struct ckpt_s3_uri {
	bool remote;                         /* s3://; else `path` is a directory */
	char bucket[CKPT_S3_BUCKET_MAX + 1]; /* "" of a directory */
	char path[4096];                     /* the directory; or the prefix: "a/b", or "" */
};

/* -EINVAL, CKPT_EUNSUPPORTED (another scheme) or -ENAMETOOLONG, with words. */
int ckpt_s3_uri_parse(const char *text, struct ckpt_error *err, struct ckpt_s3_uri *ret_place);

/* What S3 calls `name` of the store at `place`, a remote one. `name` is not "", and at most NAME_MAX long. */
void ckpt_s3_uri_key(
	const struct ckpt_s3_uri *place, const char *name, char ret_key[CKPT_S3_KEY_MAX + 1]);
/* The name that `key` has in the store, which lies in `key`; NULL if it is not below the prefix. */
const char *ckpt_s3_uri_name(const struct ckpt_s3_uri *place, const char *key);
/* A number of 62 bits for the place, a remote one: the same by whichever server it is reached. */
uint64_t ckpt_s3_uri_number(const struct ckpt_s3_uri *place);

#endif
