/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors of a shard are the rounding of which: 16-bit weights and their fp32 master weights. Found by the bytes: an
 * fp32 tensor with as many elements, which gives the same 16 bits at all sampled places. Names only decide between several.
 * Then the weights need not be stored. An error costs space and nothing else.
 */
#ifndef CKPT_ENGINE_SAVE_MASTERS_H
#define CKPT_ENGINE_SAVE_MASTERS_H

#include <stdatomic.h>
#include "engine/shard/chunk_encode.h"

struct ckpt_master_candidate;

struct ckpt_masters {
	uint64_t *of; /* by entry, see ckpt_chunk_source; 0 before they are found */
	bool *waiting; /* by block: chunks that end in it may have masters, and are encoded once these are found */
	/* fp32 tensors, by size; then by size and samples, rounded to bf16, and to f16 if weights are of that type. */
	struct ckpt_master_candidate *tensors[2];
	size_t tensor_count;
	size_t *weights; /* entries of 16 bits; an fp32 tensor has as many elements */
	size_t weight_count;
	uint64_t compared; /* tensors whose samples were compared with those of a weight */
};

/*
 * Lists what may be a master and what may have one, any thread. It takes a while for many tensors. *ret_masters is NULL if
 * no tensor can have a master. -ENOMEM. -ECANCELED: it was stopped.
 */
int ckpt_masters_new(const struct ckpt_layout *layout, uint32_t block_bytes,
	const atomic_bool *stopped, struct ckpt_masters **ret_masters);
/* NULL is ignored. */
void ckpt_masters_free(struct ckpt_masters *masters);

/* Finds them, of a shard that is whole in memory; once. Any thread. It ends soon after it is stopped, with some or none. */
void ckpt_masters_find(struct ckpt_masters *masters, const struct ckpt_chunk_source *source,
	const atomic_bool *stopped);

#endif
