/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ~/.aws/config and ~/.aws/credentials, as the AWS command line reads them: sections, "name = value", values that
 * continue in indented lines, and an empty value followed by nested "name = value" lines:
 *
 *
 *
 *
 *
 *
 * A comment has its own line: after a value '#' is part of the value. If a name occurs twice, the last one counts.
 */
#ifndef CKPT_S3_INI_H
#define CKPT_S3_INI_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_INI_MAX      (1u << 20) /* most bytes of a file */
#define CKPT_S3_INI_LINE_MAX 32768u
#define CKPT_S3_INI_ENTRIES  16384u /* most sections and names */

struct ckpt_s3_ini_entry {
	const char *section; /* "default", "profile train": one blank, no quotes */
	const char *parent;  /* "s3" for a nested name; else NULL */
	const char *name;    /* in lower case; NULL: the section itself */
	const char *value;
};

/* Zero is an empty file. */
struct ckpt_s3_ini {
	char *text; /* entries point into it; it may contain keys */
	size_t size;
	struct ckpt_s3_ini_entry *entries;
	size_t count;
	size_t room;
};

/* Copies what it keeps. CKPT_EFORMAT with the number of the line, but nothing of its text. */
int ckpt_s3_ini_parse(const char *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_ini *ret_ini);
bool ckpt_s3_ini_has(const struct ckpt_s3_ini *ini, const char *section);
/* `parent` NULL: not nested. Returns NULL if there is none, or it is empty. */
const char *ckpt_s3_ini_get(
	const struct ckpt_s3_ini *ini, const char *section, const char *parent, const char *name);
/* Clears and frees the memory. */
void ckpt_s3_ini_clear(struct ckpt_s3_ini *ini);

#endif
