/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: slots of one block each, in memory mapped from one memfd, touched once and used
 * again for every save and restore. Belongs to the core's thread, but for the toucher. What was written to a slot stays
 * in it until somebody gets it again.
 */
#ifndef CKPT_STAGING_POOL_H
#define CKPT_STAGING_POOL_H

#include "base/attr.h"
#include "base/task.h"
#include <ckpt/error.h>

#define CKPT_POOL_SLOTS_MIN 4

struct ckpt_slot {
	char *data; /* block_bytes, aligned to 4 KiB at least */
	unsigned number;
	bool taken;
	uint64_t uses; /* times that it was got: as long as it is not again, its bytes stay */
	struct ckpt_slot *next; /* in the free list */
	struct ckpt_slot *prev;
};

struct ckpt_pool;
struct ckpt_shares;

struct ckpt_pool_config {
	/*
	 * Budget; rounded down to blocks, at least CKPT_POOL_SLOTS_MIN of them. Lowered to what memory
	 * and limits allow, see ckpt_pool_note().
	 */
	uint64_t bytes;
	uint32_t block_bytes; /* a multiple of 4096 */
	bool touch;           /* start a thread that writes to every page once, in the background */
};

/* Words into `err`: -ENOMEM, -EFBIG (limit of file sizes), -EMFILE, -EAGAIN (no thread). */
int ckpt_pool_open(
	const struct ckpt_pool_config *config, struct ckpt_error *err, struct ckpt_pool **ret_pool);
/* Every slot must be back. Waits for the toucher. NULL is ignored. */
void ckpt_pool_close(struct ckpt_pool *pool);

/* A free slot, or NULL: the waiter is woken when one comes back. Its bytes are what they are. */
struct ckpt_slot *ckpt_pool_get(struct ckpt_pool *pool);
void ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot);
/*
 * Lends a slot for its bytes, if it is free, has been got `uses` times, and nobody waits for one. It comes back as soon
 * as they are copied, as it was: whoever counts what is free may count on it.
 */
bool ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses);
void ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number);
unsigned ckpt_pool_lent(const struct ckpt_pool *pool);
/* What is lent and comes back is the waiter's, and no reader's, until it has so many. */
void ckpt_pool_owe(struct ckpt_pool *pool, unsigned slots);
unsigned ckpt_pool_owed(const struct ckpt_pool *pool);
/* Any thread may look where its data is. */
struct ckpt_slot *ckpt_pool_slot(const struct ckpt_pool *pool, unsigned number);
/* The next that are got come in the order in which they lie: bytes that follow one another can then move at once. */
void ckpt_pool_sort(struct ckpt_pool *pool);
/* The task woken by every put, after the readers (share.h); NULL: nobody. */
void ckpt_pool_set_waiter(struct ckpt_pool *pool, struct ckpt_task *waiter);
/* What share.h keeps with the pool. */
struct ckpt_shares *ckpt_pool_shares(struct ckpt_pool *pool);

void *ckpt_pool_base(const struct ckpt_pool *pool);
uint64_t ckpt_pool_bytes(const struct ckpt_pool *pool);
unsigned ckpt_pool_slots(const struct ckpt_pool *pool);
unsigned ckpt_pool_free(const struct ckpt_pool *pool);
uint64_t ckpt_pool_touched(const struct ckpt_pool *pool); /* any thread */
bool ckpt_pool_huge(const struct ckpt_pool *pool); /* huge pages, granted or advised and heeded */
unsigned ckpt_pool_threads(const struct ckpt_pool *pool); /* 1 while the toucher runs */

/* Why it has less memory than asked for, one sentence for the log; "" if it has not. */
const char *ckpt_pool_note(const struct ckpt_pool *pool);

/*
 * Budget when the user names none: an eighth of what this process may use (cgroup v1 and v2, RAM, the
 * ranks on the node by LOCAL_WORLD_SIZE), 32 MiB at least, 1 GiB at most.
 */
uint64_t ckpt_pool_default_bytes(void);

#endif
