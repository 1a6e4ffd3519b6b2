/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing a step from a store that others read and write without a lock that both see: a bucket, a directory that
 * several hosts have. Each act is a task of its own; between MARK and REMOVE the caller lets time pass, its grace, and
 * looks again.
 *
 * MARK: nobody holds the store -> is there no later claim? -> the tombstone. One that somebody else has put there is noted: it is his, and
 * he removes the step.
 * WATCH: as MARK of one that has a tombstone; if that has gone meanwhile, nothing is put in its place.
 * REMOVE: is it the tombstone that was there at MARK? -> if it is another's: in its place one of one's own, and no
 * more for now -> does nobody read the step here? -> is it still the tombstone, and no later claim there? -> manifest -> sync -> indexes -> sync -> all else -> rmdir ->
 * what was only begun -> of an older generation that is empty now: its catalogs -> the tombstone. Before each of these
 * it is still the tombstone. An upload takes an index for its shard, and looks for the tombstone before it believes
 * one: so wherever this ends, and whatever comes after, no manifest is published again over shards that are going.
 * UNMARK: it stays after all. Of another's tombstone likewise: only one's own is taken away.
 * None of them, but UNMARK of one's own, does anything when there is a later claim, or the job goes on from another step.
 *
 * So one removes a step at a time, as long as what he has seen, which is a minute old at most, and his request after
 * it, which leaves by CKPT_TWO_PHASE_DELETE_ASK_NS, take less time than the graces of the others: who takes a removal over waits for a whole grace once more, and who was
 * before him finds another tombstone. CKPT_TWO_PHASE_DELETE_GRACE_S is enough for that.
 */
#ifndef CKPT_ENGINE_GC_TWO_PHASE_DELETE_H
#define CKPT_ENGINE_GC_TWO_PHASE_DELETE_H

#include "engine/core/core.h"
#include "engine/gc/seen_tombstones.h"

enum ckpt_two_phase_delete_act {
	CKPT_TWO_PHASE_DELETE_MARK,
	CKPT_TWO_PHASE_DELETE_WATCH,
	CKPT_TWO_PHASE_DELETE_REMOVE,
	CKPT_TWO_PHASE_DELETE_UNMARK,
};

/*
 * A minute; and a request, of which no try lasts longer than a minute and a half, and none begins later than CKPT_S3_CALL_MS
 * after the first that failed: 420 s. At least where several remove: what somebody else has marked is his for as long, whatever
 * one's own grace is.
 */
#define CKPT_TWO_PHASE_DELETE_GRACE_S 600
/*
 * From a look to the last moment when a request that goes by it leaves, of who removes a file or publishes a manifest. A try
 * that has left then is over before a grace is.
 */
#define CKPT_TWO_PHASE_DELETE_ASK_NS  UINT64_C(360000000000)

struct ckpt_two_phase_delete {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *store;
	struct ckpt_seen_tombstones *seen_tombstones;
	uint64_t newest; /* claim when it was said what is to go: a later one may say otherwise */
	bool fence;      /* it is the job's own: do nothing if here it is another by now */
	bool whole;      /* the step can be had, and stays if the core pins it */
	enum ckpt_two_phase_delete_act act;
	uint64_t generation;
	uint64_t step;
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* Its own. */
	struct ckpt_task work;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_digest stone;
	uint64_t claimed;   /* newest claim when they were listed last */
	uint64_t looked_ns; /* at it */
	unsigned looks;     /* since the file before it was removed */
	bool indexes;       /* are being removed; else all else */
	ckpt_task_fn *then; /* after the last look */
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
};

/*
 * Zeroed, but for what comes before the blank line. -EBUSY: the step is read just now, its tombstone is gone or
 * another one, or the job that removes it goes on from another step. -EAGAIN, of REMOVE and UNMARK: the tombstone was
 * another's, and is this one's now, as if it had just been marked; or a request to remove a file has failed before, or
 * was made again, and the tombstone stays for another grace, because that request may be under way still.
 * CKPT_EINUSE: a live process of this machine holds the store. CKPT_EFENCED: there is a later claim than `newest`. Else what the storage says. The same act
 * again goes on where it ended.
 */
void ckpt_two_phase_delete_start(struct ckpt_two_phase_delete *two_phase);

/* One act in the core's own store, as a command. NULL: out of memory. Fill act, newest, generation and step. */
struct ckpt_two_phase_command {
	struct ckpt_command command;
	struct ckpt_two_phase_delete two_phase;
};
struct ckpt_command *ckpt_two_phase_command_new(struct ckpt_core *core);
int ckpt_two_phase_command_body(struct ckpt_task *task);

#endif
