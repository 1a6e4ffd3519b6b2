/* SPDX-License-Identifier: Apache-2.0 */
/* Parses one element of a response. */
#include "s3/response_field.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "s3/date.h"
#include "s3/escape.h"

int ckpt_s3_field_fail(const struct ckpt_s3_field *field, const char *fmt, ...)
{
	struct ckpt_where where = {.tier = "remote", .file = field->file};
	char why[256];
	va_list args;

	va_start(args, fmt);
	if (vsnprintf(why, sizeof(why), fmt, args) < 0)
		why[0] = 0;
	va_end(args);
	return ckpt_fail_at(field->err, CKPT_EFORMAT, &where, "the answer to %s is wrong: %s %s",
		field->file, field->path, why);
}

bool ckpt_s3_field_is(const struct ckpt_s3_field *field, const char *path)
{
	return strcmp(field->path, path) == 0;
}

int ckpt_s3_field_line(const struct ckpt_s3_field *field, char *ret_text, size_t size)
{
	if (field->length >= size)
		return ckpt_s3_field_fail(field, "has more than %zu bytes", size - 1);
	if (!ckpt_utf8_is_line(field->text))
		return ckpt_s3_field_fail(field, "contains control characters");
	memcpy(ret_text, field->text, field->length + 1);
	return 0;
}

void ckpt_s3_field_words(const struct ckpt_s3_field *field, char *ret_text, size_t size)
{
	size_t length = ckpt_utf8_cut(field->text, field->length, size - 1);

	memcpy(ret_text, field->text, length);
	ret_text[length] = 0;
	ckpt_utf8_line(ret_text);
}

int ckpt_s3_field_u64(const struct ckpt_s3_field *field, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (field->length == 0)
		return ckpt_s3_field_fail(field, "is not a number");
	for (size_t i = 0; i < field->length; i++) {
		char c = field->text[i];
		uint64_t digit = (uint64_t)(c - '0');

		if (c < '0' || c > '9')
			return ckpt_s3_field_fail(field, "is not a number");
		if (digit > max || value > (max - digit) / 10)
			return ckpt_s3_field_fail(
				field, "is greater than %llu", (unsigned long long)max);
		value = value * 10 + digit;
	}
	*ret_value = value;
	return 0;
}

int ckpt_s3_field_bool(const struct ckpt_s3_field *field, bool *ret_value)
{
	bool yes = strcmp(field->text, "true") == 0 || strcmp(field->text, "True") == 0;

	if (!yes && strcmp(field->text, "false") != 0 && strcmp(field->text, "False") != 0)
		return ckpt_s3_field_fail(field, "is neither true nor false");
	*ret_value = yes;
	return 0;
}

void ckpt_s3_field_date(const struct ckpt_s3_field *field, uint64_t *ret_unix_s)
{
	if (!ckpt_s3_date_iso(field->text, ret_unix_s))
		*ret_unix_s = 0;
}

int ckpt_s3_field_copy(const struct ckpt_s3_field *field, char **ret_text)
{
	char *text = ckpt_memdup(field->text, field->length + 1);

	if (!text)
		return ckpt_s3_xml_no_memory(field->err, field->file);
	ckpt_free(*ret_text);
	*ret_text = text;
	return 0;
}

int ckpt_s3_field_decode(const char *file, bool encoded, char *key, struct ckpt_error *err)
{
	const struct ckpt_s3_field field = {.file = file, .err = err, .path = "a key"};
	size_t length = strlen(key);

	if (encoded && !ckpt_s3_unescape(key, length, true, &length))
		return ckpt_s3_field_fail(&field, "is not encoded as it claims");
	if (length == 0 || strnlen(key, length) < length)
		return ckpt_s3_field_fail(&field, length ? "holds NUL" : "is empty");
	key[length] = 0;
	return 0;
}

void *ckpt_s3_field_more(const struct ckpt_s3_field *field, void **items, size_t count, size_t size)
{
	void *moved = *items;

	/* Grown at powers of two, because the capacity is not stored. */
	if ((count & (count - 1)) == 0) {
		moved = ckpt_realloc_array(*items, count ? 2 * count : 1, size);
		if (!moved) {
			(void)ckpt_s3_xml_no_memory(field->err, field->file);
			return NULL;
		}
		*items = moved;
	}
	return memset((char *)moved + count * size, 0, size);
}
