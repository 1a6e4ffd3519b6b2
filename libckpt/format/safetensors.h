/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file, which every plain shard is. */
#ifndef CKPT_FORMAT_SAFETENSORS_H
#define CKPT_FORMAT_SAFETENSORS_H

#include <ckpt/error.h>
#include "base/buf.h"
#include "format/layout.h"

/*
 * Appends the header: its length, its JSON with the entries in their order, and spaces up to a multiple
 * of CKPT_HEADER_ALIGN. Reads name, dtype, shape and nbytes of the entries. -ENOMEM; -E2BIG: longer than
 * safetensors' readers accept.
 */
int ckpt_safetensors_encode(
	const struct ckpt_layout *layout, struct ckpt_buf *out, struct ckpt_error *err);

/*
 * Whether a header says what the layout says: the same names in the same order, types, shapes, offsets.
 * CKPT_EFORMAT, with the tensor, if not.
 */
int ckpt_safetensors_check(const struct ckpt_layout *layout, const void *header, size_t length,
	const char *file, struct ckpt_error *err);

#endif
