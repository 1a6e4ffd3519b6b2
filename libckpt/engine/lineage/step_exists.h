/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a step that could not be read still exists. A deletion removes the manifest first. So a reader that misses a
 * file, or finds a truncated one, looks for the manifest: only an existing step can be damaged. Where locks do not
 * work, a deletion does not see its readers.
 */
#ifndef CKPT_ENGINE_LINEAGE_STEP_EXISTS_H
#define CKPT_ENGINE_LINEAGE_STEP_EXISTS_H

#include "engine/lineage/select_step.h"

struct ckpt_step_exists {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	const struct ckpt_select *pick; /* the selected step, whose manifest was read */
	struct ckpt_task *waiter;

	bool gone; /* the result; false if the manifest cannot be read now */

	/* Private. */
	struct ckpt_store_op op;
};

/* Whether a read error may be caused by a deletion. */
bool ckpt_step_exists_is_doubtful(int code);
/* The caller zeroes it and sets core, pick and waiter. */
void ckpt_step_exists_start(struct ckpt_step_exists *presence);

#endif
