/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote collector: retention in the remote store, by rank 0 of the job that uploads there. It lives as long as the
 * upload queue, looks when that has nothing to do, and asks for one thing at a time.
 *
 *     what is there? -> what is to go gets a tombstone -> a grace -> what is there? -> what is still to go goes
 *
 * One look is the second of the steps that were marked at the last one, and the first of those that have come to be
 * let go since; so there is one a grace. What it knows of tombstones ends with the process: the next one takes
 * what it finds for somebody else's, and goes on with it after two graces, of 600 s at least: one before it takes a
 * tombstone over, one after.
 */
#ifndef CKPT_ENGINE_COPY_REMOTE_GC_H
#define CKPT_ENGINE_COPY_REMOTE_GC_H

#include "engine/gc/two_phase_delete.h"
#include "engine/lineage/scan.h"

/* Longer than a restore of what is there takes: at 1 GB/s 1.8 TB. */
#define CKPT_REMOTE_GC_GRACE_S 1800

struct ckpt_remote_gc {
	struct ckpt_core *core;
	struct ckpt_store *dest; /* the upload queue's */
	struct ckpt_task task;
	struct ckpt_timer timer;
	bool stop;
	bool halted;       /* it removes nothing any more */
	bool asked;        /* something has come since it looked last */
	bool urgent;       /* ... and is what the job goes on from: uploads do not come first */
	uint64_t came;     /* steps that have */
	uint64_t at_ns;    /* nothing before */
	unsigned failures; /* in a row */
	int failed;        /* in this round */
	/* Of this round: what the job was when it began, and what it had sent. */
	uint64_t generation;
	uint64_t sent;
	bool settled; /* nothing was under way */
	struct ckpt_error error;
	struct ckpt_error act_error; /* of the act under way */
	struct ckpt_scanner scanner;
	struct ckpt_seen_tombstones seen_tombstones;
	struct ckpt_two_phase_delete two_phase;
	bool *expired; /* of each step that was there */
	size_t at;     /* steps before it are still to be looked at: they are newer */
};

/* As it is configured, whether there is a remote collector or not. */
uint64_t ckpt_remote_gc_grace_ns(const struct ckpt_core *core);
/* ... and of what is somebody else's, or was. */
uint64_t ckpt_remote_gc_others_grace_ns(const struct ckpt_core *core);
/* Into core->remote_gc, if the engine is to remove steps there. -ENOMEM. */
int ckpt_remote_gc_open(struct ckpt_core *core, struct ckpt_store *dest);
/* Once the store has been read. */
void ckpt_remote_gc_begin(struct ckpt_core *core);
/* A step is there that was not. */
void ckpt_remote_gc_note(struct ckpt_core *core);
/* What the job goes on from has a mark. */
void ckpt_remote_gc_hurry(struct ckpt_core *core);
/* A claim was made: it is looked for marks of what the job goes on from as soon as the claim is there. */
void ckpt_remote_gc_note_claim(struct ckpt_core *core);
/* The upload queue has nothing to do any more. */
void ckpt_remote_gc_wake(struct ckpt_core *core);
/* Ends soon; ckpt_remote_gc_ended() then, and core->closer is woken. */
void ckpt_remote_gc_stop(struct ckpt_core *core);
bool ckpt_remote_gc_ended(const struct ckpt_core *core);
/* After the end. */
void ckpt_remote_gc_close(struct ckpt_core *core);
/* Counts what is marked, by whomever. */
void ckpt_remote_gc_report(const struct ckpt_core *core, struct ckpt_stats *stats);

#endif
