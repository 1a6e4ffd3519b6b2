/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 of a store shared by all ranks: writes the names and boxes of all indexes into one file, which the manifests
 * of this layout name. Without it a step is just as good, but readers must read all indexes.
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
	const struct ckpt_index *const *indexes; /* of all ranks; borrowed until the end */
	/* Or a builder that was given all of them, borrowed. */
	struct ckpt_catalog_builder *builder;
	struct ckpt_task *waiter;

	/* Private. */
	struct ckpt_store_op op;
	struct ckpt_task_job job;
	struct ckpt_error err;
	struct ckpt_buf file;
	struct ckpt_digest digest;
};

/*
 * The caller zeroes it and sets the fields before the blank line. Sets core->saver->catalog, with zero bytes on
 * failure, which is logged and does not fail the save.
 */
void ckpt_catalog_writer_start(struct ckpt_catalog_writer *catalog_writer);
/* A builder for this core's layout, without any rank yet. -ENOMEM. */
int ckpt_catalog_writer_builder(
	const struct ckpt_core *core, struct ckpt_catalog_builder **ret_builder);
/* It has ended, or was never started. */
void ckpt_catalog_writer_clear(struct ckpt_catalog_writer *catalog_writer);

#endif
