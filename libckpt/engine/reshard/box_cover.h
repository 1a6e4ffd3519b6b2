/* SPDX-License-Identifier: Apache-2.0 */
/* Composes a wanted box of a tensor from the boxes that the ranks hold. Pure. */
#ifndef CKPT_ENGINE_RESHARD_BOX_COVER_H
#define CKPT_ENGINE_RESHARD_BOX_COVER_H

#include "engine/reshard/tensor_map.h"

/* What is read from one part. */
struct ckpt_box_cover_cut {
	const struct ckpt_part *part; /* the first of the parts with an equal box */
	struct ckpt_box box;          /* within the whole tensor */
};

/* Zero is empty. Reused, to keep its memory. */
struct ckpt_box_cover {
	struct ckpt_box_cover_cut *cuts;
	size_t count;
	size_t room;
	/* Private: what is not covered yet. */
	struct ckpt_box *rest;
	size_t rest_count;
	size_t rest_room;
	size_t work; /* number of comparisons */
};

/*
 * Most remaining boxes, and most cuts. Parts that overlap in all dimensions could produce more of them than memory or
 * time allow. A grid needs only a few.
 */
#define CKPT_BOX_COVER_REST_MAX ((size_t)1 << 14)
#define CKPT_BOX_COVER_CUTS_MAX ((size_t)1 << 20)
#define CKPT_BOX_COVER_WORK_MAX ((size_t)1 << 26)

/*
 * Finds disjoint cuts that together are the wanted box. 0, -ENOMEM, -E2BIG (too many), or 1: no rank holds a part of
 * it, and *ret_missing is a box of that part.
 */
int ckpt_box_cover_find(struct ckpt_box_cover *cover, const struct ckpt_part *parts, size_t count,
	const struct ckpt_box *wanted, struct ckpt_box *ret_missing);
void ckpt_box_cover_clear(struct ckpt_box_cover *cover);

#endif
