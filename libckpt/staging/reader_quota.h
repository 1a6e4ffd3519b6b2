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
#include "staging/reader_queue.h"

/* Zeroed before. */
void ckpt_reader_quota_join(
	struct ckpt_reader_quota *share, struct ckpt_pool *pool, struct ckpt_task *task);
/* Every slot is back. */
void ckpt_reader_quota_leave(struct ckpt_reader_quota *share);
/* A slot, or NULL: the task is woken when to try again. */
struct ckpt_slot *ckpt_reader_quota_get(struct ckpt_reader_quota *share);
void ckpt_reader_quota_put(struct ckpt_reader_quota *share, struct ckpt_slot *slot);

#endif
