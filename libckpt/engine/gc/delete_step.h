/* SPDX-License-Identifier: Apache-2.0 */
/* Taking one step away, or settling one that was never decided; see gc/gc.h for the order. */
#ifndef CKPT_ENGINE_GC_DELETE_STEP_H
#define CKPT_ENGINE_GC_DELETE_STEP_H

#include "engine/core/core.h"

struct ckpt_deletion {
	bool finished;
	int result; /* 0, -EBUSY, CKPT_EFENCED, or why not */
	struct ckpt_core *core;
	struct ckpt_task *waiter;
	struct ckpt_error *err;
	uint64_t generation;
	uint64_t step;
	bool settle; /* publish an abort record and keep it, instead of unlinking the manifest */

	/* Its own. */
	struct ckpt_deletion *next;
	bool deleting; /* nothing stands in its way but readers: it is not counted any more */
	struct ckpt_task task;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
};

/* Fill core, waiter, err, generation, step and the two flags first. */
void ckpt_deletion_start(struct ckpt_deletion *deletion);

#endif
