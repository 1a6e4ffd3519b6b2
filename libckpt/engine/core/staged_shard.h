/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a save has left in the slots of the pool. They are anybody's to take, and nothing is kept for it: but as long as
 * nobody has, the bytes of the shard lie there, and need not be read from its file again.
 */
#ifndef CKPT_ENGINE_CORE_STAGED_SHARD_H
#define CKPT_ENGINE_CORE_STAGED_SHARD_H

#include "staging/pool.h"

struct ckpt_staged_shard {
	size_t count;
	struct {
		unsigned slot;
		uint64_t uses; /* of the slot, when it was put back */
	} blocks[];
};

/* Of so many blocks. NULL: no memory. */
struct ckpt_staged_shard *ckpt_staged_shard_new(size_t count);
/* NULL is ignored. */
void ckpt_staged_shard_free(struct ckpt_staged_shard *staged_shard);
/* Takes the slots of `count` blocks, if all are as they were left. They go back soon, and wait for nobody. */
bool ckpt_staged_shard_borrow(const struct ckpt_staged_shard *staged_shard, struct ckpt_pool *pool,
	size_t first, size_t count);
void ckpt_staged_shard_give_back(const struct ckpt_staged_shard *staged_shard,
	struct ckpt_pool *pool, size_t first, size_t count);

#endif
