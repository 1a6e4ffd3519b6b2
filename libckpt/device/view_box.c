/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills a view that is a box of a row-major array from the array's bytes. Both sides are reduced together to as few
 * dimensions as possible of runs that are contiguous in both.
 */
#include "device/device.h"
#include "device/copy_runs.h"

/* A dimension: its distances in the array and in the view, in bytes. */
struct stride {
	uint64_t count; /* at least two */
	uint64_t from;
	int64_t to;
};

struct weave {
	char *to;
	uint64_t from; /* offset of the box's first byte in the array */
	uint64_t run;
	uint32_t ndim;
	struct stride dims[CKPT_NDIM_MAX];
};

/* The current run. */
struct place {
	uint64_t index[CKPT_NDIM_MAX];
	uint64_t from;
	char *to;
};

/* Adds an outer dimension, or extends the last one if it continues it. */
static void add_outer(struct weave *w, uint64_t count, uint64_t from, int64_t to)
{
	struct stride *last = w->ndim > 0 ? &w->dims[w->ndim - 1] : NULL;
	int64_t extent;

	if (last && last->from * last->count == from &&
		!__builtin_mul_overflow(last->to, (int64_t)last->count, &extent) && extent == to) {
		last->count *= count;
		return;
	}
	w->dims[w->ndim++] = (struct stride){.count = count, .from = from, .to = to};
}

/* The view is not empty. dims[0] is the innermost. */
static void reduce(const struct ckpt_view *view, const int64_t *around, struct weave *w)
{
	const int64_t *start = around + view->ndim;
	uint64_t from = view->item;
	int64_t to = view->item;

	*w = (struct weave){.to = view->data};
	for (uint32_t i = view->ndim; i-- > 0;) {
		if (view->strides && view->shape[i] > 1) {
			bool overflow =
				__builtin_mul_overflow(view->strides[i], (int64_t)view->item, &to);
			CKPT_ASSERT(!overflow);
		}
		if (view->shape[i] > 1)
			add_outer(w, (uint64_t)view->shape[i], from, to);
		w->from += (uint64_t)start[i] * from;
		from *= (uint64_t)around[i];
		if (!view->strides)
			to *= view->shape[i];
	}
	w->run = view->item;
	if (w->ndim > 0 && w->dims[0].from == view->item && w->dims[0].to == (int64_t)view->item) {
		w->run *= w->dims[0].count;
		w->ndim--;
		for (uint32_t i = 0; i < w->ndim; i++)
			w->dims[i] = w->dims[i + 1];
	}
}

/* The last run that begins at or before byte `offset` of the array; the first if none does. */
static struct place seek(const struct weave *w, uint64_t offset)
{
	uint64_t left = offset > w->from ? offset - w->from : 0;
	struct place p = {.from = w->from, .to = w->to};

	for (uint32_t i = w->ndim; i-- > 0;) {
		const struct stride *d = &w->dims[i];

		p.index[i] = ckpt_min_u64(left / d->from, d->count - 1);
		left -= p.index[i] * d->from;
		p.from += p.index[i] * d->from;
		p.to += (int64_t)p.index[i] * d->to;
	}
	return p;
}

/* Advances by `n` runs of the innermost dimension, which has that many left. False: that was the last. */
static bool advance(const struct weave *w, struct place *p, uint64_t n)
{
	for (uint32_t i = 0; i < w->ndim; i++) {
		const struct stride *d = &w->dims[i];

		p->index[i] += n;
		p->from += n * d->from;
		p->to += (int64_t)n * d->to;
		if (p->index[i] < d->count)
			return true;
		p->from -= d->count * d->from;
		p->to -= (int64_t)d->count * d->to;
		p->index[i] = 0;
		n = 1;
	}
	return false;
}

/* How many runs from here to the end of the innermost dimension are within [offset, end). */
static uint64_t whole_runs(
	const struct weave *w, const struct place *p, uint64_t offset, uint64_t end)
{
	if (w->ndim == 0 || p->from < offset || p->from > end || end - p->from < w->run)
		return 0;
	return ckpt_min_u64(
		(end - p->from - w->run) / w->dims[0].from + 1, w->dims[0].count - p->index[0]);
}

void ckpt_view_scatter_box(const struct ckpt_view *view, const int64_t *around, uint64_t offset,
	uint64_t length, const char *in)
{
	uint64_t end = offset + length;
	struct weave w;

	if (length == 0 || ckpt_view_bytes(view) == 0)
		return;
	CKPT_ASSERT(view->data && in);
	reduce(view, around, &w);
	struct place p = seek(&w, offset);
	uint64_t n;
	do {
		n = whole_runs(&w, &p, offset, end);
		if (n > 0) {
			ckpt_scatter_runs(p.to, w.dims[0].to, in + (p.from - offset),
				(int64_t)w.dims[0].from, n, w.run);
			continue;
		}
		uint64_t lo = ckpt_max_u64(p.from, offset);
		uint64_t hi = ckpt_min_u64(p.from + w.run, end);
		if (lo < hi)
			ckpt_memcpy_nt(p.to + (lo - p.from), in + (lo - offset), hi - lo);
		n = 1;
	} while (advance(&w, &p, n) && p.from < end);
}
