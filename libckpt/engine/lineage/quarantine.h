/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quarantines a step that failed verification: writes a note with the reason beside its manifest, updates the scan, and
 * logs an error. If the note cannot be written, this engine skips the step nevertheless.
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
	bool here; /* write no note: only this engine skips the step */
	struct ckpt_task *waiter;

	/* Private. */
	struct ckpt_store_op op;
	struct ckpt_buf buf;
};

/* The caller zeroes it and sets core, step, why, here and waiter. Not for a read-only engine. */
void ckpt_quarantine_start(struct ckpt_quarantiner *quarantiner);

#endif
