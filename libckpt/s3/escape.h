/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Percent-encoding as SigV4 wants it: A-Z a-z 0-9 - . _ ~ stay, every other byte becomes %XX in upper
 * case. S3 encodes a key once; what is signed and what is sent are the same text.
 */
#ifndef CKPT_S3_ESCAPE_H
#define CKPT_S3_ESCAPE_H

#include "base/buf.h"

/* For a path: '/' stays too. */
void ckpt_s3_escape_path(struct ckpt_buf *out, const char *text);
/* For the name or the value of a query's parameter. */
void ckpt_s3_escape(struct ckpt_buf *out, const char *text, size_t length);

/*
 * The opposite, in place; returns the new length, which may hold NUL bytes. False, with the text as it
 * was, if a '%' is not followed by two hexadecimal digits. `plus`: a '+' is a space, as in what S3
 * lists with encoding-type=url.
 */
bool ckpt_s3_unescape(char *text, size_t length, bool plus, size_t *ret_length);

#endif
