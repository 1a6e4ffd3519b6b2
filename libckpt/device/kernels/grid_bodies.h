/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of a kernel does of a grid. Threads that are neighbours take windows that are: together they write,
 * or read, whole lines of staging, which is the slow side; the GPU's caches bring the elements of other lines together.
 */
#ifndef CKPT_DEVICE_GRID_BODIES_H
#define CKPT_DEVICE_GRID_BODIES_H

#include <stdbool.h>
#include "device/cuda_grid.h"
#include "device/kernels/units.h"

/* So that a kernel reads a grid that it is given by value where it is, and makes no copy of it for each thread. */
#define CKPT_GRID_BODY static inline __attribute__((always_inline))

/* Division of 64 bits takes a GPU several times as long as one of 32. */
static inline uint64_t ckpt_grid_divide(uint64_t a, uint64_t b)
{
	return (a | b) >> 32 ? a / b : (uint32_t)a / (uint32_t)b;
}

/* Where a unit lies, and how many from it on, one step of the innermost dimension apart. */
struct ckpt_grid_place {
	uint64_t address;
	uint64_t left;
};

/* Unit number `at` of a row whose first one lies at `data`. */
CKPT_GRID_BODY struct ckpt_grid_place ckpt_grid_seek(
	const struct ckpt_cuda_grid *g, uint64_t data, uint64_t at)
{
	struct ckpt_grid_place p = {data, 0};

	for (uint32_t i = 0; i < g->inner; i++) {
		uint64_t next = ckpt_grid_divide(at, g->dims[i].count);
		uint64_t index = at - next * g->dims[i].count;

		if (i == 0)
			p.left = g->dims[i].count - index;
		p.address += index * g->dims[i].step;
		at = next;
	}
	return p;
}

/* The addresses of `count` units from number `at` on. */
CKPT_GRID_BODY void ckpt_grid_find(const struct ckpt_cuda_grid *g, uint64_t data, uint64_t at,
	uint32_t count, uint64_t ret_where[CKPT_CUDA_WINDOW])
{
	struct ckpt_grid_place p = {0, 0};

	for (uint32_t i = 0; i < count; i++) {
		if (p.left == 0)
			p = ckpt_grid_seek(g, data, at + i);
		ret_where[i] = p.address;
		p.address += g->dims[0].step;
		p.left--;
	}
}

/* A whole window. All its reads are under way at once: it is their time, not their number, that a thread waits for. */
#define CKPT_GRID_WINDOW(size)                                                                     \
	CKPT_GRID_BODY void ckpt_grid_gather##size(                                                \
		uint64_t staged, const uint64_t where[CKPT_CUDA_WINDOW])                           \
	{                                                                                          \
		ckpt_unit16 line = {0, 0};                                                         \
                                                                                                   \
		for (uint32_t i = 0; i < 8 / (size); i++)                                          \
			line[0] |= ckpt_unit_read(where[i], size) << (8 * (size)*i);               \
		for (uint32_t i = 0; i < 8 / (size); i++)                                          \
			line[1] |= ckpt_unit_read(where[8 / (size) + i], size) << (8 * (size)*i);  \
		*(ckpt_unit16 *)(uintptr_t)staged = line;                                          \
	}                                                                                          \
	CKPT_GRID_BODY void ckpt_grid_scatter##size(                                               \
		uint64_t staged, const uint64_t where[CKPT_CUDA_WINDOW])                           \
	{                                                                                          \
		ckpt_unit16 line = *(const ckpt_unit16 *)(uintptr_t)staged;                        \
                                                                                                   \
		for (uint32_t i = 0; i < 8 / (size); i++)                                          \
			*(ckpt_unit##size *)(uintptr_t)where[i] =                                  \
				(ckpt_unit##size)(line[0] >> (8 * (size)*i));                      \
		for (uint32_t i = 0; i < 8 / (size); i++)                                          \
			*(ckpt_unit##size *)(uintptr_t)where[8 / (size) + i] =                     \
				(ckpt_unit##size)(line[1] >> (8 * (size)*i));                      \
	}                                                                                          \
	CKPT_GRID_BODY void ckpt_grid_window##size(                                                \
		bool scatter, uint64_t staged, const uint64_t where[CKPT_CUDA_WINDOW])             \
	{                                                                                          \
		if (scatter)                                                                       \
			ckpt_grid_scatter##size(staged, where);                                    \
		else                                                                               \
			ckpt_grid_gather##size(staged, where);                                     \
	}

CKPT_GRID_WINDOW(1)
CKPT_GRID_WINDOW(2)
CKPT_GRID_WINDOW(4)
CKPT_GRID_WINDOW(8)

/* `bytes` of a window, from unit number `at` of the row on. */
CKPT_GRID_BODY void ckpt_grid_move(const struct ckpt_cuda_grid *g, bool scatter, uint64_t staged,
	uint64_t data, uint64_t at, uint32_t bytes)
{
	uint64_t where[CKPT_CUDA_WINDOW];
	uint32_t unit = g->unit;
	uint32_t count = bytes / unit;

	ckpt_grid_find(g, data, at, count, where);
	switch (bytes == CKPT_CUDA_WINDOW ? unit : CKPT_CUDA_WINDOW) {
	case 8:
		ckpt_grid_window8(scatter, staged, where);
		break;
	case 4:
		ckpt_grid_window4(scatter, staged, where);
		break;
	case 2:
		ckpt_grid_window2(scatter, staged, where);
		break;
	case 1:
		ckpt_grid_window1(scatter, staged, where);
		break;
	/* The end of a row, or of what is moved; or it is one unit. */
	default:
		for (uint32_t i = 0; i < count; i++, staged += unit)
			ckpt_unit_copy(
				scatter ? where[i] : staged, scatter ? staged : where[i], unit);
	}
}

/* An item. `scatter`: from staging; else to it. */
CKPT_GRID_BODY void ckpt_grid_copy(const struct ckpt_cuda_grid *g, bool scatter, uint64_t item)
{
	uint64_t data = g->data;
	uint64_t place = g->base;
	uint64_t low;
	uint64_t high;
	uint32_t before;

	if (g->inner < g->ndim) {
		uint64_t row = ckpt_grid_divide(item, g->windows);

		item -= row * g->windows;
		for (uint32_t i = g->inner; i < g->ndim; i++) {
			uint64_t next = ckpt_grid_divide(row, g->dims[i].count);
			uint64_t index = row - next * g->dims[i].count;

			data += index * g->dims[i].step;
			place += index * g->dims[i].pitch;
			row = next;
		}
	}
	/* Bytes of the first window that come before the row. */
	before = (uint32_t)(g->staged + place) % CKPT_CUDA_WINDOW;
	low = item == 0 ? 0 : CKPT_CUDA_WINDOW * item - before;
	high = CKPT_CUDA_WINDOW * (item + 1) - before;
	if (high > g->row)
		high = g->row;
	if (place + low < g->from)
		low = g->from - place;
	if (place + high > g->end)
		high = g->end > place ? g->end - place : 0;
	if (low < high)
		ckpt_grid_move(g, scatter, g->staged + place + low, data,
			ckpt_grid_divide(low, g->unit), (uint32_t)(high - low));
}

/* The word at byte `at` of a view that is one row; what is behind `end` is 0. No unit is greater than a word. */
CKPT_GRID_BODY uint64_t ckpt_grid_word(const struct ckpt_cuda_grid *g, uint64_t at, uint64_t end)
{
	uint64_t where[CKPT_CUDA_WINDOW];
	uint32_t bytes = end - at < 8 ? (uint32_t)(end - at) : 8;
	uint64_t word = 0;

	if (at >= end)
		return 0;
	ckpt_grid_find(g, g->data, ckpt_grid_divide(at, g->unit), bytes / g->unit, where);
	for (uint32_t i = 0; i < bytes; i += g->unit)
		word |= ckpt_unit_read(where[i / g->unit], g->unit) << (8 * i);
	return word;
}

#endif
