/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files ~/.aws/config and ~/.aws/credentials, as the AWS command line reads them: sections, "name = value",
 * values that go on in indented lines, and an empty value followed by indented "name = value" lines of its own:
 *
 *	[profile train]
 *	region = eu-west-1
 *	s3 =
 *	  addressing_style = path
 *
 * A comment has a line of its own: behind a value '#' is part of the value. What comes twice: the last counts.
 */
#ifndef CKPT_S3_INI_H
#define CKPT_S3_INI_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_INI_MAX      (1u << 20) /* bytes of a file */
#define CKPT_S3_INI_LINE_MAX 32768u
#define CKPT_S3_INI_ENTRIES  16384u /* sections and names */

struct ckpt_s3_ini_entry {
	const char *section; /* "default", "profile train": one blank, no quotes */
	const char *parent;  /* "s3" where the name is nested; else NULL */
	const char *name;    /* in lower case; NULL: the section itself */
	const char *value;
};

/* Zero is an empty file. */
struct ckpt_s3_ini {
	char *text; /* what entries point into; it may hold keys */
	size_t size;
	struct ckpt_s3_ini_entry *entries;
	size_t count;
	size_t room;
};

/* Copies what it keeps. CKPT_EFORMAT with the line, and nothing of what stands there. */
int ckpt_s3_ini_parse(const char *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_s3_ini *ret_ini);
bool ckpt_s3_ini_has(const struct ckpt_s3_ini *ini, const char *section);
/* `parent` NULL: not nested. NULL: there is none, or it is empty. */
const char *ckpt_s3_ini_get(
	const struct ckpt_s3_ini *ini, const char *section, const char *parent, const char *name);
/* Clears the memory and frees it. */
void ckpt_s3_ini_clear(struct ckpt_s3_ini *ini);

#endif
