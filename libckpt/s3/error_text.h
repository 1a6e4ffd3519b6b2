/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages of S3 requests: the only place that makes them. */
#ifndef CKPT_S3_ERROR_TEXT_H
#define CKPT_S3_ERROR_TEXT_H

#include <ckpt/error.h>
#include "s3/response_error.h"

struct ckpt_s3_asked {
	const char *doing; /* "write", "read", "list": "cannot write s3://bucket/key" */
	const char *bucket;
	const char *key;    /* "": the bucket itself */
	const char *region; /* region of the signature */
	unsigned tries;     /* number of tries; 0 and 1 are not mentioned */
	/* x-amz-request-id, if the body contains none, as for HEAD or from a proxy; NULL: none. */
	const char *request_id;
};

/*
 * A response of `status`, which is no success; `reply` is its parsed body, or NULL (HEAD has none). Returns the code:
 * CKPT_EAUTH, -ENOENT (no such key), CKPT_ENOSTORE (no such bucket, or in another region), -ESTALE (no such upload),
 * -EEXIST (a condition does not hold), -EBUSY (a conflicting request), -ERANGE, -ENOSPC, -EFBIG, -ENAMETOOLONG,
 * CKPT_EINTEGRITY (bytes changed on the way), CKPT_EUNSUPPORTED, -EINVAL, else CKPT_ENETWORK. The record has the
 * status, tier "remote", and the key as its file.
 */
int ckpt_s3_refused(struct ckpt_error *err, const struct ckpt_s3_asked *asked, int status,
	const struct ckpt_s3_error_reply *reply);

/*
 * There is no complete response: uses the HTTP client's code and message, which contains no secret. Returns the code.
 */
int ckpt_s3_unanswered(
	struct ckpt_error *err, const struct ckpt_s3_asked *asked, int code, const char *words);

#endif
