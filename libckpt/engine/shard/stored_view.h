/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of an encoded shard, for who copies it as it is: laid out like a shard, whose chunks are the stored bytes of
 * each chunk, the table, and what lies between. Pure.
 */
#ifndef CKPT_ENGINE_SHARD_STORED_VIEW_H
#define CKPT_ENGINE_SHARD_STORED_VIEW_H

#include "engine/shard/chunkset.h"
#include "format/encoded.h"

struct ckpt_stored_view {
	struct ckpt_layout *
		layout; /* of the file. Its entries have the names of the tensors of the shard's layout */
	struct ckpt_chunkset gaps; /* chunks that nothing is said of: a copy has zeros there */
};

/*
 * `end` is the file from encoded->table_offset on. CKPT_EFORMAT: stored chunks overlap. -ENOMEM. The view is empty
 * after a failure.
 */
int ckpt_stored_view_build(struct ckpt_stored_view *view, const struct ckpt_encoded *encoded,
	const struct ckpt_layout *layout, const void *end, uint64_t file_bytes, const char *file,
	struct ckpt_error *err);
void ckpt_stored_view_clear(struct ckpt_stored_view *view);

#endif
