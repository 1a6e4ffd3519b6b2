/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selects the requested step: scans the store, chooses, takes the lock that keeps retention away, and reads the
 * manifest under it.
 */
#ifndef CKPT_ENGINE_LINEAGE_SELECT_STEP_H
#define CKPT_ENGINE_LINEAGE_SELECT_STEP_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

/* Steps may disappear between the scan and the lock if retention runs; at most this often. */
#define CKPT_SELECT_TRIES 5

struct ckpt_select {
	struct ckpt_task task; /* await `finished`, then look at `result` */
	struct ckpt_core *core;
	uint64_t wanted; /* a number, LATEST or BACK(k) */
	const int *stop; /* not 0: end with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;
	const char *named; /* not NULL: another rank has selected `chosen`, of this attempt */

	/* The result. */
	struct ckpt_scan_step chosen; /* generation 0: none yet */
	struct ckpt_marker marker;
	struct ckpt_manifest manifest;
	char *manifest_bytes; /* the bytes of its file */
	uint64_t manifest_length;
	struct ckpt_object lock; /* shared lock on the manifest; fd -1: none */

	/* Private. */
	struct ckpt_scanner scanner;
	struct ckpt_store_op op;
	struct ckpt_error said; /* error of `op` */
	char path[CKPT_PATH_MAX];
	struct ckpt_timer timer; /* waits for a lock, or until the named manifest is visible */
	uint64_t give_up_ns;
	unsigned tries;
	bool vanished;
	/* Steps that a deletion had locked when they were tried. */
	struct ckpt_select_going {
		uint64_t generation;
		uint64_t step;
	} deleting[CKPT_SELECT_TRIES];
	unsigned going_count;
};

/* Whether it is LATEST or BACK(k), whose meaning changes with newer steps. */
bool ckpt_select_is_relative(uint64_t wanted);
/* Choosing an older step instead of such a broken one could lose a good one without notice. */
static inline bool ckpt_select_may_be_good(const struct ckpt_scan_step *step)
{
	return ckpt_scan_may_be_good(step);
}
/* The caller zeroes it and sets core, wanted, stop, err and waiter. */
void ckpt_select_start(struct ckpt_select *pick);
/* Frees it after the end; `lock` has been closed. */
void ckpt_select_clear(struct ckpt_select *pick);

#endif
