/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two elements of a view share memory. */
#include "device/device.h"

/* Places compared at most. Views that need so many are not met; one that did would be taken for shared. */
#define STEPS (UINT64_C(1) << 22)

struct dim {
	uint64_t count;
	uint64_t step;  /* elements; the direction does not matter */
	uint64_t reach; /* of the dimensions before it: from their first element to the last */
};

struct search {
	struct dim dims[CKPT_NDIM_MAX]; /* the nearest first */
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

/* How far the search has come in one dimension. */
struct turn {
	uint64_t far; /* still to go, by this dimension and those before it */
	uint64_t n;   /* of its elements, to be tried next */
	bool away;    /* from it, which those before it make up for; else towards it */
};

/* What is left to go after the next number of elements of a dimension; false: none is left to try. */
static bool next_far(const struct dim *d, struct turn *t, uint64_t *ret_far)
{
	if (!t->away) {
		/* As long as the others can make up for the rest, on either side. */
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

/* Whether going back and forth in the first `ndim` dimensions leads `far` elements away. */
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
		/* Back to the nearest dimension that has something left to try. */
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
		/* Two elements whose outermost difference is here: those within can only make up for their reach. */
		for (uint64_t n = 1; n < d->count && n * d->step <= d->reach; n++)
			if (leads(&s, i, n * d->step))
				return true;
	}
	return false;
}
