/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank's shard was to give, and cannot, is asked of the others that hold the same boxes. */
#ifndef CKPT_ENGINE_RESHARD_FALLBACK_H
#define CKPT_ENGINE_RESHARD_FALLBACK_H

#include "engine/reshard/targets.h"
#include "engine/reshard/tensor_map.h"

struct ckpt_fallback {
	const struct ckpt_tensor_map *tensor_map;
	const struct ckpt_index *const *indexes;
	const bool *lost;           /* of each rank: its shard gives nothing any more */
	struct ckpt_targets *again; /* of each rank: what it is asked for instead; not sealed */
};

/*
 * Moves what `wanted` asks of rank `rank`, which is lost, to others. 0, -ENOMEM, or -ENODATA: of some of it
 * there is no other copy left, and nothing has been moved.
 */
int ckpt_fallback_move(
	const struct ckpt_fallback *spare, uint32_t rank, const struct ckpt_targets *wanted);

#endif
