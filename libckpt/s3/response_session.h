/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in responses of STS: AssumeRole, AssumeRoleWithWebIdentity. */
#ifndef CKPT_S3_RESPONSE_SESSION_H
#define CKPT_S3_RESPONSE_SESSION_H

#include <ckpt/error.h>
#include "base/compiler.h"

struct ckpt_s3_session {
	char access[129];
	char secret[256];
	char *token;
	uint64_t expires_s; /* Unix time */
};

/* 0, CKPT_EFORMAT or -ENOMEM, with a message that contains nothing of the keys. `file` names the request. */
int ckpt_s3_session_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_session *ret_session);
/* Clears the keys. */
void ckpt_s3_session_clear(struct ckpt_s3_session *session);

#endif
