/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded reader of XML in memory, over expat: what servers answer. Namespaces are ignored. A document
 * type is refused, so that there are no entities but those of XML itself. Nothing of what was read is
 * left behind in freed memory.
 */
#ifndef CKPT_S3_XML_H
#define CKPT_S3_XML_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_XML_BYTES_MAX    (UINT64_C(16) << 20)
#define CKPT_S3_XML_DEPTH_MAX    16
#define CKPT_S3_XML_PATH_MAX     256 /* of names, with slashes between them */
#define CKPT_S3_XML_TEXT_MAX     32768
#define CKPT_S3_XML_ELEMENTS_MAX 200000

/* Paths are of names without their prefixes, from the root: "ListPartsResult/Part/ETag". */
struct ckpt_s3_xml_calls {
	/* An element begins. NULL: nothing to do. 0, or a negative code, worded, which ends it all. */
	int (*begin)(void *user, const char *path);
	/* It ends. `text` is what stands in it, of one with children what is behind the last; with a NUL. */
	int (*end)(void *user, const char *path, const char *text, size_t length);
};

/*
 * Reads `length` bytes at `data`. `file` is for messages: what was asked. 0; the code of a callback;
 * CKPT_EFORMAT with the offset; -ENOMEM.
 */
int ckpt_s3_xml_read(const void *data, size_t length, const char *file,
	const struct ckpt_s3_xml_calls *calls, void *user, struct ckpt_error *err);
/* -ENOMEM, worded as of an answer to `file`. */
int ckpt_s3_xml_no_memory(struct ckpt_error *err, const char *file);

#endif
