/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeping what earlier starts of a job have left: what they told each other, and the catalogs of generations
 * whose steps are gone. Rank 0's, who holds the store and has claimed. Nothing of it counts any more. A part of it
 * at a time; what cannot be removed is logged, and left.
 */
#ifndef CKPT_ENGINE_GC_SWEEP_H
#define CKPT_ENGINE_GC_SWEEP_H

#include "engine/core/core.h"
#include "engine/lineage/lineage.h"

#define CKPT_SWEEP_MOST 4096 /* values removed at once */

struct ckpt_gc_sweep {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	struct ckpt_task *waiter;
	const bool *stop;

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_error err;
	struct ckpt_listing names;
	const char *session;
	size_t gen; /* behind the one whose catalogs are being looked for */
	char directory[CKPT_PATH_MAX];
	const char *name;
	bool last; /* the second time over the names */
	char path[CKPT_PATH_MAX];
	unsigned removed;
};

/* Zeroed, but for core, waiter and stop. Of core->lineage->sessions all but the core's own; empties it. */
void ckpt_gc_sweep_start(struct ckpt_gc_sweep *gc_sweep);

/* The name of a catalog, or of what a publication that was cut short has left of one. */
bool ckpt_gc_sweep_is_catalog(const char *name);

#endif
