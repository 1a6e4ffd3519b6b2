/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of requests to S3 as users read them: the one place that words them. */
#ifndef CKPT_S3_ERROR_TEXT_H
#define CKPT_S3_ERROR_TEXT_H

#include <ckpt/error.h>
#include "s3/response_error.h"

struct ckpt_s3_asked {
	const char *doing; /* "write", "read", "list": "cannot write s3://bucket/key" */
	const char *bucket;
	const char *key;    /* "": the bucket */
	const char *region; /* that was signed for */
	unsigned tries;     /* that were made; 0 and 1: nothing is said of them */
	/* x-amz-request-id, if the body names none, as to a HEAD and of a proxy; NULL: there is none */
	const char *request_id;
};

/*
 * A whole answer that is no success, of `status`; `reply` is what its body says, or NULL (to HEAD there is
 * none). Returns the code: CKPT_EAUTH, -ENOENT (no such key), CKPT_ENOSTORE (no such bucket, or in another
 * region), -ESTALE (no such upload), -EEXIST (a condition did not hold), -EBUSY (somebody else is at it),
 * -ERANGE, -ENOSPC, -EFBIG, -ENAMETOOLONG, CKPT_EINTEGRITY (bytes changed on the way), CKPT_EUNSUPPORTED,
 * -EINVAL; CKPT_ENETWORK else. The record has the status, tier "remote", and the key as its file.
 */
int ckpt_s3_refused(struct ckpt_error *err, const struct ckpt_s3_asked *asked, int status,
	const struct ckpt_s3_error_reply *reply);

/* There is no whole answer: the HTTP client's code and words, which hold no secret. Returns the code. */
int ckpt_s3_unanswered(
	struct ckpt_error *err, const struct ckpt_s3_asked *asked, int code, const char *words);

#endif
