/* SPDX-License-Identifier: Apache-2.0 */
/* Percent-encoding. */
#include "s3/escape.h"

#include <string.h>

static bool unreserved(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '.' || c == '_' || c == '~';
}

static void escape(struct ckpt_buf *out, const char *text, size_t length, bool path)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t run = 0; /* the bytes from here on are copied unchanged */

	for (size_t at = 0; at < length; at++) {
		unsigned char c = (unsigned char)text[at];
		char code[3] = {'%', digits[c >> 4], digits[c & 15]};

		if (unreserved(c) || (path && c == '/'))
			continue;
		ckpt_buf_put(out, text + run, at - run);
		ckpt_buf_put(out, code, sizeof(code));
		run = at + 1;
	}
	ckpt_buf_put(out, text + run, length - run);
}

void ckpt_s3_escape_path(struct ckpt_buf *out, const char *text)
{
	escape(out, text, strlen(text), true);
}

void ckpt_s3_escape(struct ckpt_buf *out, const char *text, size_t length)
{
	escape(out, text, length, false);
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Whether the '%' at `at` begins an escape. */
static bool escaped(const char *text, size_t length, size_t at)
{
	return length - at >= 3 && hex(text[at + 1]) >= 0 && hex(text[at + 2]) >= 0;
}

bool ckpt_s3_unescape(char *text, size_t length, bool plus, size_t *ret_length)
{
	size_t to = 0;

	for (size_t at = 0; at < length; at++) {
		if (text[at] == '%' && !escaped(text, length, at))
			return false;
	}
	for (size_t at = 0; at < length; at++) {
		char c = text[at];

		if (c == '%') {
			c = (char)(hex(text[at + 1]) << 4 | hex(text[at + 2]));
			at += 2;
		} else if (plus && c == '+') {
			c = ' ';
		}
		text[to++] = c;
	}
	*ret_length = to;
	return true;
}
