/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deletes a step from a store that others read and write without a common lock: a bucket, or a
 * directory shared by several hosts. Each act is a task. Between MARK and REMOVE the caller waits
 * for its grace period and looks again.
 *
 * MARK: nobody holds the store -> no later claim -> write the tombstone. If another process has
 * written one, it is recorded, and that process deletes the step.
 * WATCH: as MARK of a step that has a tombstone, but writes none if it is gone.
 * REMOVE: the tombstone is the one of MARK -> if it is another process's: replace it by our own,
 * and end -> nobody reads the step here -> still the tombstone, and no later claim -> manifest ->
 * sync -> indexes -> sync -> all other files -> rmdir -> unfinished uploads -> if the generation
 * is older and has no other step: its catalogs -> the tombstone. The tombstone is checked before
 * each of these. An upload treats an index as proof of its shard, and looks for the tombstone
 * first. So no manifest is published over shards that are being deleted, wherever this ends.
 * UNMARK: the step is kept: delete the tombstone, or first take over that of another process.
 * All but UNMARK of our own tombstone do nothing if there is a later claim, or the job has resumed
 * from another step.
 *
 * Only one process deletes a step at a time, as long as its look (a minute old at most) and the
 * request after it (sent within CKPT_TWO_PHASE_DELETE_ASK_NS) take less than the grace periods of
 * the others: a process that takes over waits for a whole grace period, and the previous one then
 * finds another tombstone. CKPT_TWO_PHASE_DELETE_GRACE_S is enough for that.
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
 * A minute and a request: a try takes at most 90 s, and none begins later than CKPT_S3_CALL_MS after the first that
 * failed: 420 s. The minimum where several processes delete: the tombstone of another process is respected for this
 * long, whatever our own grace period is.
 */
#define CKPT_TWO_PHASE_DELETE_GRACE_S 600
/*
 * Longest time from a look to the last request that relies on it, of a process that deletes a file or publishes a
 * manifest. A try that was sent within it is over before a grace period is.
 */
#define CKPT_TWO_PHASE_DELETE_ASK_NS  UINT64_C(360000000000)

struct ckpt_two_phase_delete {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *store;
	struct ckpt_seen_tombstones *seen_tombstones;
	/* Newest claim when the steps were chosen; a later one may change the choice. */
	uint64_t newest;
	/* A store of the job: do nothing if the job's generation is no longer `newest`. */
	bool fence;
	bool whole; /* the step is complete, and stays if the core pins it */
	enum ckpt_two_phase_delete_act act;
	uint64_t generation;
	uint64_t step;
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* Private. */
	struct ckpt_task work;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_digest stone;
	uint64_t claimed;   /* newest claim in the last listing */
	uint64_t looked_ns; /* when it was listed */
	unsigned looks;     /* looks since the last file was deleted */
	bool indexes;       /* indexes are being deleted, else the other files */
	ckpt_task_fn *then; /* after the last look */
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
};

/*
 * The caller zeroes it and sets the fields before the blank line. Results: -EBUSY: the step is being read, its
 * tombstone is gone or has changed, or the job that deletes it has resumed from another step. -EAGAIN (REMOVE and
 * UNMARK): the tombstone was another process's and now is ours, as if it had just been marked; or a request to delete a
 * file failed or was repeated, and the tombstone stays for another grace period because that request may still be
 * carried out. CKPT_EINUSE: a live process of this machine holds the store. CKPT_EFENCED: there is a later claim than
 * `newest`. Else the error of the storage. The same act can be called again, and continues.
 */
void ckpt_two_phase_delete_start(struct ckpt_two_phase_delete *two_phase);

/* One act in the core's own store, as a command. NULL: out of memory. Set act, newest, generation and step. */
struct ckpt_two_phase_command {
	struct ckpt_command command;
	struct ckpt_two_phase_delete two_phase;
};
struct ckpt_command *ckpt_two_phase_command_new(struct ckpt_core *core);
int ckpt_two_phase_command_body(struct ckpt_task *task);

#endif
