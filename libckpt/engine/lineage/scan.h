/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store holds: its generations and the registers of their steps, read in one pass; and the
 * lineage, computed from them. Nothing but manifests that verify makes a step exist.
 */
#ifndef CKPT_ENGINE_LINEAGE_SCAN_H
#define CKPT_ENGINE_LINEAGE_SCAN_H

#include <ckpt/catalog.h>
#include "format/manifest.h"
#include "store/store.h"

/* A generation whose claim or directory is there. */
struct ckpt_scan_gen {
	uint64_t generation;
	bool claimed; /* its claim is there */
	bool broken;  /* ... and does not verify: `claim` is not valid */
	struct ckpt_claim claim;
};

struct ckpt_scan_step {
	uint64_t generation;
	uint64_t step;
	enum ckpt_step_state state;
	bool in_lineage;
	bool rolled_back; /* may be restored by nobody: its branch of this run was left behind */
	bool deleting; /* it has a tombstone: who has the choice takes another. PENDING: perhaps that alone is left */
	bool later; /* of a generation that was claimed after the scan: no sign of a claim that was lost */
	uint64_t wall_ms;
	uint64_t bytes; /* of all shards */
	uint32_t world;
	char attempt[CKPT_ATTEMPT_CHARS];
	char note[256];
	int code; /* BROKEN: why; it may be good if this is a system error or CKPT_EVERSION */
};

struct ckpt_scan {
	char run_id[CKPT_RUN_ID_CHARS];
	struct ckpt_scan_gen *gens; /* ascending */
	size_t gen_count;
	struct ckpt_scan_step *steps; /* by generation, then step, descending: newest first */
	size_t step_count;
};

void ckpt_scan_clear(struct ckpt_scan *scan);
/* Greatest generation seen, and greatest that is claimed; 0: none. */
uint64_t ckpt_scan_newest(const struct ckpt_scan *scan);
uint64_t ckpt_scan_newest_claim(const struct ckpt_scan *scan);
/* NULL if there is none. */
struct ckpt_scan_gen *ckpt_scan_gen(struct ckpt_scan *scan, uint64_t generation);
struct ckpt_scan_step *ckpt_scan_find(struct ckpt_scan *scan, uint64_t generation, uint64_t step);
/* Adds or replaces a step, in its place. -ENOMEM. */
int ckpt_scan_put(struct ckpt_scan *scan, const struct ckpt_scan_step *step);
/* Nothing happens to a step that is not there: somebody else may have removed it meanwhile. */
void ckpt_scan_set_state(
	struct ckpt_scan *scan, uint64_t generation, uint64_t step, enum ckpt_step_state state);
void ckpt_scan_drop(struct ckpt_scan *scan, uint64_t generation, uint64_t step);
int ckpt_scan_put_gen(struct ckpt_scan *scan, const struct ckpt_scan_gen *gen);

/*
 * Marks in_lineage on every committed (or quarantined) step that a restore may choose: those of the
 * newest generation, then its parent's up to the step it was claimed from, and so on. CKPT_EINTEGRITY
 * when the claim of a generation on the way does not verify: its own steps are marked, and what came
 * before it is not known.
 */
int ckpt_lineage_mark(struct ckpt_scan *scan, struct ckpt_error *err);

/*
 * Marks rolled_back on every committed (or quarantined) step of an older generation that is not in the
 * lineage, but descends from the same beginning: not on those of a run that was here before a new
 * start. Precondition: marked.
 */
void ckpt_lineage_mark_rolled_back(struct ckpt_scan *scan);

/*
 * The step that a restore of `step` (a number, LATEST or BACK(k)) means; NULL: CKPT_ENOSTEP.
 * LATEST and BACK pass over quarantined steps, and over those with a tombstone while there are others; a number
 * does not. `ret_passed` (may be NULL) counts the quarantined ones passed over. Precondition: marked.
 */
struct ckpt_scan_step *ckpt_lineage_choose(
	struct ckpt_scan *scan, uint64_t step, unsigned *ret_passed);

/*
 * Whether a step is one of the lineage by its names, whatever its state. False where a claim of a later
 * generation on the way is missing or does not verify.
 */
bool ckpt_lineage_holds(struct ckpt_scan *scan, uint64_t generation, uint64_t step);

/* Steps of the lineage that are committed and not quarantined. */
size_t ckpt_lineage_count(const struct ckpt_scan *scan);

/*
 * Reads it all. A task of its own: start, await `task.finished`, look at task.result, take `scan`.
 * CKPT_ENOSTORE without a marker, CKPT_EVERSION, CKPT_EFORMAT, CKPT_EINTEGRITY, system errors. A step
 * that vanishes meanwhile (retention) is seen as pending; a manifest that does not verify gives STEP_BROKEN.
 */
struct ckpt_scanner {
	struct ckpt_task task;
	struct ckpt_store *store;
	struct ckpt_error *err;
	struct ckpt_scan scan;
	struct ckpt_marker marker;

	/* Its own. */
	struct ckpt_task *waiter;
	struct ckpt_store_op op;
	struct ckpt_listing directories; /* in the root, before the claims were listed */
	struct ckpt_listing names;
	struct ckpt_listing inner;
	const char *name;
	const char *inner_name;
	uint64_t generation;
	uint64_t step;
	struct ckpt_scan_step found;
};

/* `waiter` is woken at the end. `stop`: see struct ckpt_store_op; NULL: nobody gives it up. */
void ckpt_scanner_start(struct ckpt_scanner *scanner, struct ckpt_store *store,
	struct ckpt_sched *sched, struct ckpt_task *waiter, const int *stop,
	struct ckpt_error *err);
/* Frees what was not taken. */
void ckpt_scanner_clear(struct ckpt_scanner *scanner);

#endif
