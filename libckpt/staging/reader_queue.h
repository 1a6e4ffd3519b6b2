/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of a pool, in the order in which they come. The pool wakes them; reader_quota.h gives them its slots. */
#ifndef CKPT_STAGING_READER_QUEUE_H
#define CKPT_STAGING_READER_QUEUE_H

#include "base/task.h"

/* Slots that a reader, or the writer, needs to go on. */
#define CKPT_READER_SLOTS 2

struct ckpt_pool;

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

/* Where the next one is added. */
struct ckpt_reader_quota **ckpt_reader_quotas_end(struct ckpt_reader_quotas *shares);
/* The pool has so many slots: lets in, in the order of their coming, as many as can go on. */
void ckpt_reader_quotas_admit(struct ckpt_reader_quotas *shares, unsigned slots);
/* So many slots are enough for those who read. */
bool ckpt_reader_quotas_fit(const struct ckpt_reader_quotas *shares, unsigned slots);
/* A slot has come back. Those who were woken last come first the next time. */
void ckpt_reader_quotas_wake(struct ckpt_reader_quotas *shares);

#endif
