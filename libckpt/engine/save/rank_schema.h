/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks have written may still be a step that nobody can open: when two of them mean different
 * tensors by one name. Rank 0 reads the indexes of all ranks before it publishes, when any of them describes
 * its part in another way than when they were last read.
 *
 * Or it is a step that comes back wrong: when two of them have written different bytes of one box. Ranks that write
 * a box which another one writes are compared by the digests in their indexes, which are read at every save.
 * Engine-internal.
 */
#ifndef CKPT_ENGINE_SAVE_RANK_SCHEMA_H
#define CKPT_ENGINE_SAVE_RANK_SCHEMA_H

#include "base/task.h"

/* Larger ones together are not held in memory: a survey (save/rank_schema_survey.h) goes over them. */
#define CKPT_RANK_SCHEMA_BYTES_MAX (UINT64_C(256) << 20)

struct ckpt_rank_schema;
struct ckpt_save;

/* Rank 0, all have been heard of: each describes its part as it did when that was last looked at. */
bool ckpt_save_agreed(const struct ckpt_save *save);

/* Body of rank 0's save, between gather and publish. */
int ckpt_save_rank_schema_body(struct ckpt_task *task);
/* NULL is ignored. */
void ckpt_rank_schema_free(struct ckpt_rank_schema *agree);

#endif
