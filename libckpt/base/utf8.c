/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and repairs UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#include "base/utf8.h"

#include <string.h>

static bool is_tail(unsigned char byte)
{
	return (byte & 0xc0) == 0x80;
}

/* The range of the second byte excludes overlong forms, surrogates and too large values. */
static bool second_fits(unsigned char first, unsigned char second)
{
	switch (first) {
	case 0xe0:
		return second >= 0xa0 && second <= 0xbf;
	case 0xed:
		return second >= 0x80 && second <= 0x9f;
	case 0xf0:
		return second >= 0x90 && second <= 0xbf;
	case 0xf4:
		return second >= 0x80 && second <= 0x8f;
	default:
		return is_tail(second);
	}
}

size_t ckpt_utf8_char(const char *text, size_t left)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t want;

	if (left == 0)
		return 0;
	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return 0;
	want = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	if (left < want || !second_fits(p[0], p[1]))
		return 0;
	for (size_t i = 2; i < want; i++) {
		if (!is_tail(p[i]))
			return 0;
	}
	return want;
}

size_t ckpt_utf8_cut(const char *text, size_t len, size_t max)
{
	size_t cut = max;

	if (len <= max)
		return len;
	/* No character has more than four bytes: longer sequences are invalid, and may be cut anywhere. */
	while (cut > 0 && max - cut < 4 && is_tail((unsigned char)text[cut]))
		cut--;
	return max - cut < 4 ? cut : max;
}

/* Whether a line may contain the character at `text`, whose length is returned; at least 1. */
static bool printable(const char *text, size_t left, size_t *ret_bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t n = ckpt_utf8_char(text, left);

	*ret_bytes = n > 0 ? n : 1;
	if (n == 1)
		return p[0] >= 0x20 && p[0] != 0x7f;
	/* U+0080 to U+009F: terminals interpret some of them. */
	return n > 0 && !(n == 2 && p[0] == 0xc2 && p[1] < 0xa0);
}

bool ckpt_utf8_is_line(const char *text)
{
	size_t left = strlen(text);

	for (size_t n; left > 0; text += n, left -= n) {
		if (!printable(text, left, &n))
			return false;
	}
	return true;
}

void ckpt_utf8_line(char *text)
{
	size_t left = strlen(text);

	for (size_t n; left > 0; text += n, left -= n) {
		if (!printable(text, left, &n))
			memset(text, '?', n);
	}
}
