/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a copy: pieces of large segments, and kernel launches for many small ones and for samples. */
#include <stdio.h>

#include "device/cuda_batch.h"
#include "device/cuda_copy_plan.h"
#include "device/cuda_grids.h"
#include "device/cuda_spans.h"
#include "device/cuda_state.h"
#include "device/sample_mix.h"

/* Fewer small segments are copied one by one: a launch costs about as much as this many copies. */
#define FEW 4

/* More rows, of shorter runs, are left to a kernel: for the copy engines each run is a transfer. */
#define ROWS_MAX 64
#define RUN_MIN  512

/* Neither the copy engines nor a kernel can copy it. Its name is unknown here; its shape helps to find it. */
static int refuse(const struct ckpt_cuda_device *d, struct ckpt_error *err,
	const struct ckpt_view *view, const char *why)
{
	char shape[CKPT_NDIM_MAX * 22 + 1] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < view->ndim; i++)
		used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%s%lld",
			i > 0 ? ", " : "", (long long)view->shape[i]);
	return ckpt_fail(err, CKPT_EUNSUPPORTED,
		"a tensor of shape [%s] on GPU %d is neither contiguous nor rows apart, and %s; "
		"make it contiguous (tensor.contiguous())",
		shape, d->index, why);
}

static bool is_own(const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return segment->view.device == copy->device;
}

/* GPU address of the segment's staging; 0: it is not pinned for this GPU. */
static uint64_t find_staged(const struct ckpt_cuda_device *d, const struct ckpt_segment *segment)
{
	return ckpt_cuda_host_register_find(d->pinned, segment->staged, segment->length);
}

/* NULL: the kernels can copy it; else why not. */
static const char *why_no_grid(
	const struct ckpt_cuda_device *d, const struct ckpt_segment *segment, bool scatter)
{
	struct ckpt_cuda_grid grid;

	if (!d->kernels.module)
		return d->kernels.why_not;
	/* Whether it is a grid does not depend on its staging address. */
	ckpt_cuda_grid_of(segment, CKPT_CUDA_WINDOW, &grid);
	if (scatter && !ckpt_cuda_grid_apart(&grid))
		return "its elements share memory, or lie between one another";
	return NULL;
}

int ckpt_cuda_takes(const struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	struct ckpt_error *err)
{
	struct ckpt_cuda_walk walk;
	const char *why;

	if (ckpt_cuda_walk_begin(segment, &walk) == 0)
		return 0;
	why = why_no_grid(d, segment, true);
	return why ? refuse(d, err, &segment->view, why) : 0;
}

static int launch_grid(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, const struct ckpt_cuda_grid *grid)
{
	bool scatter = copy->direction == CKPT_COPY_FROM_STAGING;
	uint64_t first;
	uint64_t left = ckpt_cuda_grid_items(grid, &first);

	while (left > 0) {
		uint32_t count = (uint32_t)ckpt_min_u64(left, CKPT_CUDA_GRID_ITEMS);
		int r = ckpt_cuda_fail_stopped(copy, copy->error);
		int e;

		if (r < 0)
			return r;
		d->group.entries++;
		e = ckpt_cuda_launch_grid(&d->kernels, scatter, grid, first, count, d->stream);
		if (e != CKPT_CUDA_SUCCESS)
			return ckpt_cuda_fail_asking(d, copy->error, e, "cuLaunchKernel");
		first += count;
		left -= count;
	}
	return 0;
}

/* Copies between staging and the relay. */
static int feed_relayed(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *piece, char *relayed)
{
	bool scatter = copy->direction == CKPT_COPY_FROM_STAGING;
	int r = ckpt_cuda_fail_stopped(copy, copy->error);
	int e;

	if (r < 0)
		return r;
	d->group.entries++;
	e = d->api.memcpy_async(scatter ? relayed : piece->staged,
		scatter ? piece->staged : relayed, piece->length,
		scatter ? CKPT_CUDA_HOST_TO_DEVICE : CKPT_CUDA_DEVICE_TO_HOST, d->stream);
	return e == CKPT_CUDA_SUCCESS ? 0
				      : ckpt_cuda_fail_asking(d, copy->error, e, "cudaMemcpyAsync");
}

/* For staging that no kernel of this GPU can reach: piece by piece through the relay. */
static int relay_grid(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment)
{
	bool scatter = copy->direction == CKPT_COPY_FROM_STAGING;
	struct ckpt_segment piece = *segment;
	int e = ckpt_cuda_relay_reserve(&d->api, &d->relay);
	int r = 0;

	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail_asking(d, copy->error, e,
			"out of GPU memory for a buffer, which staging that is not pinned needs: "
			"cudaMalloc");
	for (uint64_t left = segment->length; left > 0 && r == 0; left -= piece.length) {
		struct ckpt_cuda_grid grid;
		char *relayed = ckpt_cuda_relay_at(&d->relay, piece.staged);
		uint64_t first;

		piece.length = ckpt_min_u64(left, CKPT_CUDA_RELAY);
		ckpt_cuda_grid_of(&piece, (uintptr_t)relayed, &grid);
		/* The part of a box may be empty. */
		if (ckpt_cuda_grid_items(&grid, &first) > 0) {
			r = scatter ? feed_relayed(d, copy, &piece, relayed) : 0;
			if (r == 0)
				r = launch_grid(d, copy, &grid);
			if (r == 0 && !scatter)
				r = feed_relayed(d, copy, &piece, relayed);
		}
		piece.offset += piece.length;
		piece.staged += piece.length;
	}
	return r;
}

static int feed_grid(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment)
{
	struct ckpt_cuda_grid grid;
	uint64_t seen = find_staged(d, segment);

	if (!seen)
		return relay_grid(d, copy, segment);
	ckpt_cuda_grid_of(segment, seen, &grid);
	return launch_grid(d, copy, &grid);
}

/*
 * The driver limits the number of enqueued pieces: its call waits when the queue is full. A lower limit here would make
 * a hold wait earlier and longer, because it returns only when all are enqueued. cuda_piece_size.h keeps their number
 * small.
 */
static int feed_segment(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment)
{
	struct ckpt_cuda_walk walk;
	struct ckpt_cuda_piece piece;
	int r = ckpt_cuda_walk_begin(segment, &walk);

	if (r < 0 || (walk.rows > ROWS_MAX && walk.run < RUN_MIN && find_staged(d, segment))) {
		const char *why =
			why_no_grid(d, segment, copy->direction == CKPT_COPY_FROM_STAGING);

		if (!why)
			return feed_grid(d, copy, segment);
		if (r < 0)
			return refuse(d, copy->error, &segment->view, why);
	}
	walk.piece_max = d->group.piece_max;
	while (ckpt_cuda_walk_next(&walk, &piece)) {
		r = ckpt_cuda_batch_put(d, segment, &piece);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_small(const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return is_own(copy, segment) && segment->length <= CKPT_CUDA_SPAN_MAX;
}

/* Contiguous segments are never grids. */
static bool may_be_grid(const struct ckpt_segment *segment)
{
	return segment->view.strides || segment->around;
}

/* Whether small segments are copied by a launch. If there is no memory for it, the copy does not fail. */
static bool begin_launch(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	struct ckpt_cuda_launch_args *table)
{
	const char *what;
	size_t small = 0;
	size_t grids = 0;

	if (!d->kernels.module || !d->pinned)
		return false;
	for (size_t i = 0; i < copy->count; i++) {
		if (!is_small(copy, &copy->segments[i]))
			continue;
		small++;
		grids += may_be_grid(&copy->segments[i]);
	}
	if (small < FEW)
		return false;
	if (ckpt_cuda_launch_args_reserve(&d->api, table, small, grids, &what) == CKPT_CUDA_SUCCESS)
		return true;
	(void)d->api.get_last_error();
	return false;
}

/* False: it is not small, or the kernels cannot copy it. */
static bool add_small(const struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment, struct ckpt_cuda_launch_args *table)
{
	uint64_t seen = find_staged(d, segment);
	struct ckpt_cuda_span span;
	struct ckpt_cuda_grid grid;

	if (!is_small(copy, segment))
		return false;
	if (segment->length == 0 || ckpt_view_bytes(&segment->view) == 0)
		return true;
	if (!seen)
		return false;
	if (ckpt_cuda_span_of(segment, &span) == 0) {
		span.staged = seen;
		ckpt_cuda_launch_args_add(table, &span);
		return true;
	}
	if (why_no_grid(d, segment, copy->direction == CKPT_COPY_FROM_STAGING))
		return false;
	ckpt_cuda_grid_of(segment, seen, &grid);
	span = (struct ckpt_cuda_span){.run = 1};
	span.length = ckpt_cuda_grid_items(&grid, &span.offset);
	if (span.length > 0)
		ckpt_cuda_launch_args_add_grid(table, &span, &grid);
	return true;
}

static int launch_copies(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_cuda_launch_args *t)
{
	bool scatter = copy->direction == CKPT_COPY_FROM_STAGING;
	int r = ckpt_cuda_fail_stopped(copy, copy->error);

	if (r < 0)
		return r;
	d->group.entries++;
	int e = ckpt_cuda_launch_copies(&d->kernels, scatter, t->seen_spans, t->count, d->stream);

	return e == CKPT_CUDA_SUCCESS ? 0
				      : ckpt_cuda_fail_asking(d, copy->error, e, "cuLaunchKernel");
}

static int feed_moves(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	struct ckpt_cuda_launch_args *table)
{
	bool launch = begin_launch(d, copy, table);
	int r = 0;

	for (size_t i = 0; i < copy->count && r == 0; i++) {
		const struct ckpt_segment *segment = &copy->segments[i];

		if (!is_own(copy, segment) || (launch && add_small(d, copy, segment, table)))
			continue;
		r = feed_segment(d, copy, segment);
	}
	return r == 0 && launch && table->count > 0 ? launch_copies(d, copy, table) : r;
}

static void fill_samples(const struct ckpt_copy *copy, struct ckpt_cuda_launch_args *table)
{
	for (size_t i = 0; i < copy->count; i++) {
		const struct ckpt_segment *s = &copy->segments[i];
		uint64_t key = ckpt_sample_key(copy->seed, s->offset, s->tensor, s->length);
		struct ckpt_cuda_span span;
		struct ckpt_cuda_grid grid;

		if (!ckpt_cuda_looks_at(copy, s))
			continue;
		if (ckpt_cuda_span_of(s, &span) == 0) {
			span.key = key;
			ckpt_cuda_launch_args_add(table, &span);
			continue;
		}
		ckpt_cuda_grid_of(s, 0, &grid);
		span = (struct ckpt_cuda_span){
			.run = 1, .offset = s->offset, .length = s->length, .key = key};
		ckpt_cuda_launch_args_add_grid(table, &span, &grid);
	}
}

/* Takes all samples by one launch. */
static int feed_samples(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	struct ckpt_cuda_launch_args *table)
{
	const char *what = NULL;
	size_t count = 0;
	size_t grids = 0;
	int e;

	if (!d->kernels.module)
		return ckpt_fail(copy->error, CKPT_EUNSUPPORTED,
			"GPU %d has no kernels, so no samples of its memory can be taken: %s",
			d->index, d->kernels.why_not);
	for (size_t i = 0; i < copy->count; i++) {
		bool own = ckpt_cuda_looks_at(copy, &copy->segments[i]);

		count += own;
		grids += own && may_be_grid(&copy->segments[i]);
	}
	if (count == 0)
		return 0;
	e = ckpt_cuda_launch_args_reserve(&d->api, table, count, grids, &what);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail_asking(d, copy->error, e, what);
	fill_samples(copy, table);
	int r = ckpt_cuda_fail_stopped(copy, copy->error);
	if (r < 0)
		return r;
	d->group.entries++;
	e = ckpt_cuda_launch_samples(
		&d->kernels, table->seen_spans, table->count, table->seen_samples, d->stream);
	return e == CKPT_CUDA_SUCCESS ? 0
				      : ckpt_cuda_fail_asking(d, copy->error, e, "cuLaunchKernel");
}

int ckpt_cuda_submit_segments(
	struct ckpt_cuda_device *d, struct ckpt_copy *copy, struct ckpt_cuda_launch_args *table)
{
	return ckpt_cuda_looks(copy) ? feed_samples(d, copy, table) : feed_moves(d, copy, table);
}
