/* SPDX-License-Identifier: Apache-2.0 */
/* Writing pieces of JSON. */
#include "format/json_put.h"

#include <ckpt/version.h>
#include <string.h>

#include "base/utf8.h"

#define U64_DIGITS 20
#define LINE_MAX   1024

void ckpt_put_u64(struct ckpt_buf *out, uint64_t value)
{
	char digits[U64_DIGITS];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value > 0);
	ckpt_buf_put(out, digits + at, sizeof(digits) - at);
}

void ckpt_put_name(struct ckpt_buf *out, const char *name)
{
	size_t length = 0;

	for (unsigned char c; (c = (unsigned char)name[length]); length++) {
		if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') {
			ckpt_buf_put_json(out, name);
			return;
		}
	}
	ckpt_buf_put(out, "\"", 1);
	ckpt_buf_put(out, name, length);
	ckpt_buf_put(out, "\"", 1);
}

void ckpt_put_dims(struct ckpt_buf *out, const int64_t *dims, size_t count)
{
	ckpt_buf_put(out, "[", 1);
	for (size_t i = 0; i < count; i++) {
		CKPT_ASSERT(dims[i] >= 0);
		if (i > 0)
			ckpt_buf_put(out, ",", 1);
		ckpt_put_u64(out, (uint64_t)dims[i]);
	}
	ckpt_buf_put(out, "]", 1);
}

void ckpt_put_line(struct ckpt_buf *out, const char *text, size_t size)
{
	char line[LINE_MAX];
	size_t length = strnlen(text, size - 1);

	CKPT_ASSERT(size > 0 && size <= sizeof(line));
	memcpy(line, text, length);
	line[length] = 0;
	ckpt_utf8_line(line);
	ckpt_buf_put_json(out, line);
}

void ckpt_put_head_major(struct ckpt_buf *out, const char *kind, unsigned major)
{
	ckpt_buf_printf(out, "{\"format\":[%u,%d],\"kind\":\"%s\"", major, CKPT_FORMAT_MINOR, kind);
}

void ckpt_put_head(struct ckpt_buf *out, const char *kind)
{
	ckpt_put_head_major(out, kind, CKPT_FORMAT_MAJOR);
}
