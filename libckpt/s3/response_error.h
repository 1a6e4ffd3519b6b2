/* SPDX-License-Identifier: Apache-2.0 */
/* Error responses: <Error> of S3 or STS. */
#ifndef CKPT_S3_RESPONSE_ERROR_H
#define CKPT_S3_RESPONSE_ERROR_H

#include "base/compiler.h"

/* Printable UTF-8, cut to fit; "" for what is missing. */
struct ckpt_s3_error_reply {
	char code[64];
	char message[512]; /* contains no signature or token */
	char request_id[128];
	char host_id[128];
	char region[64];
	char endpoint[256];
	char bucket[256];
	char key[256]; /* the object, in a response about several */
};

/*
 * Whether it is an error response; other kinds are left at their first element. Check the bodies of 200 responses, too:
 * CompleteMultipartUpload and CopyObject may fail that way.
 */
bool ckpt_s3_error_parse(const void *data, size_t length, struct ckpt_s3_error_reply *ret_reply);

/* Empties a message that quotes what the request was signed with. The parser calls it. */
void ckpt_s3_error_conceal(struct ckpt_s3_error_reply *reply);

#endif
