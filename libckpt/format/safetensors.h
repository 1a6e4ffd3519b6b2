/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file, the format of every plain shard. */
#ifndef CKPT_FORMAT_SAFETENSORS_H
#define CKPT_FORMAT_SAFETENSORS_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "format/layout.h"

/*
 * Appends the header: its length, JSON with the entries in order, and spaces up to a multiple of CKPT_HEADER_ALIGN.
 * Uses name, dtype, shape and nbytes of the entries. -ENOMEM; -E2BIG: longer than readers of safetensors accept.
 */
int ckpt_safetensors_encode(
	const struct ckpt_layout *layout, struct ckpt_buf *out, struct ckpt_error *err);

/*
 * Compares a header with the layout: names, order, types, shapes, offsets. CKPT_EFORMAT, with the tensor, if they
 * differ.
 */
int ckpt_safetensors_check(const struct ckpt_layout *layout, const void *header, size_t length,
	const char *file, struct ckpt_error *err);

#endif
