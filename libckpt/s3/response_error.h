/* SPDX-License-Identifier: Apache-2.0 */
/* What a server says when it refuses: <Error>, of S3 or of STS. */
#ifndef CKPT_S3_RESPONSE_ERROR_H
#define CKPT_S3_RESPONSE_ERROR_H

#include "base/compiler.h"

/* Lines of printable UTF-8, cut to what fits; "" what it does not say. */
struct ckpt_s3_error_reply {
	char code[64];
	char message[512]; /* nothing of a signature or token */
	char request_id[128];
	char host_id[128];
	char region[64];
	char endpoint[256];
	char bucket[256];
	char key[256]; /* of one object of several */
};

/*
 * Whether that is one: an answer of another kind is passed over at its first element. Also the bodies of
 * answers of 200 are to be looked at: CompleteMultipartUpload and CopyObject may fail so.
 */
bool ckpt_s3_error_parse(const void *data, size_t length, struct ckpt_s3_error_reply *ret_reply);

/* A message that quotes what the request was signed with becomes empty; done by the parser. */
void ckpt_s3_error_conceal(struct ckpt_s3_error_reply *reply);

#endif
