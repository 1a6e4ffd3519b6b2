/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a step that could not be read is still there. Its manifest goes first when it is removed, so who
 * misses a file of it, or reads what is no longer whole, looks for that: damage is laid at the door of a step
 * that is there. Where locks do not reach, a removal does not know its readers.
 */
#ifndef CKPT_ENGINE_LINEAGE_STEP_EXISTS_H
#define CKPT_ENGINE_LINEAGE_STEP_EXISTS_H

#include "engine/lineage/select_step.h"

struct ckpt_step_exists {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	const struct ckpt_select *pick; /* its manifest has been read */
	struct ckpt_task *waiter;

	bool gone; /* the answer; false where the manifest cannot be read this time */

	/* Its own. */
	struct ckpt_store_op op;
};

/* A reading that ended so may have met a removal. */
bool ckpt_step_exists_is_doubtful(int code);
/* Zeroed, but for core, pick and waiter. */
void ckpt_step_exists_start(struct ckpt_step_exists *presence);

#endif
