/* SPDX-License-Identifier: Apache-2.0 */
/* What of a copy goes into the stream: pieces of large segments, and launches for many small ones and for samples. */
#include "device/cuda_pieces.h"
#include "device/cuda_spans.h"
#include "device/cuda_state.h"
#include "device/sample_mix.h"

/* Fewer small segments are copied each for itself: a launch costs the device about as much as so many copies. */
#define FEW 4

static int refuse(const struct ckpt_cuda_device *d, const struct ckpt_copy *copy, int code)
{
	return ckpt_fail(copy->error, code,
		"a tensor on GPU %d is neither contiguous nor rows apart; make it contiguous "
		"(tensor.contiguous())",
		d->index);
}

static bool is_own(const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return segment->view.device == copy->device;
}

/*
 * How many pieces are in the stream at once is bounded by the driver, whose call waits when its queue is full. A
 * smaller bound here would make a hold wait sooner and longer, for it may return only when all are in the stream. That
 * they are few is cuda_pace.h's.
 */
static int feed_segment(struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment)
{
	struct ckpt_cuda_walk walk;
	struct ckpt_cuda_piece piece;
	int r = ckpt_cuda_walk_begin(segment, &walk);

	if (r < 0)
		return refuse(d, copy, r);
	walk.piece_max = d->group.piece_max;
	while (ckpt_cuda_walk_next(&walk, &piece)) {
		r = ckpt_cuda_group_put(d, segment, &piece);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_small(const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return is_own(copy, segment) && segment->length <= CKPT_CUDA_SPAN_MAX && !segment->around;
}

/* Whether small segments go by a launch. That there is no memory for it is no failure of the copy. */
static bool begin_launch(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, struct ckpt_cuda_table *table)
{
	const char *what;
	size_t small = 0;

	if (!d->kernels.module || !d->pinned)
		return false;
	for (size_t i = 0; i < copy->count; i++)
		small += is_small(copy, &copy->segments[i]);
	if (small < FEW)
		return false;
	if (ckpt_cuda_table_reserve(&d->api, table, small, &what) == CKPT_CUDA_SUCCESS)
		return true;
	(void)d->api.get_last_error();
	return false;
}

/* False: it is not small, or none of what the kernels can take. */
static bool add_small(const struct ckpt_cuda_device *d, const struct ckpt_copy *copy,
	const struct ckpt_segment *segment, struct ckpt_cuda_table *table)
{
	struct ckpt_cuda_span span;

	if (!is_small(copy, segment) || ckpt_cuda_span_of(segment, &span) < 0)
		return false;
	span.staged = ckpt_cuda_pins_find(d->pinned, segment->staged, segment->length);
	if (!span.staged)
		return false;
	ckpt_cuda_table_add(table, &span);
	return true;
}

static int launch_copies(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, const struct ckpt_cuda_table *t)
{
	bool scatter = copy->direction == CKPT_COPY_FROM_STAGING;

	d->group.entries++;
	int e = ckpt_cuda_launch_copies(&d->kernels, scatter, t->seen_spans, t->count, d->stream);

	return e == CKPT_CUDA_SUCCESS ? 0
				      : ckpt_cuda_fail_asking(d, copy->error, e, "cuLaunchKernel");
}

static int feed_moves(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, struct ckpt_cuda_table *table)
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

static int fill_samples(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, struct ckpt_cuda_table *table)
{
	for (size_t i = 0; i < copy->count; i++) {
		const struct ckpt_segment *s = &copy->segments[i];
		struct ckpt_cuda_span span;
		int r;

		if (!ckpt_cuda_looks_at(copy, s))
			continue;
		r = ckpt_cuda_span_of(s, &span);
		if (r < 0)
			return refuse(d, copy, r);
		span.key = ckpt_sample_key(copy->seed, s->offset, s->tensor, s->length);
		ckpt_cuda_table_add(table, &span);
	}
	return 0;
}

/* One launch for all of them. */
static int feed_samples(
	struct ckpt_cuda_device *d, const struct ckpt_copy *copy, struct ckpt_cuda_table *table)
{
	const char *what = NULL;
	size_t count = 0;
	int e;
	int r;

	if (!d->kernels.module)
		return ckpt_fail(copy->error, CKPT_EUNSUPPORTED,
			"GPU %d has no kernels, so no samples of its memory can be taken: %s",
			d->index, d->kernels.why_not);
	for (size_t i = 0; i < copy->count; i++)
		count += ckpt_cuda_looks_at(copy, &copy->segments[i]);
	if (count == 0)
		return 0;
	e = ckpt_cuda_table_reserve(&d->api, table, count, &what);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail_asking(d, copy->error, e, what);
	r = fill_samples(d, copy, table);
	if (r < 0)
		return r;
	d->group.entries++;
	e = ckpt_cuda_launch_samples(
		&d->kernels, table->seen_spans, table->count, table->seen_samples, d->stream);
	return e == CKPT_CUDA_SUCCESS ? 0
				      : ckpt_cuda_fail_asking(d, copy->error, e, "cuLaunchKernel");
}

int ckpt_cuda_feed_segments(
	struct ckpt_cuda_device *d, struct ckpt_copy *copy, struct ckpt_cuda_table *table)
{
	return ckpt_cuda_looks(copy) ? feed_samples(d, copy, table) : feed_moves(d, copy, table);
}
