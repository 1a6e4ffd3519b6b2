/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests that are XML. */
#ifndef CKPT_S3_BODY_XML_H
#define CKPT_S3_BODY_XML_H

#include "base/buf.h"
#include "s3/response_parts.h"

#define CKPT_S3_DELETE_MAX 1000 /* keys of one request */

/*
 * Whether XML 1.0 can hold `text`: UTF-8 without most control characters, U+FFFE and U+FFFF. What it
 * cannot hold is deleted by a request of its own.
 */
bool ckpt_s3_xml_holds(const char *text);
/* What of XML is no text is escaped; so are blanks that a parser would make others of. */
void ckpt_s3_xml_put(struct ckpt_buf *out, const char *text);

/* CompleteMultipartUpload. The parts are there, in order; sums are sent where there are any. */
void ckpt_s3_body_complete(const struct ckpt_s3_part *parts, size_t count, struct ckpt_buf *out);
/* DeleteObjects, which then answers with failures alone. XML holds every key; at most DELETE_MAX. */
void ckpt_s3_body_delete(const char *const *keys, size_t count, struct ckpt_buf *out);

#endif
