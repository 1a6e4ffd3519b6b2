/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two elements of a view share memory. */
#include "device/device.h"

/* Most places to compare. Real views need fewer; one that needs more is treated as overlapping. */
#define STEPS (UINT64_C(1) << 22)

struct dim {
	uint64_t count;
	uint64_t step;  /* in elements, absolute */
	uint64_t reach; /* extent of the previous dimensions, first to last element */
};

struct search {
	struct dim dims[CKPT_NDIM_MAX]; /* smallest step first */
	uint64_t steps;
};

static void add(struct search *s, uint32_t *ndim, uint64_t count, uint64_t step)
{
	uint32_t at = (*ndim)++;

	for (; at > 0 && s->dims[at - 1].step > step; at--)
		s->dims[at] = s->dims[at - 1];
	s->dims[at] = (struct dim){.count = count, .step = step};
}

static uint64_t distance(uint64_t a, uint64_t b)
{
	return a < b ? b - a : a - b;
}

/* State of the search in one dimension. */
struct turn {
	uint64_t far; /* distance left for this dimension and the previous ones */
	uint64_t n;   /* number of its elements to try next */
	/* Beyond the target, so that previous dimensions compensate; else short of it. */
	bool away;
};

/* The distance left after the next number of elements of a dimension; false: none is left to try. */
static bool next_far(const struct dim *d, struct turn *t, uint64_t *ret_far)
{
	if (!t->away) {
		/* As long as the previous dimensions can make up for the rest, on either side. */
		if (t->n < d->count && t->n * d->step <= t->far + d->reach) {
			*ret_far = distance(t->n++ * d->step, t->far);
			return true;
		}
		t->away = true;
		t->n = 1;
	}
	if (t->n >= d->count || t->far + t->n * d->step > d->reach)
		return false;
	*ret_far = t->far + t->n++ * d->step;
	return true;
}

/* Whether elements `far` apart can be reached by steps in the first `ndim` dimensions. */
static bool leads(struct search *s, uint32_t ndim, uint64_t far)
{
	struct turn turns[CKPT_NDIM_MAX + 1];
	uint32_t at = ndim;

	for (;;) {
		if (far == 0 || s->steps == 0)
			return true;
		s->steps--;
		turns[at] = (struct turn){.far = far};
		if (at > 0 && far > s->dims[at - 1].reach)
			turns[at].n = (far - s->dims[at - 1].reach + s->dims[at - 1].step - 1) /
				      s->dims[at - 1].step;
		/* Back to the nearest dimension with something left to try. */
		while (at == 0 || !next_far(&s->dims[at - 1], &turns[at], &far))
			if (at++ == ndim)
				return false;
		at--;
	}
}

bool ckpt_view_shares(const struct ckpt_view *view)
{
	struct search s = {.steps = STEPS};
	uint32_t ndim = 0;
	uint64_t reach = 0;

	if (!view->strides || ckpt_view_bytes(view) == 0)
		return false;
	CKPT_ASSERT(ckpt_view_stray(view) < 0);
	for (uint32_t i = 0; i < view->ndim; i++) {
		int64_t stride = view->strides[i];

		if (view->shape[i] > 1)
			add(&s, &ndim, (uint64_t)view->shape[i],
				stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride);
	}
	for (uint32_t i = 0; i < ndim; i++) {
		struct dim *d = &s.dims[i];

		d->reach = reach;
		reach += d->step * (d->count - 1);
		/*
		 * Two elements whose outermost difference is in this dimension: the others can only compensate up to
		 * their reach.
		 */
		for (uint64_t n = 1; n < d->count && n * d->step <= d->reach; n++)
			if (leads(&s, i, n * d->step))
				return true;
	}
	return false;
}
