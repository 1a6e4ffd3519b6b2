/* SPDX-License-Identifier: Apache-2.0 */
/* JSON fragments that several files share. Golden files contain their bytes. */
#ifndef CKPT_FORMAT_JSON_PUT_H
#define CKPT_FORMAT_JSON_PUT_H

#include "base/buf.h"

/* Faster than ckpt_buf_printf("%llu"), for hundreds of thousands of numbers. */
void ckpt_put_u64(struct ckpt_buf *out, uint64_t value);
/* As ckpt_buf_put_json(), faster for ASCII names. */
void ckpt_put_name(struct ckpt_buf *out, const char *name);
/* [1,2,3] */
void ckpt_put_dims(struct ckpt_buf *out, const int64_t *dims, size_t count);
/*
 * A string of at most `size` - 1 bytes, size <= 1024, as one printable line: control characters and invalid UTF-8
 * become '?', so that it is not longer when it is read back.
 */
void ckpt_put_line(struct ckpt_buf *out, const char *text, size_t size);
/* {"format":[1,0],"kind":"KIND": the begin of every sealed file. */
void ckpt_put_head(struct ckpt_buf *out, const char *kind);
/* The same of a file of major version `major`. */
void ckpt_put_head_major(struct ckpt_buf *out, const char *kind, unsigned major);

#endif
