/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes a step, or settles one that was never decided. See gc/gc.h for the order. */
#ifndef CKPT_ENGINE_GC_DELETE_STEP_H
#define CKPT_ENGINE_GC_DELETE_STEP_H

#include "engine/core/core.h"

struct ckpt_deletion {
	bool finished;
	int result; /* 0, -EBUSY, CKPT_EFENCED, or another error */
	struct ckpt_core *core;
	struct ckpt_task *waiter;
	struct ckpt_error *err;
	uint64_t generation;
	uint64_t step;
	bool settle; /* publish an abort record and keep it, instead of unlinking the manifest */

	/* Private. */
	struct ckpt_deletion *next;
	bool deleting; /* only readers can stop it now; the step does not count as kept */
	struct ckpt_task task;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
};

/* Set core, waiter, err, generation, step and the two flags first. */
void ckpt_deletion_start(struct ckpt_deletion *deletion);

#endif
