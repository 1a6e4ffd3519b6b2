/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Divides the pool among any number of readers, beside one writer.
 *
 * A reader holds a slot while it waits for the next one, and so does the writer, so all could wait with no slot left.
 * Two
 * slots each are enough to make progress. So readers together leave two slots to the writer, and only as many readers
 * are
 * admitted as there are two slots for each. The others wait without slots until one leaves.
 */
#ifndef CKPT_STAGING_READER_QUOTA_H
#define CKPT_STAGING_READER_QUOTA_H

#include "staging/pool.h"
#include "staging/reader_queue.h"

/* The caller zeroes it. */
void ckpt_reader_quota_join(
	struct ckpt_reader_quota *share, struct ckpt_pool *pool, struct ckpt_task *task);
/* It holds no slot. */
void ckpt_reader_quota_leave(struct ckpt_reader_quota *share);
/* A slot, or NULL: the task is woken when it should try again. */
struct ckpt_slot *ckpt_reader_quota_get(struct ckpt_reader_quota *share);
void ckpt_reader_quota_put(struct ckpt_reader_quota *share, struct ckpt_slot *slot);

#endif
