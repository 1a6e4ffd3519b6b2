/* SPDX-License-Identifier: Apache-2.0 */
/* A strict JSON parser. */
#include "base/json_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

#define KEY_MAX 32 /* longer than any known name */

void ckpt_reader_init(struct ckpt_reader *r, const char *text, size_t length, uint64_t base,
	const char *file, struct ckpt_error *err)
{
	CKPT_ASSERT(text);
	*r = (struct ckpt_reader){.text = text,
		.at = text,
		.end = text + length,
		.file = file,
		.base = base,
		.err = err};
}

bool ckpt_reader_fail(struct ckpt_reader *r, const char *fmt, ...)
{
	uint64_t offset = r->base + (uint64_t)(r->at - r->text);
	struct ckpt_where where = {.file = r->file, .has_offset = true, .offset = offset};
	char why[512];
	va_list args;

	if (r->failed)
		return false;
	r->failed = true;
	va_start(args, fmt);
	if (vsnprintf(why, sizeof(why), fmt, args) < 0)
		why[0] = 0;
	va_end(args);
	(void)ckpt_fail_at(r->err, CKPT_EFORMAT, &where, "%s is malformed at byte %llu: %s",
		r->file, (unsigned long long)offset, why);
	return false;
}

char ckpt_reader_peek(struct ckpt_reader *r)
{
	while (r->at < r->end &&
		(*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
		r->at++;
	return (char)(r->at < r->end ? *r->at : 0);
}

bool ckpt_reader_take(struct ckpt_reader *r, char c)
{
	if (r->failed)
		return false;
	if (ckpt_reader_peek(r) != c || r->at == r->end)
		return ckpt_reader_fail(r, "'%c' is missing", c);
	r->at++;
	return true;
}

bool ckpt_reader_open(struct ckpt_reader *r, char bracket)
{
	CKPT_ASSERT(bracket == '{' || bracket == '[');
	r->fresh = ckpt_reader_take(r, bracket);
	return r->fresh;
}

/* Takes the closing bracket, or the comma before the next item; false if there is no next one. */
static bool more(struct ckpt_reader *r, char closing)
{
	if (r->failed)
		return false;
	if (ckpt_reader_peek(r) == closing) {
		r->at++;
		r->fresh = false;
		return false;
	}
	if (!r->fresh && !ckpt_reader_take(r, ','))
		return false;
	r->fresh = false;
	return true;
}

bool ckpt_reader_item(struct ckpt_reader *r)
{
	return more(r, ']');
}

bool ckpt_reader_key(struct ckpt_reader *r, struct ckpt_reader_string *key)
{
	return more(r, '}') && ckpt_reader_string(r, key) && ckpt_reader_take(r, ':');
}

int ckpt_reader_member(struct ckpt_reader *r, const char *const *names, uint32_t *seen)
{
	char text[KEY_MAX];
	struct ckpt_reader_string key = {.out = text, .size = sizeof(text)};

	if (!ckpt_reader_key(r, &key))
		return CKPT_READER_END;
	if (key.cut || key.nul)
		return CKPT_READER_OTHER;
	for (int i = 0; names[i]; i++) {
		if (strlen(names[i]) != key.length || memcmp(names[i], text, key.length) != 0)
			continue;
		if (*seen & UINT32_C(1) << i) {
			(void)ckpt_reader_fail(r, "\"%s\" occurs twice", names[i]);
			return CKPT_READER_END;
		}
		*seen |= UINT32_C(1) << i;
		return i;
	}
	return CKPT_READER_OTHER;
}

/* Strings. */

static void store(struct ckpt_reader_string *s, const char *bytes, size_t count)
{
	if (!s->out || s->cut)
		return;
	if (count > s->size - s->length) {
		s->cut = true;
		return;
	}
	memcpy(s->out + s->length, bytes, count);
	s->length += count;
}

static void store_code(struct ckpt_reader_string *s, uint32_t code)
{
	char bytes[4];
	size_t count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};

	for (size_t i = count - 1; i > 0; i--) {
		bytes[i] = (char)(0x80 | (code & 0x3f));
		code >>= 6;
	}
	bytes[0] = (char)(marks[count] | code);
	store(s, bytes, count);
}

/* The value of the four hex digits at `at`; -1 if they are invalid. */
static int hex4(const char *at, const char *end)
{
	int code = 0;

	if (end - at < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		char c = at[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;
		if (digit < 0)
			return -1;
		code = code << 4 | digit;
	}
	return code;
}

/* At the 'u' of an escape. A pair of surrogates is one character. */
static bool escaped_code(struct ckpt_reader *r, struct ckpt_reader_string *s)
{
	int code = hex4(r->at + 1, r->end);
	int low = -1;

	if (code < 0)
		return ckpt_reader_fail(r, "\\u is not followed by four hexadecimal digits");
	r->at += 5;
	if (code >= 0xd800 && code < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' &&
		r->at[1] == 'u')
		low = hex4(r->at + 2, r->end);
	if (low >= 0xdc00 && low < 0xe000) {
		r->at += 6;
		store_code(
			s, 0x10000 + ((uint32_t)(code - 0xd800) << 10) + (uint32_t)(low - 0xdc00));
		return true;
	}
	if (code >= 0xd800 && code < 0xe000)
		return ckpt_reader_fail(r, "a string contains half a surrogate pair");
	if (code == 0) {
		s->nul = true;
		return true;
	}
	store_code(s, (uint32_t)code);
	return true;
}

/* At the character after a backslash. */
static bool escaped(struct ckpt_reader *r, struct ckpt_reader_string *s)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *found;

	if (r->at == r->end)
		return ckpt_reader_fail(r, "a string has no end");
	if (*r->at == 'u')
		return escaped_code(r, s);
	found = memchr(from, *r->at, sizeof(from) - 1);
	if (!found)
		return ckpt_reader_fail(r, "a string contains an invalid escape");
	store(s, to + (found - from), 1);
	r->at++;
	return true;
}

/* Copies as many unescaped bytes as there are. */
static bool plain(struct ckpt_reader *r, struct ckpt_reader_string *s)
{
	const char *start = r->at;

	while (r->at < r->end && *r->at != '"' && *r->at != '\\') {
		unsigned char c = (unsigned char)*r->at;
		size_t count = 1;

		if (c < 0x20)
			return ckpt_reader_fail(r, "a string contains the control byte 0x%02x", c);
		if (c >= 0x80)
			count = ckpt_utf8_char(r->at, (size_t)(r->end - r->at));
		if (count == 0)
			return ckpt_reader_fail(r, "a string is not UTF-8");
		r->at += count;
	}
	store(s, start, (size_t)(r->at - start));
	return true;
}

bool ckpt_reader_string(struct ckpt_reader *r, struct ckpt_reader_string *string)
{
	if (!ckpt_reader_take(r, '"'))
		return false;
	for (;;) {
		if (!plain(r, string))
			return false;
		if (r->at == r->end)
			return ckpt_reader_fail(r, "a string has no end");
		r->at++;
		if (r->at[-1] == '"')
			return true;
		if (!escaped(r, string))
			return false;
	}
}

bool ckpt_reader_text(struct ckpt_reader *r, char *out, size_t size, size_t *ret_length)
{
	struct ckpt_reader_string s = {.out = out, .size = size - 1};

	CKPT_ASSERT(size > 0);
	if (!ckpt_reader_string(r, &s))
		return false;
	if (s.nul)
		return ckpt_reader_fail(r, "a string contains a NUL");
	if (s.cut)
		return ckpt_reader_fail(r, "a string of more than %zu bytes", size - 1);
	out[s.length] = 0;
	if (ret_length)
		*ret_length = s.length;
	return true;
}

/* Numbers and literals. */

static bool digit(const struct ckpt_reader *r)
{
	return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static bool one_of(const struct ckpt_reader *r, const char *set)
{
	return r->at < r->end && *r->at != 0 && strchr(set, *r->at);
}

static bool digits(struct ckpt_reader *r)
{
	if (!digit(r))
		return ckpt_reader_fail(r, "a digit is missing");
	while (digit(r))
		r->at++;
	return true;
}

bool ckpt_reader_u64(struct ckpt_reader *r, uint64_t *ret_value)
{
	uint64_t value = 0;
	const char *start;

	if (r->failed)
		return false;
	(void)ckpt_reader_peek(r);
	start = r->at;
	if (!digit(r))
		return ckpt_reader_fail(r, "a whole number is missing");
	while (digit(r)) {
		uint64_t next = (uint64_t)(*r->at - '0');

		if (value > (INT64_MAX - next) / 10)
			return ckpt_reader_fail(r, "a number is greater than 2^63-1");
		value = value * 10 + next;
		r->at++;
	}
	if (r->at - start > 1 && *start == '0')
		return ckpt_reader_fail(r, "a number begins with 0");
	if (one_of(r, ".eE"))
		return ckpt_reader_fail(r, "a number is not whole");
	*ret_value = value;
	return true;
}

static bool number(struct ckpt_reader *r)
{
	if (*r->at == '-')
		r->at++;
	if (digit(r) && *r->at == '0')
		r->at++;
	else if (!digits(r))
		return false;
	if (one_of(r, ".")) {
		r->at++;
		if (!digits(r))
			return false;
	}
	if (one_of(r, "eE")) {
		r->at++;
		if (one_of(r, "+-"))
			r->at++;
		return digits(r);
	}
	return true;
}

bool ckpt_reader_scalar(struct ckpt_reader *r)
{
	static const char *const words[] = {"true", "false", "null"};
	char c;

	if (r->failed)
		return false;
	c = ckpt_reader_peek(r);
	if (c == '-' || (c >= '0' && c <= '9'))
		return number(r);
	for (size_t i = 0; i < CKPT_COUNT(words); i++) {
		size_t length = strlen(words[i]);

		if ((size_t)(r->end - r->at) >= length && memcmp(r->at, words[i], length) == 0) {
			r->at += length;
			return true;
		}
	}
	return ckpt_reader_fail(r, r->at == r->end ? "it ends too early" : "no value of JSON");
}

int ckpt_reader_finish(struct ckpt_reader *r)
{
	if (!r->failed) {
		(void)ckpt_reader_peek(r);
		if (r->at != r->end)
			(void)ckpt_reader_fail(r, "something follows after the end");
	}
	return r->failed ? CKPT_EFORMAT : 0;
}
