/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Percent-encoding for SigV4: A-Z a-z 0-9 - . _ ~ stay, every other byte becomes %XX in upper case. S3 encodes a key
 * once; the signed and the sent text are the same.
 */
#ifndef CKPT_S3_ESCAPE_H
#define CKPT_S3_ESCAPE_H

#include "base/buf.h"

/* For a path: '/' is not encoded. */
void ckpt_s3_escape_path(struct ckpt_buf *out, const char *text);
/* For the name or value of a query parameter. */
void ckpt_s3_escape(struct ckpt_buf *out, const char *text, size_t length);

/*
 * Decodes in place; returns the new length. The result may contain NUL bytes. False, with the text unchanged, if a '%'
 * is not followed by two hexadecimal digits. `plus`: a '+' means a space, as in listings with encoding-type=url.
 */
bool ckpt_s3_unescape(char *text, size_t length, bool plus, size_t *ret_length);

#endif
