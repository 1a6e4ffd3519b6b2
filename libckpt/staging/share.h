/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of the pool for those who read, any number of them, beside the one who writes.
 *
 * A reader holds a slot while it waits for the next one, and so does the writer, so slots could run out
 * with everybody waiting. Two rules see to it that they do not, given that two slots are enough for
 * each to go on: readers together leave two slots to the writer, and no more readers are let in than
 * two slots for each are there. The others wait, without slots, until one has left.
 */
#ifndef CKPT_STAGING_SHARE_H
#define CKPT_STAGING_SHARE_H

#include "staging/pool.h"

struct ckpt_share {
	struct ckpt_pool *pool; /* NULL: has not joined */
	struct ckpt_task *task; /* woken when a slot may be had */
	struct ckpt_share *next;
	unsigned held;
	bool admitted;
};

/* Of one pool. Zero is none. */
struct ckpt_shares {
	struct ckpt_share *first;
	unsigned held;
	unsigned admitted;
};

/* Zeroed before. */
void ckpt_share_join(struct ckpt_share *share, struct ckpt_pool *pool, struct ckpt_task *task);
/* Every slot is back. */
void ckpt_share_leave(struct ckpt_share *share);
/* A slot, or NULL: the task is woken when to try again. */
struct ckpt_slot *ckpt_share_get(struct ckpt_share *share);
void ckpt_share_put(struct ckpt_share *share, struct ckpt_slot *slot);

/* For the pool: a slot has come back. Those who were woken last come first the next time. */
void ckpt_shares_wake(struct ckpt_shares *shares);
/* The same: so many slots are enough for those who read. */
bool ckpt_shares_fit(const struct ckpt_shares *shares, unsigned slots);
/* The same: it has more slots. */
void ckpt_shares_admit(struct ckpt_pool *pool);

#endif
