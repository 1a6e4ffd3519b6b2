/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deletes what earlier starts of a job left: the sessions of their exchange, and catalogs of generations without steps.
 * Nothing reads these any more. Run by rank 0, which holds the store and has claimed a generation. Works in parts; logs
 * what it cannot delete, and leaves it.
 */
#ifndef CKPT_ENGINE_GC_SWEEP_H
#define CKPT_ENGINE_GC_SWEEP_H

#include "engine/core/core.h"
#include "engine/lineage/lineage.h"

#define CKPT_SWEEP_MOST 4096 /* values deleted at once */

struct ckpt_gc_sweep {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	struct ckpt_task *waiter;
	const bool *stop;

	/* Private. */
	struct ckpt_store_op op;
	struct ckpt_error err;
	struct ckpt_listing names;
	const char *session;
	size_t gen; /* next generation whose catalogs are looked for */
	char directory[CKPT_PATH_MAX];
	const char *name;
	bool last; /* second pass over the names */
	char path[CKPT_PATH_MAX];
	unsigned removed;
};

/*
 * The caller zeroes it and sets core, waiter and stop. Takes all sessions of core->lineage->sessions but the core's
 * own, and empties that list.
 */
void ckpt_gc_sweep_start(struct ckpt_gc_sweep *gc_sweep);

/* Whether it is the name of a catalog, or of the temporary file of an interrupted publication of one. */
bool ckpt_gc_sweep_is_catalog(const char *name);

#endif
