/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in JSON: the output of a credential_process, and responses of metadata services. */
#ifndef CKPT_S3_CREDENTIALS_JSON_H
#define CKPT_S3_CREDENTIALS_JSON_H

#include "s3/credentials.h"

enum ckpt_s3_credentials_kind {
	CKPT_S3_CREDENTIALS_PROCESS, /* "Version" must be 1; the token is "SessionToken" */
	/* "Code" must be "Success" if it is there; the token is "Token". */
	CKPT_S3_CREDENTIALS_SERVER,
};

/*
 * CKPT_EFORMAT or CKPT_EAUTH; the message names `whose` but contains nothing of the text. The caller has limited its
 * size, and clears it. `ret_keys` must be empty.
 */
int ckpt_s3_credentials_json(const char *text, size_t length, enum ckpt_s3_credentials_kind kind,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);

#endif
