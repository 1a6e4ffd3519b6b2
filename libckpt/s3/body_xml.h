/* SPDX-License-Identifier: Apache-2.0 */
/* XML bodies of requests. */
#ifndef CKPT_S3_BODY_XML_H
#define CKPT_S3_BODY_XML_H

#include "base/buf.h"
#include "s3/response_parts.h"

#define CKPT_S3_DELETE_MAX 1000 /* most keys of one request */

/*
 * Whether XML 1.0 can contain `text`: UTF-8 without most control characters, U+FFFE and U+FFFF. Other keys are deleted
 * one by one.
 */
bool ckpt_s3_xml_holds(const char *text);
/* Appends escaped text. Whitespace that a parser would change is escaped, too. */
void ckpt_s3_xml_put(struct ckpt_buf *out, const char *text);

/* CompleteMultipartUpload, with the parts in order, and their checksums if they have any. */
void ckpt_s3_body_complete(const struct ckpt_s3_part *parts, size_t count, struct ckpt_buf *out);
/*
 * DeleteObjects in quiet mode, whose response lists only failures. ckpt_s3_xml_holds() every key; at most
 * CKPT_S3_DELETE_MAX.
 */
void ckpt_s3_body_delete(const char *const *keys, size_t count, struct ckpt_buf *out);

#endif
