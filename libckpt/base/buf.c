/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

#define CAP_MIN 256

void ckpt_buf_free(struct ckpt_buf *buf)
{
	ckpt_free(buf->data);
	*buf = (struct ckpt_buf){0};
}

/* Makes space for `more` bytes after `len`. */
static bool reserve(struct ckpt_buf *buf, size_t more)
{
	size_t need;
	size_t cap;
	char *data;

	if (buf->failed)
		return false;
	if (__builtin_add_overflow(buf->len, more, &need) || need > SIZE_MAX / 2) {
		buf->failed = true;
		return false;
	}
	if (need <= buf->cap)
		return true;
	cap = buf->cap ? buf->cap : CAP_MIN;
	while (cap < need)
		cap *= 2;
	data = ckpt_realloc_array(buf->data, cap, 1);
	if (!data) {
		buf->failed = true;
		return false;
	}
	buf->data = data;
	buf->cap = cap;
	return true;
}

void ckpt_buf_reserve(struct ckpt_buf *buf, size_t more)
{
	(void)reserve(buf, more);
}

void ckpt_buf_put(struct ckpt_buf *buf, const void *data, size_t len)
{
	if (len == 0 || !reserve(buf, len))
		return;
	memcpy(buf->data + buf->len, data, len);
	buf->len += len;
}

void ckpt_buf_puts(struct ckpt_buf *buf, const char *text)
{
	ckpt_buf_put(buf, text, strlen(text));
}

void ckpt_buf_fill(struct ckpt_buf *buf, char byte, size_t count)
{
	if (count == 0 || !reserve(buf, count))
		return;
	memset(buf->data + buf->len, byte, count);
	buf->len += count;
}

void ckpt_buf_printf(struct ckpt_buf *buf, const char *fmt, ...)
{
	va_list args;
	int len;

	va_start(args, fmt);
	len = vsnprintf(NULL, 0, fmt, args);
	va_end(args);
	if (len < 0) {
		buf->failed = true;
		return;
	}
	/* vsnprintf writes a NUL that is not part of the text. */
	if (!reserve(buf, (size_t)len + 1))
		return;
	va_start(args, fmt);
	(void)vsnprintf(buf->data + buf->len, (size_t)len + 1, fmt, args);
	va_end(args);
	buf->len += (size_t)len;
}

void ckpt_buf_put_le32(struct ckpt_buf *buf, uint32_t value)
{
	unsigned char bytes[4];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(value >> (8 * i));
	ckpt_buf_put(buf, bytes, sizeof(bytes));
}

void ckpt_buf_put_le64(struct ckpt_buf *buf, uint64_t value)
{
	unsigned char bytes[8];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(value >> (8 * i));
	ckpt_buf_put(buf, bytes, sizeof(bytes));
}

/* Appends a JSON escape; false if `byte` needs none. */
static bool put_escaped(struct ckpt_buf *buf, unsigned char byte)
{
	static const char names[] = "btnvfr"; /* 0x08 to 0x0d; JSON has no \v */

	if (byte == '"' || byte == '\\')
		ckpt_buf_printf(buf, "\\%c", byte);
	else if (byte >= 0x08 && byte <= 0x0d && byte != 0x0b)
		ckpt_buf_printf(buf, "\\%c", names[byte - 0x08]);
	else if (byte < 0x20)
		ckpt_buf_printf(buf, "\\u%04x", byte);
	else
		return false;
	return true;
}

void ckpt_buf_put_json(struct ckpt_buf *buf, const char *text)
{
	size_t left = strlen(text);
	const char *run = text; /* the bytes from here on are copied unchanged */

	ckpt_buf_put(buf, "\"", 1);
	while (left > 0) {
		size_t n = ckpt_utf8_char(text, left);
		bool plain = n > 1 || (n == 1 && *text != '"' && *text != '\\' &&
					      (unsigned char)*text >= 0x20);

		if (!plain) {
			ckpt_buf_put(buf, run, (size_t)(text - run));
			if (n == 0)
				ckpt_buf_puts(buf, "\xef\xbf\xbd");
			else
				(void)put_escaped(buf, (unsigned char)*text);
			n = 1;
			run = text + 1;
		}
		text += n;
		left -= n;
	}
	ckpt_buf_put(buf, run, (size_t)(text - run));
	ckpt_buf_put(buf, "\"", 1);
}
