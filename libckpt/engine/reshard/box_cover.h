/* SPDX-License-Identifier: Apache-2.0 */
/* A box that is wanted of a tensor, put together from the boxes that the ranks hold. Pure. */
#ifndef CKPT_ENGINE_RESHARD_BOX_COVER_H
#define CKPT_ENGINE_RESHARD_BOX_COVER_H

#include "engine/reshard/tensor_map.h"

/* What is read of one part. */
struct ckpt_box_cover_cut {
	const struct ckpt_part *part; /* the first of those with an equal box */
	struct ckpt_box box;          /* of the whole */
};

/* Zero is empty. Kept from one call to the next for its memory. */
struct ckpt_box_cover {
	struct ckpt_box_cover_cut *cuts;
	size_t count;
	size_t room;
	/* Its own: what is not covered yet. */
	struct ckpt_box *rest;
	size_t rest_count;
	size_t rest_room;
	size_t work; /* boxes that were compared */
};

/*
 * What is left over may be in so many boxes at a time, and the cuts may be so many: parts that overlap
 * in all dimensions could make more of them than there is memory, or time to compare each with each. Those
 * of any grid are a few.
 */
#define CKPT_BOX_COVER_REST_MAX ((size_t)1 << 14)
#define CKPT_BOX_COVER_CUTS_MAX ((size_t)1 << 20)
#define CKPT_BOX_COVER_WORK_MAX ((size_t)1 << 26)

/*
 * Finds cuts that share nothing and together are the wanted box. 0, -ENOMEM, -E2BIG (more than that), or
 * 1: a part of it is held by nobody, and *ret_missing is a box of that.
 */
int ckpt_box_cover_find(struct ckpt_box_cover *cover, const struct ckpt_part *parts, size_t count,
	const struct ckpt_box *wanted, struct ckpt_box *ret_missing);
void ckpt_box_cover_clear(struct ckpt_box_cover *cover);

#endif
