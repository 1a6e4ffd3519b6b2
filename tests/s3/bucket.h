/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3 in memory: what a provider of buckets does, without a network, a thread, a clock or randomness of
 * its own. The same requests at the same times get the same answers, to the byte.
 *
 * buckets_do() is a request that arrives and is answered at once. Who loses one or the other does it in
 * steps: nothing has happened before it, and whether the reply is ever handed on is the caller's affair.
 * A copy of the request that is done once more, or later, is what a network makes of one that it delayed.
 */
#ifndef S3_BUCKET_H
#define S3_BUCKET_H

#include "s3/guard.h"
#include "s3/journal.h"

struct buckets;

/* What a store makes of If-None-Match and If-Match on a write. */
enum s3_conditions {
	S3_CONDITIONS_KEPT = 0,
	S3_CONDITIONS_REFUSED, /* 501, as OpenStack Swift */
	S3_CONDITIONS_IGNORED, /* 200, and what was there is overwritten, as old stores do */
};

/* In which ways it is another store than Amazon's. All zero: in none. */
struct s3_capabilities {
	enum s3_conditions put;
	enum s3_conditions complete; /* of a multipart upload: radosgw 16 ignores them here only */
	bool etag_not_md5;           /* a number, as with encryption by keys of KMS */
	bool checksums_ignored;      /* x-amz-checksum-*: neither looked at nor given back */
	bool order_ignored; /* parts may be named in any order, and are put together by number */
	bool all_parts;     /* a Complete that leaves parts out is refused (InvalidPart) */
	bool bare_match; /* If-Match of a write has the ETag without quotes, as radosgw 16 wants it */
	bool complete_untagged; /* the answer to a Complete names no ETag, as radosgw 16 does */
	bool gone_is_key; /* an upload that is not there is NoSuchKey where its parts are listed */
	uint64_t part_minimum; /* of all parts but the last; 0: 5 MiB */
	unsigned parts_most;   /* 0: 10,000 */
	unsigned page_most;    /* names, parts and uploads in one answer; 0: 1,000 */
};

/* "aws", "radosgw", "swift", "old"; false: none of these. */
bool s3_capabilities_named(const char *name, struct s3_capabilities *ret_capabilities);

struct buckets_config {
	const char *region;      /* NULL: us-east-1 */
	uint64_t seed;           /* of upload ids and request ids */
	uint64_t memory_limit;   /* of what objects and parts hold; 0: none */
	struct guard *guard;     /* NULL: nobody is asked who he is. Borrowed */
	struct journal *journal; /* NULL: none is kept. Borrowed */
	const char *directory;   /* holds it all across kill -9; NULL: memory alone does */
};

/* Reads what the directory holds; NULL: it cannot be used, and standard error says why. */
struct buckets *buckets_new(const struct buckets_config *config);
void buckets_free(struct buckets *buckets);
struct s3_capabilities *buckets_capabilities(
	struct buckets *buckets); /* to be changed at any time */
void buckets_make(struct buckets *buckets, const char *name);

/* How a request is called: "PutObject", "UploadPart"; "?" if it is none that is known. */
const char *s3_operation(const struct s3_request *req);
/* Its partNumber; 0: it has none. */
unsigned s3_part_number(const struct s3_request *req);

/* `label` is the caller's name for the request in the journal. `now_ns` is Unix time and must not go back. */
void buckets_do(struct buckets *buckets, uint64_t now_ns, uint64_t label, struct s3_request *req,
	struct s3_reply *reply);
/*
 * What would be refused without its body: then true, and `reply` says how. For servers that are asked
 * before a body is sent.
 */
bool buckets_refuse_early(
	struct buckets *buckets, uint64_t now_ns, struct s3_request *req, struct s3_reply *reply);

uint64_t buckets_held(const struct buckets *buckets); /* bytes in objects and parts */
/* The content of an object, for oracles; NULL: there is none. The caller's until the next request. */
const struct rope *buckets_content(struct buckets *buckets, const char *bucket, const char *key);
size_t buckets_uploads(
	const struct buckets *buckets, const char *bucket); /* not completed, not aborted */

#endif
