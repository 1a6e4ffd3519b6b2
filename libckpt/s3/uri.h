/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The location of a store as a user writes it: a directory, "file:///directory" or "s3://bucket/prefix".
 *
 * Bucket names follow the rules of all stores, not only of AWS: 3 to 255 letters, digits, '.', '-' and '_', beginning
 * with a letter or digit. A prefix is UTF-8 without control characters. Keys may contain empty components, "." and
 * "..",
 * but a prefix may not, because HTTP clients, proxies and gateways change or refuse such paths. The part after the
 * bucket
 * is not a URL: '%', '?' and '#' stand for themselves.
 */
#ifndef CKPT_S3_URI_H
#define CKPT_S3_URI_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_KEY_MAX    1024 /* bytes of a key, S3's own limit */
#define CKPT_S3_NAME_MAX   191  /* longest name of a store's file below its prefix */
#define CKPT_S3_PREFIX_MAX (CKPT_S3_KEY_MAX - 1 - CKPT_S3_NAME_MAX)
#define CKPT_S3_BUCKET_MAX 255

struct ckpt_s3_uri {
	bool remote;                         /* s3://; else `path` is a directory */
	char bucket[CKPT_S3_BUCKET_MAX + 1]; /* "" for a directory */
	char path[4096];                     /* the directory; or the prefix: "a/b", or "" */
};

/* -EINVAL, CKPT_EUNSUPPORTED (another scheme) or -ENAMETOOLONG, with a message. */
int ckpt_s3_uri_parse(const char *text, struct ckpt_error *err, struct ckpt_s3_uri *ret_place);

/* The key of `name` in the remote store at `place`. `name` is not "", and at most NAME_MAX long. */
void ckpt_s3_uri_key(
	const struct ckpt_s3_uri *place, const char *name, char ret_key[CKPT_S3_KEY_MAX + 1]);
/* The name of `key` in the store, which points into `key`; NULL if it is not below the prefix. */
const char *ckpt_s3_uri_name(const struct ckpt_s3_uri *place, const char *key);
/* A 62-bit number of a remote place: the same through every server. */
uint64_t ckpt_s3_uri_number(const struct ckpt_s3_uri *place);

#endif
