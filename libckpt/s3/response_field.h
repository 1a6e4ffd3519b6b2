/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and stores one element of a response. Invalid values are CKPT_EFORMAT, with a message. */
#ifndef CKPT_S3_RESPONSE_FIELD_H
#define CKPT_S3_RESPONSE_FIELD_H

#include "s3/xml.h"

/* An element, as passed to ckpt_s3_xml_calls.end. */
struct ckpt_s3_field {
	const char *file; /* request, for messages */
	struct ckpt_error *err;
	const char *path;
	const char *text;
	size_t length;
};

CKPT_PRINTF(2, 3) int ckpt_s3_field_fail(const struct ckpt_s3_field *field, const char *fmt, ...);

/* Whether the field is `name` and occurs for the first time. */
bool ckpt_s3_field_is(const struct ckpt_s3_field *field, const char *path);

/* One printable line that fits. */
int ckpt_s3_field_line(const struct ckpt_s3_field *field, char *ret_text, size_t size);
/* The same, cut and with replacement characters: for messages. Never fails. */
void ckpt_s3_field_words(const struct ckpt_s3_field *field, char *ret_text, size_t size);
int ckpt_s3_field_u64(const struct ckpt_s3_field *field, uint64_t max, uint64_t *ret_value);
int ckpt_s3_field_bool(const struct ckpt_s3_field *field, bool *ret_value);
/* A date; 0 if it is invalid. */
void ckpt_s3_field_date(const struct ckpt_s3_field *field, uint64_t *ret_unix_s);
/* A copy, freed with ckpt_free(). Frees the previous *ret_text, which may be NULL. */
int ckpt_s3_field_copy(const struct ckpt_s3_field *field, char **ret_text);

/* Decodes encoding-type=url in place. A key is not empty and contains no NUL. */
int ckpt_s3_field_decode(const char *file, bool encoded, char *key, struct ckpt_error *err);

/* Appends a zeroed item of `size` bytes to an array of `count`; NULL: out of memory, with a message. */
void *ckpt_s3_field_more(
	const struct ckpt_s3_field *field, void **items, size_t count, size_t size);

#endif
