/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots each reader may take. */
#include "staging/reader_quota.h"

void ckpt_reader_quota_join(
	struct ckpt_reader_quota *share, struct ckpt_pool *pool, struct ckpt_task *task)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(pool);

	CKPT_ASSERT(!share->pool && ckpt_pool_slots(pool) >= CKPT_POOL_SLOTS_MIN);
	*share = (struct ckpt_reader_quota){.pool = pool, .task = task};
	*ckpt_reader_quotas_end(shares) = share;
	ckpt_reader_quotas_admit(shares, ckpt_pool_slots(pool));
}

void ckpt_reader_quota_leave(struct ckpt_reader_quota *share)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(share->pool);
	struct ckpt_reader_quota **link = &shares->first;

	CKPT_ASSERT(share->held == 0);
	while (*link != share)
		link = &(*link)->next;
	*link = share->next;
	shares->admitted -= share->admitted;
	ckpt_reader_quotas_admit(shares, ckpt_pool_slots(share->pool));
	/* The limit of the remaining readers has risen. */
	ckpt_reader_quotas_wake(shares);
	*share = (struct ckpt_reader_quota){0};
}

struct ckpt_slot *ckpt_reader_quota_get(struct ckpt_reader_quota *share)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(share->pool);
	unsigned most = ckpt_pool_slots(share->pool) - CKPT_READER_SLOTS;

	if (!share->admitted || shares->held >= most)
		return NULL;
	/* The writer relies on lent slots coming back. */
	if (ckpt_pool_free(share->pool) <= ckpt_pool_owed(share->pool))
		return NULL;
	/* An even part each, which is at least two for admitted readers. */
	if (share->held >= most / shares->admitted)
		return NULL;
	struct ckpt_slot *slot = ckpt_pool_get(share->pool);
	if (slot) {
		share->held++;
		shares->held++;
	}
	return slot;
}

void ckpt_reader_quota_put(struct ckpt_reader_quota *share, struct ckpt_slot *slot)
{
	CKPT_ASSERT(share->held > 0);
	share->held--;
	ckpt_pool_shares(share->pool)->held--;
	ckpt_pool_put(share->pool, slot);
}
