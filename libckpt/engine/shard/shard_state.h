/* SPDX-License-Identifier: Apache-2.0 */
/* For shard/shard.c and shard/claim.c only. */
#ifndef CKPT_ENGINE_SHARD_SHARD_STATE_H
#define CKPT_ENGINE_SHARD_SHARD_STATE_H

#include "engine/shard/shard.h"

static inline struct ckpt_shard *shard_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard, task);
}

/* shard/shard.c. Begins to look for the rank's shard, or for its index. */
void ckpt_shard_search_shard(struct ckpt_shard *s);
/* The path of the file that is tried. */
void ckpt_shard_name_file(const struct ckpt_shard *s, char *path);
void ckpt_shard_start(struct ckpt_shard *s, ckpt_task_fn *body);

#endif
