/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of an n-dimensional array: the part of a tensor that a rank holds, or that a target needs, and the offsets of
 * its bytes in a row-major array. Pure.
 */
#ifndef CKPT_ENGINE_RESHARD_BOX_H
#define CKPT_ENGINE_RESHARD_BOX_H

#include <ckpt/types.h>
#include "base/compiler.h"

/* Sizes are not negative, and the number of elements fits in 63 bits. No dimensions: one element. */
struct ckpt_box {
	uint32_t ndim;
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
};

/* `start` NULL: zeros. */
struct ckpt_box ckpt_box_of(const int64_t *start, const int64_t *shape, uint32_t ndim);

/* Number of elements; 0: empty. */
uint64_t ckpt_box_volume(const struct ckpt_box *box);
/* Whether they share an element. Both have the same number of dimensions. */
bool ckpt_box_meet(const struct ckpt_box *a, const struct ckpt_box *b, struct ckpt_box *ret_both);
/*
 * Divides `box` without `hole`, which is in it and not empty, into disjoint boxes: at most two for each dimension.
 * Returns their number.
 */
#define CKPT_BOX_REST_MAX ((size_t)2 * CKPT_NDIM_MAX)
size_t ckpt_box_without(const struct ckpt_box *box, const struct ckpt_box *hole,
	struct ckpt_box ret_rest[CKPT_BOX_REST_MAX]);

/*
 * Offset of the first byte of the box at or after `offset`, in an array of `shape` with elements of `item` bytes;
 * UINT64_MAX: none. The box is within the array, whose size fits in 63 bits.
 */
uint64_t ckpt_box_seek(
	const struct ckpt_box *box, const int64_t *shape, uint32_t item, uint64_t offset);
/* Offset after its last byte. It is not empty. */
uint64_t ckpt_box_end(const struct ckpt_box *box, const int64_t *shape, uint32_t item);
/* Whether its bytes are contiguous. */
bool ckpt_box_together(const struct ckpt_box *box, const int64_t *shape, uint32_t item);

/* "[2, 3]", for messages. */
#define CKPT_SHAPE_CHARS ((size_t)CKPT_NDIM_MAX * 22 + 3)
const char *ckpt_shape_text(const int64_t *shape, uint32_t ndim, char out[CKPT_SHAPE_CHARS]);
/* "[0:2, 4:8]", for messages. */
#define CKPT_BOX_CHARS ((size_t)CKPT_NDIM_MAX * 44 + 3)
const char *ckpt_box_text(const struct ckpt_box *box, char out[CKPT_BOX_CHARS]);

#endif
