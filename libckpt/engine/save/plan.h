/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a save: layout, segments and blocks. It depends on names, types and shapes only, so the
 * next save of the same state takes it over and sets nothing but the pointers.
 */
#ifndef CKPT_ENGINE_SAVE_PLAN_H
#define CKPT_ENGINE_SAVE_PLAN_H

#include "device/device.h"
#include "engine/reshard/blocks.h"

/* Tensor number of the segment that is the shard's header. */
#define CKPT_PLAN_HEADER UINT32_MAX

struct ckpt_plan_block {
	struct ckpt_span span;
	size_t first_segment;
	size_t segment_count;
	bool eager;       /* holds a segment of an eager tensor that was not copied beforehand */
	uint64_t devices; /* a mask of those that its segments are on */
};

struct ckpt_plan {
	struct ckpt_layout *layout;
	struct ckpt_segment *segments; /* in the order of the shard */
	size_t segment_count;
	struct ckpt_plan_block *blocks;
	size_t block_count;
	uint64_t devices;     /* of all blocks */
	size_t *alias_places; /* in the layout, of each alias as it was given */
	uint32_t block_bytes;
	int64_t header_shape;      /* of the header's view */
	uint64_t fingerprint;      /* of the descriptions it was made from */
	struct ckpt_digest digest; /* of the layout's names, types and boxes */
};

/* Words into `err`: what ckpt_layout_build() says, and -ENOMEM. */
int ckpt_plan_build(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, uint64_t chunk_bytes,
	uint32_t block_bytes, struct ckpt_error *err, struct ckpt_plan **ret_plan);
void ckpt_plan_free(struct ckpt_plan *plan);

/* Described alike: same names, types, shapes and aliases, in the same order. */
bool ckpt_plan_fits(const struct ckpt_plan *plan, const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count);

/* Points the segments at these tensors' memory. */
void ckpt_plan_aim(struct ckpt_plan *plan, const struct ckpt_tensor *tensors);

#endif
