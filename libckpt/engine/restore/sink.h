/* SPDX-License-Identifier: Apache-2.0 */
/* What the sinks of a restore share: the ranks of a step, one after the other. For sink*.c only. */
#ifndef CKPT_ENGINE_RESTORE_SINK_H
#define CKPT_ENGINE_RESTORE_SINK_H

#include "engine/restore/restore_state.h"

static inline struct ckpt_restore *ckpt_sink_restore(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_restore, sink_task);
}

/* What of the step is to be had in the store of another node: await elsewhere.task. */
void ckpt_sink_start_elsewhere(struct ckpt_restore *r);
/* The catalog, which the manifest names: await catalog->task. -ENOMEM, worded. */
int ckpt_sink_start_catalog(struct ckpt_restore *r);

/* A rank is next: its shard, with nothing of it read yet. */
void ckpt_sink_begin_rank(struct ckpt_restore *r, uint32_t rank);
/* Shut before. */
void ckpt_sink_end_rank(struct ckpt_restore *r);

/* Progress: the bytes of the ranks that are wanted and here; a header that was read. */
void ckpt_sink_count_all(struct ckpt_restore *r);
void ckpt_sink_count_header(struct ckpt_restore *r);

/* The code of a part that has finished becomes the sink's. True: 0. */
bool ckpt_sink_passed(struct ckpt_restore *r, const struct ckpt_task *part);

/* restore/sink_export.c: the sink that is another store. */
ckpt_task_fn ckpt_sink_export_body;
/* restore/sink_recode.c: the sink that is the same store. */
ckpt_task_fn ckpt_sink_recode_body;

#endif
