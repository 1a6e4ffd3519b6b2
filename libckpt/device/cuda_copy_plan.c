/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_copy_plan.h"

#include <ckpt/error.h>

/* cudaMemcpy2DAsync() refuses a greater pitch (cudaDevAttrMaxPitch). */
#define PITCH_MAX INT32_MAX

/* A dimension of runs: their number, and their distance in the view and in row-major bytes. */
struct rows {
	uint64_t count;
	int64_t view;
	uint64_t flat;
};

/* Adds a dimension, from the innermost outwards. False: the view is not rows of runs. */
static bool add_outer(struct ckpt_cuda_walk *w, struct rows *rows, const struct rows *dim)
{
	int64_t extent;

	if (rows->count == 1) {
		if (dim->view >= 0 && (uint64_t)dim->view == w->run && dim->flat == w->run) {
			w->run *= dim->count;
			return true;
		}
		*rows = *dim;
		return true;
	}
	if (rows->flat * rows->count != dim->flat ||
		__builtin_mul_overflow(rows->view, (int64_t)rows->count, &extent) ||
		extent != dim->view)
		return false;
	rows->count *= dim->count;
	return true;
}

/* Sets run, rows and base. False: they cannot describe the view. */
static bool reduce(const struct ckpt_segment *segment, struct ckpt_cuda_walk *w, struct rows *rows)
{
	const struct ckpt_view *view = &segment->view;
	const int64_t *around = segment->around ? segment->around : view->shape;
	const int64_t *start = segment->around ? segment->around + view->ndim : NULL;
	uint64_t flat = view->item;
	int64_t step = view->item;

	w->run = view->item;
	for (uint32_t i = view->ndim; i-- > 0;) {
		if (view->strides && view->shape[i] > 1) {
			bool overflow = __builtin_mul_overflow(
				view->strides[i], (int64_t)view->item, &step);
			CKPT_ASSERT(!overflow);
		}
		struct rows dim = {(uint64_t)view->shape[i], step, flat};
		if (dim.count > 1 && !add_outer(w, rows, &dim))
			return false;
		if (start)
			w->base += (uint64_t)start[i] * flat;
		flat *= (uint64_t)around[i];
		if (!view->strides)
			step *= view->shape[i];
	}
	return rows->count == 1 || (rows->view >= 0 && (uint64_t)rows->view >= w->run);
}

int ckpt_cuda_walk_begin(const struct ckpt_segment *segment, struct ckpt_cuda_walk *ret_walk)
{
	uint64_t bytes = ckpt_view_bytes(&segment->view);
	struct rows rows = {.count = 1};
	struct ckpt_cuda_walk w = {.data = segment->view.data,
		.staged = segment->staged,
		.piece_max = CKPT_CUDA_PIECE,
		.offset = segment->offset,
		.end = segment->offset + segment->length};

	CKPT_ASSERT(segment->around ||
		    (segment->offset <= bytes && segment->length <= bytes - segment->offset));
	if (segment->length > 0 && bytes > 0) {
		CKPT_ASSERT(segment->view.data && segment->staged);
		if (!reduce(segment, &w, &rows))
			return CKPT_EUNSUPPORTED;
		w.rows = rows.count;
		w.device_pitch = rows.count > 1 ? (uint64_t)rows.view : w.run;
		w.staged_pitch = rows.count > 1 ? rows.flat : w.run;
		/* The first run that ends after `offset`. */
		if (w.offset > w.base) {
			w.row = ckpt_min_u64((w.offset - w.base) / w.staged_pitch, w.rows);
			w.done = ckpt_min_u64((w.offset - w.base) % w.staged_pitch, w.run);
		}
	}
	*ret_walk = w;
	return 0;
}

/* How many whole runs from here on are one piece; 0 if not even this one. */
static uint64_t whole_runs(const struct ckpt_cuda_walk *w, uint64_t from)
{
	uint64_t rows = w->rows - w->row;

	if (w->done > 0 || w->end - from < w->run)
		return 0;
	rows = ckpt_min_u64(rows, (w->end - from - w->run) / w->staged_pitch + 1);
	rows = ckpt_min_u64(rows, ckpt_min_u64(w->piece_max / w->run, CKPT_CUDA_PIECE_RUNS));
	if (w->device_pitch > PITCH_MAX || w->staged_pitch > PITCH_MAX)
		rows = ckpt_min_u64(rows, 1);
	return rows;
}

bool ckpt_cuda_walk_next(struct ckpt_cuda_walk *w, struct ckpt_cuda_piece *ret_piece)
{
	uint64_t from;

	if (w->done == w->run) {
		w->done = 0;
		w->row++;
	}
	/* The offset is behind the view's last byte, or the view has no bytes. */
	if (w->row >= w->rows)
		return false;
	from = w->base + w->row * w->staged_pitch + w->done;
	if (from >= w->end)
		return false;
	*ret_piece = (struct ckpt_cuda_piece){
		.device = w->data + w->row * w->device_pitch + w->done,
		.staged = w->staged + (from - w->offset),
		.width = w->run,
		.height = whole_runs(w, from),
		.device_pitch = w->device_pitch,
		.staged_pitch = w->staged_pitch,
	};
	if (ret_piece->height > 0) {
		w->row += ret_piece->height;
		return true;
	}
	ret_piece->height = 1;
	ret_piece->width =
		ckpt_min_u64(w->run - w->done, ckpt_min_u64(w->end - from, w->piece_max));
	w->done += ret_piece->width;
	return true;
}
