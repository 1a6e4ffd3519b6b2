/* SPDX-License-Identifier: Apache-2.0 */
/* Who may take how many slots. */
#include "staging/reader_quota.h"

/* What each needs to go on. */
#define SLOTS_ENOUGH 2

static struct ckpt_reader_quota **last_link(struct ckpt_reader_quotas *shares)
{
	struct ckpt_reader_quota **link = &shares->first;

	while (*link)
		link = &(*link)->next;
	return link;
}

/* Lets in, in the order of their coming, as many as can go on. */
void ckpt_reader_quotas_admit(struct ckpt_pool *pool)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(pool);
	unsigned most = (ckpt_pool_slots(pool) - SLOTS_ENOUGH) / SLOTS_ENOUGH;

	for (struct ckpt_reader_quota *s = shares->first; s && shares->admitted < most;
		s = s->next) {
		if (s->admitted)
			continue;
		s->admitted = true;
		shares->admitted++;
		ckpt_task_wake(s->task);
	}
}

bool ckpt_reader_quotas_fit(const struct ckpt_reader_quotas *shares, unsigned slots)
{
	return slots >= CKPT_POOL_SLOTS_MIN &&
	       (slots - SLOTS_ENOUGH) / SLOTS_ENOUGH >= shares->admitted &&
	       slots - SLOTS_ENOUGH >= shares->held;
}

void ckpt_reader_quota_join(
	struct ckpt_reader_quota *share, struct ckpt_pool *pool, struct ckpt_task *task)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(pool);

	CKPT_ASSERT(!share->pool && ckpt_pool_slots(pool) >= CKPT_POOL_SLOTS_MIN);
	*share = (struct ckpt_reader_quota){.pool = pool, .task = task};
	*last_link(shares) = share;
	ckpt_reader_quotas_admit(pool);
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
	ckpt_reader_quotas_admit(share->pool);
	/* The limit of those who stay has risen. */
	ckpt_reader_quotas_wake(shares);
	*share = (struct ckpt_reader_quota){0};
}

struct ckpt_slot *ckpt_reader_quota_get(struct ckpt_reader_quota *share)
{
	struct ckpt_reader_quotas *shares = ckpt_pool_shares(share->pool);
	unsigned most = ckpt_pool_slots(share->pool) - SLOTS_ENOUGH;

	if (!share->admitted || shares->held >= most)
		return NULL;
	/* Whoever writes has begun in the trust that they come back. */
	if (ckpt_pool_free(share->pool) <= ckpt_pool_owed(share->pool))
		return NULL;
	/* An even part each; there are slots enough for two, as they were let in. */
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

void ckpt_reader_quotas_wake(struct ckpt_reader_quotas *shares)
{
	struct ckpt_reader_quota *first = shares->first;

	for (struct ckpt_reader_quota *s = first; s; s = s->next)
		if (s->admitted)
			ckpt_task_wake(s->task);
	/* Turns about: the first of now is the last of next time. */
	if (first && first->next) {
		*last_link(shares) = first;
		shares->first = first->next;
		first->next = NULL;
	}
}
