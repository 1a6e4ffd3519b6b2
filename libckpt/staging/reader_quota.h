/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of the pool for those who read, any number of them, beside the one who writes.
 *
 * A reader holds a slot while it waits for the next one, and so does the writer, so slots could run out
 * with everybody waiting. Two rules see to it that they do not, given that two slots are enough for
 * each to go on: readers together leave two slots to the writer, and no more readers are let in than
 * two slots for each are there. The others wait, without slots, until one has left.
 */
#ifndef CKPT_STAGING_READER_QUOTA_H
#define CKPT_STAGING_READER_QUOTA_H

#include "staging/pool.h"

struct ckpt_reader_quota {
	struct ckpt_pool *pool; /* NULL: has not joined */
	struct ckpt_task *task; /* woken when a slot may be had */
	struct ckpt_reader_quota *next;
	unsigned held;
	bool admitted;
};

/* Of one pool. Zero is none. */
struct ckpt_reader_quotas {
	struct ckpt_reader_quota *first;
	unsigned held;
	unsigned admitted;
};

/* Zeroed before. */
void ckpt_reader_quota_join(
	struct ckpt_reader_quota *share, struct ckpt_pool *pool, struct ckpt_task *task);
/* Every slot is back. */
void ckpt_reader_quota_leave(struct ckpt_reader_quota *share);
/* A slot, or NULL: the task is woken when to try again. */
struct ckpt_slot *ckpt_reader_quota_get(struct ckpt_reader_quota *share);
void ckpt_reader_quota_put(struct ckpt_reader_quota *share, struct ckpt_slot *slot);

/* For the pool: a slot has come back. Those who were woken last come first the next time. */
void ckpt_reader_quotas_wake(struct ckpt_reader_quotas *shares);
/* The same: so many slots are enough for those who read. */
bool ckpt_reader_quotas_fit(const struct ckpt_reader_quotas *shares, unsigned slots);
/* The same: it has more slots. */
void ckpt_reader_quotas_admit(struct ckpt_pool *pool);

#endif
