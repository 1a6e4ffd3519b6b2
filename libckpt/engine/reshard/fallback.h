/* SPDX-License-Identifier: Apache-2.0 */
/* What cannot be read from one rank's shard is read from others that hold the same boxes. */
#ifndef CKPT_ENGINE_RESHARD_FALLBACK_H
#define CKPT_ENGINE_RESHARD_FALLBACK_H

#include "engine/reshard/targets.h"
#include "engine/reshard/tensor_map.h"

struct ckpt_fallback {
	const struct ckpt_tensor_map *tensor_map;
	const struct ckpt_index *const *indexes;
	const bool *lost;           /* for each rank: its shard cannot be used */
	struct ckpt_targets *again; /* for each rank: what is read from it instead; not sealed */
};

/*
 * Moves the targets `wanted` of rank `rank`, which is lost, to other ranks. 0, -ENOMEM, or -ENODATA: some of it has no
 * other replica, and nothing was moved.
 */
int ckpt_fallback_move(
	const struct ckpt_fallback *spare, uint32_t rank, const struct ckpt_targets *wanted);

#endif
