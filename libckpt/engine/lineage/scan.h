/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of a store, read in one pass: its generations and the manifests of their steps; and the lineage, which
 * is computed from them. A step exists only if its manifest verifies.
 */
#ifndef CKPT_ENGINE_LINEAGE_SCAN_H
#define CKPT_ENGINE_LINEAGE_SCAN_H

#include <ckpt/catalog.h>
#include "format/manifest.h"
#include "store/store.h"

/* A generation that has a claim or a directory. */
struct ckpt_scan_gen {
	uint64_t generation;
	bool claimed; /* its claim exists */
	bool broken;  /* its claim does not verify: `claim` is not valid */
	struct ckpt_claim claim;
};

struct ckpt_scan_step {
	uint64_t generation;
	uint64_t step;
	enum ckpt_step_state state;
	bool in_lineage;
	bool rolled_back; /* on a branch of this run that was abandoned: cannot be restored */
	/* It has a tombstone: others are preferred. PENDING: perhaps only the tombstone is left. */
	bool deleting;
	/* Of a generation claimed after the scan: does not mean that a claim was lost. */
	bool later;
	uint64_t wall_ms;
	uint64_t bytes; /* of all shards */
	uint32_t world;
	char attempt[CKPT_ATTEMPT_CHARS];
	char note[256];
	int code; /* BROKEN: why; the step may be good if this is a system error or CKPT_EVERSION */
	struct ckpt_base_step bases[CKPT_BASES_MAX]; /* steps that it needs */
	unsigned base_count;
	bool needed; /* it is a base of another one */
	bool going;  /* this process has begun to remove it: its manifest may be gone */
};

struct ckpt_scan {
	char run_id[CKPT_RUN_ID_CHARS];
	struct ckpt_scan_gen *gens; /* ascending */
	size_t gen_count;
	struct ckpt_scan_step *steps; /* sorted by generation, then step, newest first */
	size_t step_count;
	bool lacks; /* a step that needs others, for want of memory: nothing may be removed */
};

void ckpt_scan_clear(struct ckpt_scan *scan);
/* The highest generation, and the highest claimed one; 0: none. */
uint64_t ckpt_scan_newest(const struct ckpt_scan *scan);
uint64_t ckpt_scan_newest_claim(const struct ckpt_scan *scan);
/* NULL if it does not exist. */
struct ckpt_scan_gen *ckpt_scan_gen(struct ckpt_scan *scan, uint64_t generation);
struct ckpt_scan_step *ckpt_scan_find(struct ckpt_scan *scan, uint64_t generation, uint64_t step);
/* Inserts or replaces a step. -ENOMEM. */
int ckpt_scan_put(struct ckpt_scan *scan, const struct ckpt_scan_step *step);
/* Does nothing if the step does not exist: another process may have deleted it. */
void ckpt_scan_set_state(
	struct ckpt_scan *scan, uint64_t generation, uint64_t step, enum ckpt_step_state state);
void ckpt_scan_drop(struct ckpt_scan *scan, uint64_t generation, uint64_t step);
int ckpt_scan_put_gen(struct ckpt_scan *scan, const struct ckpt_scan_gen *gen);

/*
 * Sets in_lineage on every committed (or quarantined) step that a restore may choose: those of the newest generation,
 * then those of its parent up to the step it was claimed from, and so on. CKPT_EINTEGRITY if a claim on the way does
 * not verify: that generation's steps are marked, and earlier ones are unknown.
 */
int ckpt_lineage_mark(struct ckpt_scan *scan, struct ckpt_error *err);

/*
 * Sets rolled_back on every committed (or quarantined) step of an older generation that is not in the lineage but has
 * the same origin, so not on steps of a run before a new start. Requires ckpt_lineage_mark().
 */
void ckpt_lineage_mark_rolled_back(struct ckpt_scan *scan);

/* Of a broken step: its manifest could not be read this time, or has a format that this build does not know. */
bool ckpt_scan_may_be_good(const struct ckpt_scan_step *step);
/*
 * Sets `needed` on every step that another one, good or quarantined, in the lineage or not, is decoded with. Of a broken
 * step that may be good it is not known what it needs: that may be any of the CKPT_BASES_MAX steps before it.
 */
void ckpt_scan_mark_needed(struct ckpt_scan *scan);
/* The newest step that needs this one, or may need it; NULL: none does. */
const struct ckpt_scan_step *ckpt_scan_needs(
	const struct ckpt_scan *scan, uint64_t generation, uint64_t step);

/*
 * The step that `step` (a number, LATEST or BACK(k)) means; NULL: CKPT_ENOSTEP. LATEST and BACK skip quarantined steps,
 * and steps with a tombstone while there are others; a number does not. `ret_passed` (may be NULL) counts the skipped
 * quarantined ones. Requires ckpt_lineage_mark().
 */
struct ckpt_scan_step *ckpt_lineage_choose(
	struct ckpt_scan *scan, uint64_t step, unsigned *ret_passed);

/*
 * Whether a step belongs to the lineage by its generation and number, whatever its state. False if a claim of a later
 * generation on the way is missing or does not verify.
 */
bool ckpt_lineage_holds(struct ckpt_scan *scan, uint64_t generation, uint64_t step);

/* Number of steps in the lineage that are committed and not quarantined. */
size_t ckpt_lineage_count(const struct ckpt_scan *scan);

/*
 * Reads a store, as a task: start, await `task.finished`, look at task.result, take `scan`. CKPT_ENOSTORE without a
 * marker, CKPT_EVERSION, CKPT_EFORMAT, CKPT_EINTEGRITY, system errors. A step that disappears meanwhile (retention) is
 * reported as pending, and one whose manifest does not verify as STEP_BROKEN.
 */
struct ckpt_scanner {
	struct ckpt_task task;
	struct ckpt_store *store;
	struct ckpt_error *err;
	struct ckpt_scan scan;
	struct ckpt_marker marker;

	/* Private. */
	struct ckpt_task *waiter;
	struct ckpt_store_op op;
	struct ckpt_listing directories; /* names in the root, listed before the claims */
	struct ckpt_listing names;
	struct ckpt_listing inner;
	const char *name;
	const char *inner_name;
	uint64_t generation;
	uint64_t step;
	struct ckpt_scan_step found;
};

/* Wakes `waiter` at the end. `stop`: see struct ckpt_store_op; NULL: it is never cancelled. */
void ckpt_scanner_start(struct ckpt_scanner *scanner, struct ckpt_store *store,
	struct ckpt_sched *sched, struct ckpt_task *waiter, const int *stop,
	struct ckpt_error *err);
/* Frees what was not taken. */
void ckpt_scanner_clear(struct ckpt_scanner *scanner);

#endif
