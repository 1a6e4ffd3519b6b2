/* SPDX-License-Identifier: Apache-2.0 */
/* Keys as JSON: what a credential_process prints, and what the metadata services answer. */
#ifndef CKPT_S3_CREDENTIALS_JSON_H
#define CKPT_S3_CREDENTIALS_JSON_H

#include "s3/credentials.h"

enum ckpt_s3_credentials_kind {
	CKPT_S3_CREDENTIALS_PROCESS, /* "Version" must be 1; the token is "SessionToken" */
	CKPT_S3_CREDENTIALS_SERVER, /* "Code", if there is one, must be "Success"; the token is "Token" */
};

/*
 * CKPT_EFORMAT or CKPT_EAUTH, in words about what `whose` gave and with nothing of it. The caller has bounded
 * the text, and clears it. `ret_keys` is clear before.
 */
int ckpt_s3_credentials_json(const char *text, size_t length, enum ckpt_s3_credentials_kind kind,
	const char *whose, struct ckpt_error *err, struct ckpt_s3_credentials *ret_keys);

#endif
