/* SPDX-License-Identifier: Apache-2.0 */
/* Intersections of boxes, and the offsets of their bytes. */
#include "engine/reshard/box.h"

#include <stdio.h>

struct ckpt_box ckpt_box_of(const int64_t *start, const int64_t *shape, uint32_t ndim)
{
	struct ckpt_box box = {.ndim = ndim};

	CKPT_ASSERT(ndim <= CKPT_NDIM_MAX);
	for (uint32_t i = 0; i < ndim; i++) {
		box.start[i] = start ? start[i] : 0;
		box.shape[i] = shape[i];
	}
	return box;
}

uint64_t ckpt_box_volume(const struct ckpt_box *box)
{
	uint64_t volume = 1;

	for (uint32_t i = 0; i < box->ndim; i++)
		if (box->shape[i] == 0)
			return 0;
	for (uint32_t i = 0; i < box->ndim; i++)
		volume *= (uint64_t)box->shape[i];
	return volume;
}

bool ckpt_box_meet(const struct ckpt_box *a, const struct ckpt_box *b, struct ckpt_box *ret_both)
{
	struct ckpt_box both = {.ndim = a->ndim};

	CKPT_ASSERT(a->ndim == b->ndim);
	for (uint32_t i = 0; i < a->ndim; i++) {
		int64_t a_end = a->start[i] + a->shape[i];
		int64_t b_end = b->start[i] + b->shape[i];
		int64_t start = a->start[i] > b->start[i] ? a->start[i] : b->start[i];
		int64_t end = a_end < b_end ? a_end : b_end;

		if (start >= end)
			return false;
		both.start[i] = start;
		both.shape[i] = end - start;
	}
	*ret_both = both;
	return true;
}

size_t ckpt_box_without(const struct ckpt_box *box, const struct ckpt_box *hole,
	struct ckpt_box ret_rest[CKPT_BOX_REST_MAX])
{
	struct ckpt_box left = *box;
	size_t n = 0;

	/* For each dimension: the part before the hole, and the part after it. */
	for (uint32_t i = 0; i < box->ndim; i++) {
		int64_t before = hole->start[i] - left.start[i];
		int64_t behind = left.shape[i] - before - hole->shape[i];

		CKPT_ASSERT(before >= 0 && behind >= 0 && hole->shape[i] > 0);
		if (before > 0) {
			ret_rest[n] = left;
			ret_rest[n++].shape[i] = before;
		}
		if (behind > 0) {
			ret_rest[n] = left;
			ret_rest[n].start[i] = hole->start[i] + hole->shape[i];
			ret_rest[n++].shape[i] = behind;
		}
		left.start[i] = hole->start[i];
		left.shape[i] = hole->shape[i];
	}
	return n;
}

/* Byte offset of element `at` in the array. */
static uint64_t place_of(const int64_t *at, const int64_t *shape, uint32_t ndim, uint32_t item)
{
	uint64_t place = 0;

	for (uint32_t i = 0; i < ndim; i++)
		place = place * (uint64_t)shape[i] + (uint64_t)at[i];
	return place * item;
}

/* Moves `at` to the first element of the box at or after it in row-major order. False: there is none. */
static bool move_into(const struct ckpt_box *box, int64_t at[CKPT_NDIM_MAX])
{
	uint32_t out = 0; /* first dimension in which `at` is outside the box */

	while (out < box->ndim && at[out] >= box->start[out] &&
		at[out] < box->start[out] + box->shape[out])
		out++;
	if (out == box->ndim)
		return true;
	if (at[out] >= box->start[out] + box->shape[out]) {
		/* After the box: advances the last earlier dimension that has room. */
		do {
			if (out == 0)
				return false;
			out--;
		} while (at[out] + 1 == box->start[out] + box->shape[out]);
		at[out++]++;
	}
	for (; out < box->ndim; out++)
		at[out] = box->start[out];
	return true;
}

uint64_t ckpt_box_seek(
	const struct ckpt_box *box, const int64_t *shape, uint32_t item, uint64_t offset)
{
	int64_t at[CKPT_NDIM_MAX];
	uint64_t place = offset / item;

	if (ckpt_box_volume(box) == 0)
		return UINT64_MAX;
	for (uint32_t i = box->ndim; i-- > 0;) {
		at[i] = (int64_t)(place % (uint64_t)shape[i]);
		place /= (uint64_t)shape[i];
	}
	/* The offset is past the end of the array. */
	if (place > 0 || !move_into(box, at))
		return UINT64_MAX;
	return ckpt_max_u64(offset, place_of(at, shape, box->ndim, item));
}

uint64_t ckpt_box_end(const struct ckpt_box *box, const int64_t *shape, uint32_t item)
{
	int64_t last[CKPT_NDIM_MAX];

	CKPT_ASSERT(ckpt_box_volume(box) > 0);
	for (uint32_t i = 0; i < box->ndim; i++)
		last[i] = box->start[i] + box->shape[i] - 1;
	return place_of(last, shape, box->ndim, item) + item;
}

bool ckpt_box_together(const struct ckpt_box *box, const int64_t *shape, uint32_t item)
{
	return ckpt_box_end(box, shape, item) - place_of(box->start, shape, box->ndim, item) ==
	       ckpt_box_volume(box) * item;
}

const char *ckpt_shape_text(const int64_t *shape, uint32_t ndim, char out[CKPT_SHAPE_CHARS])
{
	size_t at = 0;

	out[at++] = '[';
	for (uint32_t i = 0; i < ndim; i++)
		at += (size_t)snprintf(out + at, CKPT_SHAPE_CHARS - at, "%s%lld", i ? ", " : "",
			(long long)shape[i]);
	(void)snprintf(out + at, CKPT_SHAPE_CHARS - at, "]");
	return out;
}

const char *ckpt_box_text(const struct ckpt_box *box, char out[CKPT_BOX_CHARS])
{
	size_t at = 0;

	out[at++] = '[';
	for (uint32_t i = 0; i < box->ndim; i++) {
		int64_t end = box->start[i] + box->shape[i];

		at += (size_t)snprintf(out + at, CKPT_BOX_CHARS - at, "%s%lld:%lld", i ? ", " : "",
			(long long)box->start[i], (long long)end);
	}
	(void)snprintf(out + at, CKPT_BOX_CHARS - at, "]");
	return out;
}
