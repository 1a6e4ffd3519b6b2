/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers strided views to contiguous bytes and scatters them. A view is first reduced to runs of contiguous bytes and
 * as few dimensions of runs as possible.
 */
#include "device/device.h"

#include "device/copy_runs.h"

/* A reduced view. Dimensions of one element are removed; none is zero. */
struct grid {
	char *data;
	uint64_t run;  /* contiguous bytes */
	uint32_t ndim; /* dimensions of runs; 0: one run */
	uint64_t count[CKPT_NDIM_MAX];
	int64_t step[CKPT_NDIM_MAX]; /* in bytes */
};

/* The current row of runs: index of every dimension but the last. */
struct cursor {
	uint64_t index[CKPT_NDIM_MAX];
	int64_t at; /* of the row's first run, from grid.data */
};

uint64_t ckpt_view_bytes(const struct ckpt_view *view)
{
	uint64_t bytes = view->item;
	bool empty = false;

	CKPT_ASSERT(view->ndim <= CKPT_NDIM_MAX && view->item > 0);
	for (uint32_t i = 0; i < view->ndim; i++) {
		CKPT_ASSERT(view->shape[i] >= 0);
		empty = empty || view->shape[i] == 0;
	}
	for (uint32_t i = 0; i < view->ndim && !empty; i++) {
		bool overflow = __builtin_mul_overflow(bytes, (uint64_t)view->shape[i], &bytes);

		CKPT_ASSERT(!overflow);
	}
	return empty ? 0 : bytes;
}

int ckpt_view_stray(const struct ckpt_view *view)
{
	uint64_t reach = view->item;

	for (uint32_t i = 0; view->strides && i < view->ndim; i++) {
		int64_t stride = view->strides[i];
		uint64_t bytes = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;

		if (view->shape[i] < 2)
			continue;
		if (__builtin_mul_overflow(bytes, (uint64_t)view->shape[i] - 1, &bytes) ||
			__builtin_mul_overflow(bytes, view->item, &bytes) ||
			__builtin_add_overflow(reach, bytes, &reach) || reach > INT64_MAX)
			return (int)i;
	}
	return -1;
}

/* Adds an inner dimension; joins it with the previous one if it fills that one's step. */
static void add_dimension(struct grid *grid, int64_t count, int64_t step)
{
	uint32_t last = grid->ndim - 1;
	int64_t extent;

	if (grid->ndim > 0 && !__builtin_mul_overflow(count, step, &extent) &&
		extent == grid->step[last]) {
		grid->count[last] *= (uint64_t)count;
		grid->step[last] = step;
		return;
	}
	grid->count[grid->ndim] = (uint64_t)count;
	grid->step[grid->ndim] = step;
	grid->ndim++;
}

/* The view is not empty. */
static void reduce(const struct ckpt_view *view, struct grid *grid)
{
	grid->data = view->data;
	grid->ndim = 0;
	if (!view->strides) {
		grid->run = ckpt_view_bytes(view);
		return;
	}
	for (uint32_t i = 0; i < view->ndim; i++) {
		int64_t step;
		bool overflow;

		/* The stride of a dimension of one element is arbitrary. */
		if (view->shape[i] == 1)
			continue;
		overflow = __builtin_mul_overflow(view->strides[i], (int64_t)view->item, &step);
		CKPT_ASSERT(!overflow);
		add_dimension(grid, view->shape[i], step);
	}
	grid->run = view->item;
	if (grid->ndim > 0 && grid->step[grid->ndim - 1] == (int64_t)view->item) {
		grid->ndim--;
		grid->run *= grid->count[grid->ndim];
	}
}

bool ckpt_view_contiguous(const struct ckpt_view *view)
{
	struct grid grid;

	if (!view->strides || ckpt_view_bytes(view) == 0)
		return true;
	reduce(view, &grid);
	return grid.ndim == 0;
}

#define TILE_BYTES (16 << 10)
#define SWAP_BAND  512 /* rows whose pages stay in the TLB while the band is copied */

/*
 * Two exchanged dimensions. Element (i, j) is at from + i * from_row + j * its size and goes to to + j * to_row + i *
 * its size.
 */
struct swap {
	char *to;
	const char *from;
	int64_t to_row;
	int64_t from_row;
	int64_t ni;
	int64_t nj;
};

/* Elements along a tile's edge: several lines in each direction, while the tile fits into the first-level cache. */
static inline __attribute__((always_inline)) int64_t tile_edge(size_t size)
{
	return size <= 4 ? 64 : 16;
}

/* Copies `ni` by `nj` elements from (i, j) through a tile, so that both sides move whole lines. */
static inline __attribute__((always_inline)) void swap_tile(
	const struct swap *s, int64_t i, int64_t j, int64_t ni, int64_t nj, size_t size)
{
	int64_t item = (int64_t)size;
	const char *from = s->from + i * s->from_row + j * item;
	char *to = s->to + j * s->to_row + i * item;
	int64_t pitch = tile_edge(size) * item;
	_Alignas(64) char tile[TILE_BYTES];

	for (int64_t k = 0; k < ni; k++)
		memcpy(tile + k * pitch, from + k * s->from_row, (size_t)(nj * item));
	for (int64_t k = 0; k < nj; k++)
		ckpt_copy_sized(
			to + k * s->to_row, item, tile + k * item, pitch, (uint64_t)ni, size);
}

static inline __attribute__((always_inline)) void swap_sized(const struct swap *s, size_t size)
{
	int64_t edge = tile_edge(size);

	for (int64_t band = 0; band < s->nj; band += SWAP_BAND) {
		int64_t end = s->nj - band < SWAP_BAND ? s->nj : band + SWAP_BAND;

		for (int64_t i = 0; i < s->ni; i += edge) {
			int64_t ni = s->ni - i < edge ? s->ni - i : edge;

			for (int64_t j = band; j < end; j += edge) {
				int64_t nj = end - j < edge ? end - j : edge;

				/* Most tiles are complete: then all counts are constants. */
				if (ni == edge && nj == edge)
					swap_tile(s, i, j, edge, edge, size);
				else
					swap_tile(s, i, j, ni, nj, size);
			}
		}
	}
}

/* False if there is no fast way for elements of that size. */
static bool swap_runs(const struct swap *s, uint64_t run)
{
	switch (run) {
	case 1:
		swap_sized(s, 1);
		return true;
	case 2:
		swap_sized(s, 2);
		return true;
	case 4:
		swap_sized(s, 4);
		return true;
	case 8:
		swap_sized(s, 8);
		return true;
	case 16:
		swap_sized(s, 16);
		return true;
	default:
		return false;
	}
}

/* Copies `rows` whole rows of the last but one dimension. */
static void copy_rows(const struct grid *grid, int64_t at, uint64_t rows, char *flat, bool gather)
{
	uint32_t last = grid->ndim - 1;
	uint64_t columns = grid->count[last];
	int64_t column_step = grid->step[last];
	int64_t row_step = last > 0 ? grid->step[last - 1] : 0;
	int64_t run = (int64_t)grid->run;
	int64_t flat_row = (int64_t)columns * run;

	if (rows > 1 && row_step == run) {
		struct swap into = {flat, grid->data + at, flat_row, column_step, (int64_t)columns,
			(int64_t)rows};
		struct swap back = {grid->data + at, flat, column_step, flat_row, (int64_t)rows,
			(int64_t)columns};

		if (swap_runs(gather ? &into : &back, grid->run))
			return;
	}
	for (int64_t row = 0; row < (int64_t)rows; row++) {
		char *view = grid->data + at + row * row_step;

		if (gather)
			ckpt_copy_runs(
				flat + row * flat_row, run, view, column_step, columns, grid->run);
		else
			ckpt_scatter_runs(
				view, column_step, flat + row * flat_row, run, columns, grid->run);
	}
}

/* Moves to the row of run number `run`. */
static void seek(const struct grid *grid, uint64_t run, struct cursor *cursor)
{
	uint64_t row = run / grid->count[grid->ndim - 1];

	cursor->at = 0;
	for (uint32_t d = grid->ndim - 1; d-- > 0;) {
		cursor->index[d] = row % grid->count[d];
		cursor->at += (int64_t)cursor->index[d] * grid->step[d];
		row /= grid->count[d];
	}
}

/* Rows from the cursor to the end of the last but one dimension. */
static uint64_t rows_ahead(const struct grid *grid, const struct cursor *cursor)
{
	uint32_t rows = grid->ndim - 2;

	return grid->ndim > 1 ? grid->count[rows] - cursor->index[rows] : 1;
}

/* Requires rows <= rows_ahead(). */
static void advance(const struct grid *grid, struct cursor *cursor, uint64_t rows)
{
	for (uint32_t d = grid->ndim - 1; d-- > 0;) {
		cursor->index[d] += rows;
		cursor->at += (int64_t)rows * grid->step[d];
		if (cursor->index[d] < grid->count[d])
			return;
		cursor->at -= (int64_t)cursor->index[d] * grid->step[d];
		cursor->index[d] = 0;
		rows = 1;
	}
}

/* Copies `count` whole runs from number `first`. */
static void copy_whole(
	const struct grid *grid, uint64_t first, uint64_t count, char *flat, bool gather)
{
	uint64_t columns = grid->count[grid->ndim - 1];
	int64_t step = grid->step[grid->ndim - 1];
	uint64_t column = first % columns;
	struct cursor cursor;

	seek(grid, first, &cursor);
	while (count > 0) {
		uint64_t rows = 1;
		uint64_t n = ckpt_min_u64(columns - column, count);
		char *view = grid->data + cursor.at + (int64_t)column * step;

		if (n == columns) {
			rows = ckpt_min_u64(count / columns, rows_ahead(grid, &cursor));
			n *= rows;
			copy_rows(grid, cursor.at, rows, flat, gather);
		} else if (gather) {
			ckpt_copy_runs(flat, (int64_t)grid->run, view, step, n, grid->run);
		} else {
			ckpt_scatter_runs(view, step, flat, (int64_t)grid->run, n, grid->run);
		}
		advance(grid, &cursor, rows);
		flat += n * grid->run;
		count -= n;
		column = 0;
	}
}

/* Copies bytes within one run. */
static void copy_part(
	const struct grid *grid, uint64_t offset, uint64_t length, char *flat, bool gather)
{
	uint64_t run = offset / grid->run;
	char *view = grid->data + offset % grid->run;

	for (uint32_t d = grid->ndim; d-- > 0;) {
		view += (int64_t)(run % grid->count[d]) * grid->step[d];
		run /= grid->count[d];
	}
	if (gather)
		ckpt_memcpy_nt(flat, view, length);
	else
		ckpt_memcpy_nt(view, flat, length);
}

static void transfer(
	const struct ckpt_view *view, uint64_t offset, uint64_t length, char *flat, bool gather)
{
	uint64_t bytes = ckpt_view_bytes(view);
	uint64_t part;
	struct grid grid;

	CKPT_ASSERT(offset <= bytes && length <= bytes - offset);
	if (length == 0)
		return;
	CKPT_ASSERT(view->data && flat);
	reduce(view, &grid);
	part = ckpt_min_u64((grid.run - offset % grid.run) % grid.run, length);
	if (grid.ndim == 0)
		part = length;
	if (part > 0)
		copy_part(&grid, offset, part, flat, gather);
	offset += part;
	flat += part;
	length -= part;
	if (length >= grid.run)
		copy_whole(&grid, offset / grid.run, length / grid.run, flat, gather);
	part = length % grid.run;
	if (part > 0)
		copy_part(&grid, offset + length - part, part, flat + length - part, gather);
}

void ckpt_view_gather(const struct ckpt_view *view, uint64_t offset, uint64_t length, char *out)
{
	transfer(view, offset, length, out, true);
}

void ckpt_view_scatter(
	const struct ckpt_view *view, uint64_t offset, uint64_t length, const char *in)
{
	/* It is only read. */
	transfer(view, offset, length, (char *)in, false);
}
