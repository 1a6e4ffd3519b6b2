/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer, for building small files in memory. */
#ifndef CKPT_BASE_BUF_H
#define CKPT_BASE_BUF_H

#include "base/compiler.h"

/* Zero is an empty buffer. A failed append marks it: check `failed` once, at the end. */
struct ckpt_buf {
	char *data;
	size_t len;
	size_t cap;
	bool failed;
};

void ckpt_buf_free(struct ckpt_buf *buf);
/* Makes room, so that appending `more` bytes does not fail. */
void ckpt_buf_reserve(struct ckpt_buf *buf, size_t more);
void ckpt_buf_put(struct ckpt_buf *buf, const void *data, size_t len);
void ckpt_buf_puts(struct ckpt_buf *buf, const char *text);
void ckpt_buf_fill(struct ckpt_buf *buf, char byte, size_t count);
CKPT_PRINTF(2, 3) void ckpt_buf_printf(struct ckpt_buf *buf, const char *fmt, ...);
void ckpt_buf_put_le32(struct ckpt_buf *buf, uint32_t value);
void ckpt_buf_put_le64(struct ckpt_buf *buf, uint64_t value);
/* A JSON string with its quotes. Invalid UTF-8 becomes U+FFFD. */
void ckpt_buf_put_json(struct ckpt_buf *buf, const char *text);

#endif
