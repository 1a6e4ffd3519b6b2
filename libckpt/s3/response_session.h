/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that STS answers with: AssumeRole, AssumeRoleWithWebIdentity. */
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

/* 0, CKPT_EFORMAT or -ENOMEM, with words that hold nothing of them. `file` is what was asked. */
int ckpt_s3_session_parse(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_session *ret_session);
/* Clears what they were. */
void ckpt_s3_session_clear(struct ckpt_s3_session *session);

#endif
