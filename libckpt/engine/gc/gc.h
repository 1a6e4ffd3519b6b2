/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The garbage collector removes: steps that retention lets go, and what dead generations left unfinished. It
 * runs behind saves, one thing at a time, and never fails one. What it cannot do it logs.
 *
 * Removing a step: exclusive lock on its manifest (somebody reads it: not now) -> no later generation
 * -> unlink the manifest -> sync its directory -> unlink the rest -> rmdir.
 * Settling a step without a manifest: publish an abort record, so that a writer that is not as dead
 * as it seems can no longer commit -> unlink the rest.
 */
#ifndef CKPT_ENGINE_GC_GC_H
#define CKPT_ENGINE_GC_GC_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

#define CKPT_GC_SETTLE 1u
#define CKPT_GC_RETAIN 2u
#define CKPT_GC_TIDY   4u /* of retention, the records of aborted steps only */
#define CKPT_GC_SWEEP  8u /* what earlier starts of the job have left beside the steps */

/* Makes what the garbage collector keeps as long as the core lives. -ENOMEM. */
int ckpt_gc_open(struct ckpt_core *core);
/* When nothing is under way. What was not opened is not closed. */
void ckpt_gc_close(struct ckpt_core *core);
/* Has the garbage collector do so, now or after what it is doing. Needs a generation. */
void ckpt_gc_ask(struct ckpt_core *core, unsigned what);
/* Stops after the file at hand. */
void ckpt_gc_stop(struct ckpt_core *core);

/* Removing one step by its number, as a command: see ckpt_catalog_remove(). NULL: out of memory. */
struct ckpt_command *ckpt_delete_command_new(struct ckpt_core *core, uint64_t step);
int ckpt_delete_command_body(struct ckpt_task *task);

/* Records of aborted steps that are kept, for whoever looks for what went wrong. */
#define CKPT_ABORTED_KEPT 8

/*
 * What is kept: of the lineage the newest `keep_last` (0: all), every keep_every-th (0: none), and what
 * is pinned. Steps that are quarantined, or have a tombstone, do not count as kept, but stay while they are newer than the oldest that
 * is; so do steps that were rolled back.
 */
struct ckpt_retention {
	uint64_t keep_last;
	uint64_t keep_every;
	const struct ckpt_core *core; /* whose hooks->keeps is asked; NULL: none is */
	const uint64_t *pins;
	size_t pin_count;
	bool remote; /* of the remote store ... */
	bool settled; /* ... to which nothing was sent while it was read: what is not whole there goes when it is older
			 than what is kept */
};

/*
 * The oldest step, by generation and number, that is let go and comes after (generation, step); NULL:
 * there is none. Never the newest of the lineage. Marked, rolled back ones as well. The record of an
 * aborted step goes when CKPT_ABORTED_KEPT newer ones are there, whatever is kept: whoever comes late to
 * publish in its place finds neither its file nor the directory.
 */
const struct ckpt_scan_step *ckpt_retention_next(const struct ckpt_scan *scan,
	const struct ckpt_retention *keep, uint64_t generation, uint64_t step);

/*
 * Whether a step that is not there would be let go at once if it were: the lineage of `scan` has keep_last newer ones
 * that stay.
 */
bool ckpt_retention_outlived(const struct ckpt_scan *scan, const struct ckpt_retention *keep,
	uint64_t generation, uint64_t step);

#endif
