/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of JSON that several files are made of. Their bytes are part of the format's golden files. */
#ifndef CKPT_FORMAT_JSON_PUT_H
#define CKPT_FORMAT_JSON_PUT_H

#include "base/buf.h"

/* ckpt_buf_printf() of "%llu", which is too slow for a hundred thousand numbers. */
void ckpt_put_u64(struct ckpt_buf *out, uint64_t value);
/* ckpt_buf_put_json(), for names, which are plain ASCII nearly always. */
void ckpt_put_name(struct ckpt_buf *out, const char *name);
/* [1,2,3] */
void ckpt_put_dims(struct ckpt_buf *out, const int64_t *dims, size_t count);
/*
 * A string of at most `size` - 1 bytes, size <= 1024, as one printable line: what a message or a host
 * name holds in control bytes or broken UTF-8 becomes '?', so that it is not longer when read back.
 */
void ckpt_put_line(struct ckpt_buf *out, const char *text, size_t size);
/* {"format":[1,0],"kind":"KIND": how every sealed file begins. */
void ckpt_put_head(struct ckpt_buf *out, const char *kind);

#endif
