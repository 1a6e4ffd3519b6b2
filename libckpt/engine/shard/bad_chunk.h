/* SPDX-License-Identifier: Apache-2.0 */
/* The words for bytes of a shard that are not what was written. */
#ifndef CKPT_ENGINE_SHARD_BAD_CHUNK_H
#define CKPT_ENGINE_SHARD_BAD_CHUNK_H

#include <ckpt/error.h>
#include "format/layout.h"
#include "store/store.h"

/* The tensor that a byte of the shard belongs to; NULL: the header. */
const char *ckpt_bad_chunk_tensor(const struct ckpt_layout *layout, uint64_t offset);
/* Records in `err` that a chunk of a shard differs from its digest. */
int ckpt_bad_chunk_fail(struct ckpt_error *err, const struct ckpt_layout *layout, size_t chunk,
	const char *file, const struct ckpt_store *store);
/* The same of what a base of the shard, `file`, has of the chunk: step `step` is decoded with it. */
int ckpt_bad_chunk_fail_base(struct ckpt_error *err, const struct ckpt_layout *layout, size_t chunk,
	const char *file, const struct ckpt_store *store, uint64_t step);

#endif
