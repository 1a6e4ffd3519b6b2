/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of an n-dimensional array: what a rank holds of a tensor, what a target wants of it, and where
 * the bytes of one lie in an array that is stored row-major. Pure.
 */
#ifndef CKPT_ENGINE_RESHARD_BOX_H
#define CKPT_ENGINE_RESHARD_BOX_H

#include <ckpt/types.h>
#include "base/compiler.h"

/* No size is negative, and the elements can be counted in 63 bits. No dimensions: one element. */
struct ckpt_box {
	uint32_t ndim;
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
};

/* `start` NULL: at zero in every dimension. */
struct ckpt_box ckpt_box_of(const int64_t *start, const int64_t *shape, uint32_t ndim);

/* Elements; 0: empty. */
uint64_t ckpt_box_volume(const struct ckpt_box *box);
/* Both of as many dimensions. False: they share no element. */
bool ckpt_box_meet(const struct ckpt_box *a, const struct ckpt_box *b, struct ckpt_box *ret_both);
/*
 * `box` without `hole`, which lies within it and is not empty, as boxes that share nothing: at most two
 * for each dimension. Their number.
 */
#define CKPT_BOX_REST_MAX ((size_t)2 * CKPT_NDIM_MAX)
size_t ckpt_box_without(const struct ckpt_box *box, const struct ckpt_box *hole,
	struct ckpt_box ret_rest[CKPT_BOX_REST_MAX]);

/*
 * The first byte at or after `offset`, of an array of `shape` with elements of `item` bytes, that
 * belongs to the box; UINT64_MAX: none. The box lies within the array, and its bytes fit 63 bits.
 */
uint64_t ckpt_box_seek(
	const struct ckpt_box *box, const int64_t *shape, uint32_t item, uint64_t offset);
/* The byte behind its last one. Not empty. */
uint64_t ckpt_box_end(const struct ckpt_box *box, const int64_t *shape, uint32_t item);
/* Its bytes lie together, first to last. */
bool ckpt_box_together(const struct ckpt_box *box, const int64_t *shape, uint32_t item);

/* "[2, 3]", for messages. */
#define CKPT_SHAPE_CHARS ((size_t)CKPT_NDIM_MAX * 22 + 3)
const char *ckpt_shape_text(const int64_t *shape, uint32_t ndim, char out[CKPT_SHAPE_CHARS]);
/* "[0:2, 4:8]", for messages. */
#define CKPT_BOX_CHARS ((size_t)CKPT_NDIM_MAX * 44 + 3)
const char *ckpt_box_text(const struct ckpt_box *box, char out[CKPT_BOX_CHARS]);

#endif
