/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of an index, as JSON. */
#ifndef CKPT_FORMAT_INDEX_TENSORS_H
#define CKPT_FORMAT_INDEX_TENSORS_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "format/layout.h"

/* Appends {"tensors":[...],"aliases":[...]}. */
void ckpt_index_put_tensors(struct ckpt_buf *out, const struct ckpt_layout *layout);

/*
 * Decodes entries and aliases into `layout`, whose bytes and header_bytes are set, and checks that they fit a shard of
 * that size: sorted, without gaps, each name once. `base` is the offset of `text` in `file`. CKPT_EFORMAT, -ENOMEM;
 * ckpt_layout_free() frees what was stored before.
 */
int ckpt_index_read_tensors(struct ckpt_layout *layout, const char *text, size_t length,
	uint64_t base, const char *file, struct ckpt_error *err);

#endif
