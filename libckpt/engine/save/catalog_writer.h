/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 of a store that all ranks share: puts what their indexes say of names and boxes into one file, which
 * the manifests of this layout name. Without it a step is as good; who reads it reads all indexes then.
 */
#ifndef CKPT_ENGINE_SAVE_CATALOG_WRITER_H
#define CKPT_ENGINE_SAVE_CATALOG_WRITER_H

#include "base/task_job.h"
#include "engine/core/core.h"
#include "engine/save/saver.h"
#include "format/catalog.h"
#include "format/index.h"

struct ckpt_catalog_writer {
	struct ckpt_task task; /* await `finished` */
	struct ckpt_core *core;
	const struct ckpt_index *const *indexes; /* of all ranks; they stay until the end */
	struct ckpt_catalog_builder *builder; /* or one that has been given them all, which stays */
	struct ckpt_task *waiter;

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_task_job job;
	struct ckpt_error err;
	struct ckpt_buf file;
	struct ckpt_digest digest;
};

/*
 * Zeroed, but for what comes before the blank line. Sets core->saver->catalog: with no bytes if it came to nothing,
 * which is said in the log and is no failure.
 */
void ckpt_catalog_writer_start(struct ckpt_catalog_writer *catalog_writer);
/* That of what this core writes, as yet of no rank. -ENOMEM. */
int ckpt_catalog_writer_builder(
	const struct ckpt_core *core, struct ckpt_catalog_builder **ret_builder);
/* After its end, or never started. */
void ckpt_catalog_writer_clear(struct ckpt_catalog_writer *catalog_writer);

#endif
