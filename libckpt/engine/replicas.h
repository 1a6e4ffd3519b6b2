/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that hold the same box of a tensor should hold the same bytes of it: the digests in their indexes
 * show whether they do. Pure.
 */
#ifndef CKPT_ENGINE_REPLICAS_H
#define CKPT_ENGINE_REPLICAS_H

#include "engine/wholes.h"

struct ckpt_replicas {
	size_t tensors; /* of which two ranks hold different bytes; 0: all is well */
	/* The first of them. */
	const char *name;
	uint32_t rank;
	uint32_t other;
};

/*
 * Compares what each rank has with the first that holds the same box. No shard is read: tensors that share
 * a chunk are compared where both ranks have the same ones in it, and counted as one.
 */
struct ckpt_replicas ckpt_replicas_compare(
	const struct ckpt_wholes *wholes, const struct ckpt_index *const *indexes);

#endif
