/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quarantining a step that failed verification: a note beside its manifest says why, the core's scan
 * knows it, and the log says it loudly. Best effort: what cannot be written is known to this engine all
 * the same.
 */
#ifndef CKPT_ENGINE_LINEAGE_QUARANTINE_H
#define CKPT_ENGINE_LINEAGE_QUARANTINE_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

struct ckpt_quarantiner {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	struct ckpt_scan_step step; /* as it was scanned */
	const struct ckpt_error *why;
	bool here; /* nothing is written: only this engine passes over it */
	struct ckpt_task *waiter;

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_buf buf;
};

/* Zeroed, but for core, step, why, here and waiter. Not on an engine that is read only. */
void ckpt_quarantine_start(struct ckpt_quarantiner *quarantiner);

#endif
