/* SPDX-License-Identifier: Apache-2.0 */
/* What one element of an answer says, checked and kept. What does not fit is CKPT_EFORMAT, in words. */
#ifndef CKPT_S3_RESPONSE_FIELD_H
#define CKPT_S3_RESPONSE_FIELD_H

#include "s3/xml.h"

/* An element as ckpt_s3_xml_calls.end gets it. */
struct ckpt_s3_field {
	const char *file; /* what was asked */
	struct ckpt_error *err;
	const char *path;
	const char *text;
	size_t length;
};

CKPT_PRINTF(2, 3) int ckpt_s3_field_fail(const struct ckpt_s3_field *field, const char *fmt, ...);

/* The field is this one: `name` below what has been read so far. */
bool ckpt_s3_field_is(const struct ckpt_s3_field *field, const char *path);

/* One printable line that fits. */
int ckpt_s3_field_line(const struct ckpt_s3_field *field, char *ret_text, size_t size);
/* The same as far as it fits, with what cannot be printed replaced: for people. Never fails. */
void ckpt_s3_field_words(const struct ckpt_s3_field *field, char *ret_text, size_t size);
int ckpt_s3_field_u64(const struct ckpt_s3_field *field, uint64_t max, uint64_t *ret_value);
int ckpt_s3_field_bool(const struct ckpt_s3_field *field, bool *ret_value);
/* A date; 0 where it is none that can be read. */
void ckpt_s3_field_date(const struct ckpt_s3_field *field, uint64_t *ret_unix_s);
/* A copy, freed with ckpt_free(). *ret_text, which may be NULL, is freed. */
int ckpt_s3_field_copy(const struct ckpt_s3_field *field, char **ret_text);

/* Undoes encoding-type=url in place. A key holds no NUL and is not empty. */
int ckpt_s3_field_decode(const char *file, bool encoded, char *key, struct ckpt_error *err);

/* One more item of `size` bytes, zeroed, in an array of `count`; NULL: no memory, which is worded. */
void *ckpt_s3_field_more(
	const struct ckpt_s3_field *field, void **items, size_t count, size_t size);

#endif
