/* SPDX-License-Identifier: Apache-2.0 */
/* What a save has left in the slots of the pool. */
#include "engine/leavings.h"

#include "base/alloc.h"

struct ckpt_leavings *ckpt_leavings_new(size_t count)
{
	struct ckpt_leavings *l = ckpt_alloc(sizeof(*l) + count * sizeof(l->blocks[0]));

	if (l)
		l->count = count;
	return l;
}

void ckpt_leavings_free(struct ckpt_leavings *leavings)
{
	ckpt_free(leavings);
}

bool ckpt_leavings_borrow(
	const struct ckpt_leavings *leavings, struct ckpt_pool *pool, size_t first, size_t count)
{
	CKPT_ASSERT(first + count <= leavings->count);
	for (size_t i = 0; i < count; i++) {
		if (ckpt_pool_lend(pool, leavings->blocks[first + i].slot,
			    leavings->blocks[first + i].uses))
			continue;
		ckpt_leavings_give_back(leavings, pool, first, i);
		return false;
	}
	return true;
}

void ckpt_leavings_give_back(
	const struct ckpt_leavings *leavings, struct ckpt_pool *pool, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ckpt_pool_take_back(pool, leavings->blocks[first + i].slot);
}
