/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_grids.h"

#include "device/cuda_copy_plan.h"
#include "device/kernels/units.h"

_Static_assert(CKPT_CUDA_GRID_DIMS == CKPT_NDIM_MAX + 1, "there is room for every view");
_Static_assert(CKPT_CUDA_GRID_ITEMS *CKPT_CUDA_WINDOW == CKPT_CUDA_PIECE, "as it is said");

/* Adds an outer dimension, or extends the last one if it continues it on both sides. */
static void add_outer(struct ckpt_cuda_grid *g, const struct ckpt_cuda_dim *dim)
{
	struct ckpt_cuda_dim *last = &g->dims[g->ndim - 1];

	if (last->step * last->count == dim->step && last->pitch * last->count == dim->pitch)
		last->count *= dim->count;
	else
		g->dims[g->ndim++] = *dim;
}

/* Sets base and dimensions. The first dimension is that of the elements of a run, even if it is one. */
static void reduce(const struct ckpt_segment *segment, struct ckpt_cuda_grid *g)
{
	const struct ckpt_view *view = &segment->view;
	const int64_t *around = segment->around ? segment->around : view->shape;
	const int64_t *start = segment->around ? segment->around + view->ndim : NULL;
	uint64_t pitch = view->item;
	uint64_t step = view->item;

	g->dims[0] = (struct ckpt_cuda_dim){1, view->item, view->item};
	g->ndim = 1;
	for (uint32_t i = view->ndim; i-- > 0;) {
		uint64_t count = (uint64_t)view->shape[i];

		/* Negative strides are correct modulo 2^64. */
		if (view->strides && count > 1)
			step = (uint64_t)view->strides[i] * view->item;
		if (count > 1)
			add_outer(g, &(struct ckpt_cuda_dim){count, step, pitch});
		if (start)
			g->base += (uint64_t)start[i] * pitch;
		pitch *= (uint64_t)around[i];
		if (!view->strides)
			step *= count;
	}
}

/* Divides runs into units. */
static void cut_in_units(struct ckpt_cuda_grid *g, bool sampled)
{
	uint64_t run = g->dims[0].count * g->dims[0].step;
	uint64_t bits = run | g->data | g->staged | g->base | g->from | g->end | (sampled ? 8 : 0);

	for (uint32_t i = 1; i < g->ndim; i++)
		bits |= g->dims[i].step | g->dims[i].pitch;
	g->unit = ckpt_unit_of(bits);
	g->dims[0] = (struct ckpt_cuda_dim){run / g->unit, g->unit, g->unit};
	/* The first dimension is iterated without division, so it should have more than one unit. */
	if (run > g->unit || g->ndim == 1 || g->dims[1].pitch != g->unit)
		return;
	g->ndim--;
	for (uint32_t i = 0; i < g->ndim; i++)
		g->dims[i] = g->dims[i + 1];
}

void ckpt_cuda_grid_of(
	const struct ckpt_segment *segment, uint64_t staged, struct ckpt_cuda_grid *ret_grid)
{
	struct ckpt_cuda_grid *g = ret_grid;

	CKPT_ASSERT(segment->length > 0 && ckpt_view_bytes(&segment->view) > 0);
	CKPT_ASSERT(segment->view.data && (staged || !segment->around));
	*g = (struct ckpt_cuda_grid){.data = (uintptr_t)segment->view.data,
		.staged = staged ? staged - segment->offset : 0,
		.from = segment->offset,
		.end = segment->offset + segment->length};
	reduce(segment, g);
	cut_in_units(g, !staged);
	g->row = g->unit;
	while (g->inner < g->ndim && g->dims[g->inner].pitch == g->row)
		g->row *= g->dims[g->inner++].count;
	/* A row may begin at the last byte of a window. */
	g->windows = (g->row - 1 + CKPT_CUDA_WINDOW - 1) / CKPT_CUDA_WINDOW + 1;
}

/* The item of the window with this position, or the last one before it. The first row does not begin after it. */
static uint64_t item_of(const struct ckpt_cuda_grid *g, uint64_t place)
{
	uint64_t left = place - g->base;
	uint64_t row = 0;
	uint64_t before;

	for (uint32_t i = g->ndim; i-- > g->inner;) {
		uint64_t index = ckpt_min_u64(left / g->dims[i].pitch, g->dims[i].count - 1);

		left -= index * g->dims[i].pitch;
		row = row * g->dims[i].count + index;
	}
	before = (g->staged + place - left) % CKPT_CUDA_WINDOW;
	return row * g->windows + ckpt_min_u64((left + before) / CKPT_CUDA_WINDOW, g->windows - 1);
}

uint64_t ckpt_cuda_grid_items(const struct ckpt_cuda_grid *g, uint64_t *ret_first)
{
	*ret_first = 0;
	if (g->end <= g->base)
		return 0;
	*ret_first = item_of(g, ckpt_max_u64(g->from, g->base));
	return item_of(g, g->end - 1) - *ret_first + 1;
}

static uint64_t distance(const struct ckpt_cuda_dim *dim)
{
	return (int64_t)dim->step < 0 ? 0 - dim->step : dim->step;
}

bool ckpt_cuda_grid_apart(const struct ckpt_cuda_grid *grid)
{
	struct ckpt_cuda_grid g = *grid;
	uint64_t reach = g.unit;

	/* Sorted by distance: each step must exceed the extent of all smaller dimensions. */
	for (uint32_t i = 0; i < g.ndim; i++) {
		for (uint32_t j = i + 1; j < g.ndim; j++) {
			struct ckpt_cuda_dim dim = g.dims[i];

			if (distance(&g.dims[j]) >= distance(&dim))
				continue;
			g.dims[i] = g.dims[j];
			g.dims[j] = dim;
		}
		if (g.dims[i].count > 1 && distance(&g.dims[i]) < reach)
			return false;
		reach += distance(&g.dims[i]) * (g.dims[i].count - 1);
	}
	return true;
}
