/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The garbage collector deletes expired steps, and what dead generations left unfinished. It runs
 * after saves, one deletion at a time, and never makes a save fail. It logs what it cannot do.
 *
 * Deleting a step: exclusive lock on its manifest (a reader holds it: later) -> no later
 * generation -> unlink the manifest -> sync its directory -> unlink the other files -> rmdir.
 * Settling a step without a manifest: publish an abort record, so that its writer cannot commit
 * it any more, even if it is still alive -> unlink the other files.
 */
#ifndef CKPT_ENGINE_GC_GC_H
#define CKPT_ENGINE_GC_GC_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

#define CKPT_GC_SETTLE 1u
#define CKPT_GC_RETAIN 2u
#define CKPT_GC_TIDY   4u /* retention of records of aborted steps only */
#define CKPT_GC_SWEEP  8u /* sessions and catalogs that earlier starts of the job left */

/* Allocates the state of the garbage collector, which lives as long as the core. -ENOMEM. */
int ckpt_gc_open(struct ckpt_core *core);
/* Requires that nothing is under way. Does nothing if ckpt_gc_open() was not called. */
void ckpt_gc_close(struct ckpt_core *core);
/* Requests work (CKPT_GC_*), which begins now or after the current work. Needs a generation. */
void ckpt_gc_ask(struct ckpt_core *core, unsigned what);
/* Stops after the current file. */
void ckpt_gc_stop(struct ckpt_core *core);

/* Deletes one step by its number, as a command: see ckpt_catalog_remove(). NULL: out of memory. */
struct ckpt_command *ckpt_delete_command_new(struct ckpt_core *core, uint64_t step);
int ckpt_delete_command_body(struct ckpt_task *task);

/* Records of aborted steps that are kept, for finding out what went wrong. */
#define CKPT_ABORTED_KEPT 8

/*
 * What is kept: the newest `keep_last` steps of the lineage (0: all), every keep_every-th (0: none), and pinned ones.
 * Quarantined steps and steps with a tombstone do not count as kept, but stay while they are newer than the oldest kept
 * step. So do steps that were rolled back. A step that another one needs (its base) stays as long as that one is there.
 */
struct ckpt_retention {
	uint64_t keep_last;
	uint64_t keep_every;
	const struct ckpt_core *core; /* its hooks->keeps is asked; NULL: no hook */
	const uint64_t *pins;
	size_t pin_count;
	bool remote; /* of the remote store */
	/*
	 * Nothing was being sent while the remote store was read: an incomplete step is deleted if it is older than the
	 * kept ones.
	 */
	bool settled;
};

/*
 * The oldest expired step after (generation, step) by generation and number; NULL: there is none. Never the newest of
 * the lineage. Requires ckpt_scan_mark_needed(). Includes marked and rolled back steps. The record of an aborted step expires when there are
 * CKPT_ABORTED_KEPT newer ones. A late writer that would publish in its place then finds neither its shard nor the
 * directory.
 */
const struct ckpt_scan_step *ckpt_retention_next(const struct ckpt_scan *scan,
	const struct ckpt_retention *keep, uint64_t generation, uint64_t step);

/*
 * Whether a step that is not there would expire at once: the lineage of `scan` has keep_last newer steps that are kept.
 */
bool ckpt_retention_outlived(const struct ckpt_scan *scan, const struct ckpt_retention *keep,
	uint64_t generation, uint64_t step);

#endif
