/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: slots of one block each, in memory that is mapped (slot_memory.h), touched once and reused for
 * every
 * save and restore. Belongs to the core's thread, except for the toucher. A slot keeps its contents until it is used
 * again.
 *
 * It may grow by slots after the existing ones, which become part of it when their memory is ready
 * (engine/core/pool_growth.h). It may shrink from its end to its initial size (engine/core/pool_shrink.h).
 */
#ifndef CKPT_STAGING_POOL_H
#define CKPT_STAGING_POOL_H

#include "base/compiler.h"
#include "base/task.h"
#include "staging/memlimit.h"
#include "staging/slot_memory.h"
#include <ckpt/error.h>

#define CKPT_POOL_SLOTS_MIN   4
/* Most slots of a pool that grows: the structs of all slots are allocated at first. */
#define CKPT_POOL_SLOTS_GROWN (UINT64_C(1) << 16)

struct ckpt_slot {
	char *data; /* block_bytes, aligned to at least 4 KiB */
	unsigned number;
	bool taken;
	uint64_t uses;          /* how often it was taken: its contents stay until this changes */
	struct ckpt_slot *next; /* in the free list */
	struct ckpt_slot *prev;
};

struct ckpt_pool;
struct ckpt_reader_quotas;

/* Functions for the machine's memory. Any thread. */
struct ckpt_pool_ops {
	void (*look)(struct ckpt_memlimit *ret_memory); /* reads how much there is */
	/* As ckpt_slot_memory_add(), ckpt_slot_memory_touch() and ckpt_slot_memory_drop(). */
	int (*add)(const struct ckpt_slot_memory *mapping, size_t at, size_t bytes,
		struct ckpt_error *err);
	int (*touch)(char *at, size_t bytes);
	void (*drop)(char *at, size_t bytes);
};

struct ckpt_pool_config {
	/*
	 * Budget; rounded down to blocks, at least CKPT_POOL_SLOTS_MIN. Lowered to what memory and limits allow, see
	 * ckpt_pool_note().
	 */
	uint64_t bytes;
	/* Most bytes it may grow to; 0: it does not grow, nor does it where address space is limited (RLIMIT_AS). */
	uint64_t bytes_max;
	uint32_t block_bytes; /* a multiple of 4096 */
	bool touch;           /* start a thread that touches all pages in the background */
	const struct ckpt_pool_ops *ops; /* NULL: the system's */
};

/* Sets `err`: -ENOMEM, -EFBIG (limit of file sizes), -EMFILE, -EAGAIN (no thread). */
int ckpt_pool_open(
	const struct ckpt_pool_config *config, struct ckpt_error *err, struct ckpt_pool **ret_pool);
/* All slots must be free. Waits for the toucher. NULL is ignored. */
void ckpt_pool_close(struct ckpt_pool *pool);

/* A free slot, or NULL: the waiter is woken when one is put back. Its contents are undefined. */
struct ckpt_slot *ckpt_pool_get(struct ckpt_pool *pool);
void ckpt_pool_put(struct ckpt_pool *pool, struct ckpt_slot *slot);
/* A certain slot with its contents, if it is free and its `uses` is equal; else NULL. As of ckpt_pool_get() otherwise. */
struct ckpt_slot *ckpt_pool_retake(struct ckpt_pool *pool, unsigned number, uint64_t uses);
/*
 * Lends a free slot for its contents, if its `uses` is equal and nobody waits for a slot. The borrower puts it back as
 * soon as it has copied them, so it may be counted as free.
 */
bool ckpt_pool_lend(struct ckpt_pool *pool, unsigned number, uint64_t uses);
void ckpt_pool_take_back(struct ckpt_pool *pool, unsigned number);
unsigned ckpt_pool_lent(const struct ckpt_pool *pool);
/* Lent slots that are put back go to the waiter, not to readers, until it has this many. */
void ckpt_pool_owe(struct ckpt_pool *pool, unsigned slots);
unsigned ckpt_pool_owed(const struct ckpt_pool *pool);
/* Any thread may look up its data. */
struct ckpt_slot *ckpt_pool_slot(const struct ckpt_pool *pool, unsigned number);
/* Sorts the free slots, so that adjacent blocks can be copied together. */
void ckpt_pool_sort(struct ckpt_pool *pool);
/* The task woken by every put, after the readers (reader_queue.h); NULL: none. */
void ckpt_pool_set_waiter(struct ckpt_pool *pool, struct ckpt_task *waiter);
/* Its readers (reader_queue.h). */
struct ckpt_reader_quotas *ckpt_pool_shares(struct ckpt_pool *pool);

/*
 * Growing, by one thread at a time: memory for slots [first, first + count) is added and touched; then the core's
 * thread adds them to the pool. The first `first` is ckpt_pool_slots().
 */

/* Most slots, by its reserved address space. */
unsigned ckpt_pool_most(const struct ckpt_pool *pool);
/* Reads how much memory the machine has. */
void ckpt_pool_look(const struct ckpt_pool *pool, struct ckpt_memlimit *ret_memory);
/* Sets `err`. */
int ckpt_pool_add(
	const struct ckpt_pool *pool, unsigned first, unsigned count, struct ckpt_error *err);
/* In small pieces, because other threads need the lock of the address space. 0, or -errno: a part may be there. */
int ckpt_pool_touch(struct ckpt_pool *pool, unsigned first, unsigned count);
/* Gives back the pages of slots that are not part of the pool, in small pieces, too. */
void ckpt_pool_drop(struct ckpt_pool *pool, unsigned first, unsigned count);
/* Removes added memory, whose pages were dropped or never touched. */
void ckpt_pool_remove(const struct ckpt_pool *pool, unsigned first, unsigned count);
/* The core's thread: the next `count` slots are free. Wakes those that wait for one. */
void ckpt_pool_grow(struct ckpt_pool *pool, unsigned count);

/*
 * The core's thread: removes the last `count` slots from the pool; the caller removes their memory, or adds them again.
 * False: one of them is in use, readers need them, or they belong to its initial size. Their contents cannot be lent
 * any more.
 */
bool ckpt_pool_shrink(struct ckpt_pool *pool, unsigned count);
/* Initial number of slots. */
unsigned ckpt_pool_least(const struct ckpt_pool *pool);

void *ckpt_pool_base(const struct ckpt_pool *pool);
uint64_t ckpt_pool_bytes(const struct ckpt_pool *pool);
unsigned ckpt_pool_slots(const struct ckpt_pool *pool);
unsigned ckpt_pool_free(const struct ckpt_pool *pool);
uint64_t ckpt_pool_touched(const struct ckpt_pool *pool); /* any thread */
/* Any thread. Bytes that other programs cannot use; reserved huge pages do not count. */
uint64_t ckpt_pool_held(const struct ckpt_pool *pool);
/* Huge pages, reserved or by advice that the kernel follows. */
bool ckpt_pool_huge(const struct ckpt_pool *pool);
unsigned ckpt_pool_threads(const struct ckpt_pool *pool); /* 1 while the toucher runs */

/* Why it has less memory than requested, as a sentence for the log; "" if it has not. */
const char *ckpt_pool_note(const struct ckpt_pool *pool);

/*
 * Default budget: what a pool begins with and may grow to (`bytes` and `bytes_max`), by what this process may use
 * (cgroup v1 and v2, RAM) and the ranks on the node, see memlimit.h.
 */
void ckpt_pool_default(uint32_t node_ranks, struct ckpt_pool_config *config);
/* The number of the job's ranks that share this machine's memory, at least 1. */
uint32_t ckpt_pool_sharers(uint32_t node_ranks, uint32_t world);

#endif
