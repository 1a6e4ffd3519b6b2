/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded parser of XML in memory, over expat, for responses of servers. Namespaces are ignored. A document type is
 * refused, so that only XML's own entities exist. Freed memory contains nothing of the text.
 */
#ifndef CKPT_S3_XML_H
#define CKPT_S3_XML_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_XML_BYTES_MAX    (UINT64_C(16) << 20)
#define CKPT_S3_XML_DEPTH_MAX    16
#define CKPT_S3_XML_PATH_MAX     256 /* of names, joined by slashes */
#define CKPT_S3_XML_TEXT_MAX     32768
#define CKPT_S3_XML_ELEMENTS_MAX 200000

/* Paths consist of names without prefixes, from the root: "ListPartsResult/Part/ETag". */
struct ckpt_s3_xml_calls {
	/* Start of an element; NULL: ignored. Returns 0, or a negative code with a message, which ends parsing. */
	int (*begin)(void *user, const char *path);
	/* End of an element. `text` is its text, after the last child if it has any, NUL-terminated. */
	int (*end)(void *user, const char *path, const char *text, size_t length);
};

/*
 * Parses `length` bytes at `data`. `file` names the request in messages. 0; the code of a callback; CKPT_EFORMAT with
 * the offset; -ENOMEM.
 */
int ckpt_s3_xml_read(const void *data, size_t length, const char *file,
	const struct ckpt_s3_xml_calls *calls, void *user, struct ckpt_error *err);
/* -ENOMEM, with a message about the response to `file`. */
int ckpt_s3_xml_no_memory(struct ckpt_error *err, const char *file);

#endif
