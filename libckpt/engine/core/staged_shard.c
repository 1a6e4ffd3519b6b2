/* SPDX-License-Identifier: Apache-2.0 */
/* What a save has left in the slots of the pool. */
#include "engine/core/staged_shard.h"

#include "base/alloc.h"

struct ckpt_staged_shard *ckpt_staged_shard_new(size_t count)
{
	struct ckpt_staged_shard *l = ckpt_alloc(sizeof(*l) + count * sizeof(l->blocks[0]));

	if (l)
		l->count = count;
	return l;
}

void ckpt_staged_shard_free(struct ckpt_staged_shard *staged_shard)
{
	ckpt_free(staged_shard);
}

bool ckpt_staged_shard_borrow(const struct ckpt_staged_shard *staged_shard, struct ckpt_pool *pool,
	size_t first, size_t count)
{
	CKPT_ASSERT(first + count <= staged_shard->count);
	for (size_t i = 0; i < count; i++) {
		if (ckpt_pool_lend(pool, staged_shard->blocks[first + i].slot,
			    staged_shard->blocks[first + i].uses))
			continue;
		ckpt_staged_shard_give_back(staged_shard, pool, first, i);
		return false;
	}
	return true;
}

void ckpt_staged_shard_give_back(const struct ckpt_staged_shard *staged_shard,
	struct ckpt_pool *pool, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ckpt_pool_take_back(pool, staged_shard->blocks[first + i].slot);
}
