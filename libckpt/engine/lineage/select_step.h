/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Picking the step that was asked for: reads the store anew, chooses, takes the lock that keeps
 * retention away, and reads the manifest under it.
 */
#ifndef CKPT_ENGINE_LINEAGE_SELECT_STEP_H
#define CKPT_ENGINE_LINEAGE_SELECT_STEP_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

/* Steps may vanish between the scan and the lock when retention runs beside; not this often. */
#define CKPT_SELECT_TRIES 5

struct ckpt_select {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	uint64_t wanted; /* a number, LATEST or BACK(k) */
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;
	const char *named; /* not NULL: another rank has picked `chosen`, of this attempt */

	/* What was picked. */
	struct ckpt_scan_step chosen; /* generation 0: nothing yet */
	struct ckpt_marker marker;
	struct ckpt_manifest manifest;
	char *manifest_bytes; /* as they are in the store */
	uint64_t manifest_length;
	struct ckpt_object lock; /* shared, on the manifest; fd -1: none */

	/* Its own. */
	struct ckpt_scanner scanner;
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store, of what `op` was asked */
	char path[CKPT_PATH_MAX];
	struct ckpt_timer timer; /* locked against readers; named: not seen yet */
	uint64_t give_up_ns;
	unsigned tries;
	bool vanished;
	/* Steps whose lock a removal held when they were tried. */
	struct ckpt_select_going {
		uint64_t generation;
		uint64_t step;
	} deleting[CKPT_SELECT_TRIES];
	unsigned going_count;
};

/* The latest, or one so many before it: another one is it when a newer one comes, or goes. */
bool ckpt_select_is_relative(uint64_t wanted);
/*
 * Of a broken step: its manifest could not be read this time, or is of a format that this build does not
 * know.
 */
bool ckpt_select_may_be_good(const struct ckpt_scan_step *step);
/* Zeroed, but for core, wanted, stop, err and waiter. */
void ckpt_select_start(struct ckpt_select *pick);
/* After the end; `lock` has been shut. */
void ckpt_select_clear(struct ckpt_select *pick);

#endif
