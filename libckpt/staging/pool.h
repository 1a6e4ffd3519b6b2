/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: slots of one block each, in memory that is mapped (slot_memory.h), touched once and used
 * again for every save and restore. Belongs to the core's thread, but for the toucher. What was written to a slot stays
 * in it until somebody gets it again.
 *
 * It may grow: more slots behind those that it has, which become its own when their memory is there (engine/core/pool_growth.h
 * sees to that). It may shrink again, from its end on, to what it was opened with (engine/core/pool_shrink.h).
 */
#ifndef CKPT_STAGING_POOL_H
#define CKPT_STAGING_POOL_H

#include "base/compiler.h"
#include "base/task.h"
#include "staging/memlimit.h"
#include "staging/slot_memory.h"
#include <ckpt/error.h>

#define CKPT_POOL_SLOTS_MIN   4
/* Of a pool that grows: the struct of a slot is allocated before its memory is. */
#define CKPT_POOL_SLOTS_GROWN (UINT64_C(1) << 16)

struct ckpt_slot {
	char *data; /* block_bytes, aligned to 4 KiB at least */
	unsigned number;
	bool taken;
	uint64_t uses; /* times that it was got: as long as it is not again, its bytes stay */
	struct ckpt_slot *next; /* in the free list */
	struct ckpt_slot *prev;
};

struct ckpt_pool;
struct ckpt_reader_quotas;

/* The memory of the machine. Any thread. */
struct ckpt_pool_ops {
	void (*look)(struct ckpt_memlimit *ret_memory); /* how much there is */
	/* As ckpt_slot_memory_add(), ckpt_slot_memory_touch() and ckpt_slot_memory_drop(). */
	int (*add)(const struct ckpt_slot_memory *mapping, size_t at, size_t bytes,
		struct ckpt_error *err);
	int (*touch)(char *at, size_t bytes);
	void (*drop)(char *at, size_t bytes);
};

struct ckpt_pool_config {
	/*
	 * Budget; rounded down to blocks, at least CKPT_POOL_SLOTS_MIN of them. Lowered to what memory
	 * and limits allow, see ckpt_pool_note().
	 */
	uint64_t bytes;
	/* It may grow to so many; 0: it does not, nor where address space is limited (RLIMIT_AS). */
	uint64_t bytes_max;
	uint32_t block_bytes; /* a multiple of 4096 */
	bool touch;           /* start a thread that writes to every page once, in the background */
	const struct ckpt_pool_ops *ops; /* NULL: the system's */
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
/* The task woken by every put, after the readers (reader_queue.h); NULL: nobody. */
void ckpt_pool_set_waiter(struct ckpt_pool *pool, struct ckpt_task *waiter);
/* Its readers (reader_queue.h). */
struct ckpt_reader_quotas *ckpt_pool_shares(struct ckpt_pool *pool);

/*
 * Growing, by one thread at a time: memory for the slots [first, first + count) is added and then made to be there; the
 * core's thread takes them into the pool. `first` of the first is ckpt_pool_slots().
 */

/* Slots that it may have in all: its address space has room for them. */
unsigned ckpt_pool_most(const struct ckpt_pool *pool);
/* How much memory the machine has. */
void ckpt_pool_look(const struct ckpt_pool *pool, struct ckpt_memlimit *ret_memory);
/* Words into `err`. */
int ckpt_pool_add(
	const struct ckpt_pool *pool, unsigned first, unsigned count, struct ckpt_error *err);
/* In small pieces, for others want the lock of the address space meanwhile. 0, or -errno: some of it may be there. */
int ckpt_pool_touch(struct ckpt_pool *pool, unsigned first, unsigned count);
/* Gives back the pages of what was added and is not in the pool, or not any more. In small pieces, too. */
void ckpt_pool_drop(struct ckpt_pool *pool, unsigned first, unsigned count);
/* What was added is to be added again. Its pages were dropped, or never there. */
void ckpt_pool_remove(const struct ckpt_pool *pool, unsigned first, unsigned count);
/* The core's thread: the next `count` slots are free. Wakes whoever waits for one. */
void ckpt_pool_grow(struct ckpt_pool *pool, unsigned count);

/*
 * The core's thread: the last `count` slots are not the pool's any more, and their memory is to be removed, or they are
 * to be taken in again. False: somebody has one of them, or those who read need them, or it was opened with them. What
 * was left in them is lent to nobody any more.
 */
bool ckpt_pool_shrink(struct ckpt_pool *pool, unsigned count);
/* Slots that it was opened with. */
unsigned ckpt_pool_least(const struct ckpt_pool *pool);

void *ckpt_pool_base(const struct ckpt_pool *pool);
uint64_t ckpt_pool_bytes(const struct ckpt_pool *pool);
unsigned ckpt_pool_slots(const struct ckpt_pool *pool);
unsigned ckpt_pool_free(const struct ckpt_pool *pool);
uint64_t ckpt_pool_touched(const struct ckpt_pool *pool); /* any thread */
/* Any thread. Of the memory of the machine that others could have: reserved huge pages are nobody else's. */
uint64_t ckpt_pool_held(const struct ckpt_pool *pool);
bool ckpt_pool_huge(const struct ckpt_pool *pool); /* huge pages, granted or advised and heeded */
unsigned ckpt_pool_threads(const struct ckpt_pool *pool); /* 1 while the toucher runs */

/* Why it has less memory than asked for, one sentence for the log; "" if it has not. */
const char *ckpt_pool_note(const struct ckpt_pool *pool);

/*
 * Budget when the user names none: what a pool begins with, and how far it may grow (`bytes` and `bytes_max`), by what
 * this process may use (cgroup v1 and v2, RAM) and the ranks on the node, see memlimit.h.
 */
void ckpt_pool_default(uint32_t node_ranks, struct ckpt_pool_config *config);
/* The ranks that share this machine's memory: of the job's, all those that may be here, 1 at least. */
uint32_t ckpt_pool_sharers(uint32_t node_ranks, uint32_t world);

#endif
