/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors of a shard are the rounding of which: 16-bit weights and their fp32 master weights. Found by the bytes: an
 * fp32 tensor with as many elements, which gives the same 16 bits at all sampled places. Names only decide between several.
 * Then the weights need not be stored. An error costs space and nothing else.
 */
#ifndef CKPT_ENGINE_SAVE_MASTERS_H
#define CKPT_ENGINE_SAVE_MASTERS_H

#include "engine/shard/chunk_encode.h"

struct ckpt_master_candidate;

struct ckpt_masters {
	uint64_t *of; /* by entry, see ckpt_chunk_source; 0 before they are found */
	bool *waiting; /* by block: chunks that end in it may have masters, and are encoded once these are found */
	struct ckpt_master_candidate *tensors; /* fp32 tensors, by size */
	size_t tensor_count;
	size_t *weights; /* entries of 16 bits; an fp32 tensor has as many elements */
	size_t weight_count;
};

/* *ret_masters is NULL if no tensor can have a master. -ENOMEM. */
int ckpt_masters_new(
	const struct ckpt_layout *layout, uint32_t block_bytes, struct ckpt_masters **ret_masters);
/* NULL is ignored. */
void ckpt_masters_free(struct ckpt_masters *masters);

/* Finds them, of a shard that is whole in memory. Any thread. */
void ckpt_masters_find(struct ckpt_masters *masters, const struct ckpt_chunk_source *source);

#endif
