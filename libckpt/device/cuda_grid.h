/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a segment with arbitrary strides to the kernels of a GPU. Compiled by both sides. */
#ifndef CKPT_DEVICE_CUDA_GRID_H
#define CKPT_DEVICE_CUDA_GRID_H

#include <stdint.h>

/* Dimensions of a view, plus one within its runs. */
#define CKPT_CUDA_GRID_DIMS 17

/* An item moves this many bytes of staging, which are aligned to it: one store or one load. */
#define CKPT_CUDA_WINDOW 16

/* A dimension: its size, and the distances between elements. */
struct ckpt_cuda_dim {
	uint64_t count;
	uint64_t step;  /* in the GPU's memory, modulo 2^64: it may be negative */
	uint64_t pitch; /* from row to row in staging; unused within a row */
};

/*
 * Positions are counted in the row-major bytes that the segment's offset counts. There the view consists of rows of
 * contiguous bytes: one row, or many if it is a box of an array. Each row is divided into windows, and the windows of
 * all rows, one row after the other, are the grid's items; some may be empty.
 */
struct ckpt_cuda_grid {
	uint64_t data;    /* address of the view's first element on the GPU */
	uint64_t staged;  /* GPU address of position 0 in staging, modulo 2^64 */
	uint64_t base;    /* position of the first row */
	uint64_t row;     /* bytes of a row */
	uint64_t windows; /* most windows of a row */
	uint64_t from;    /* positions that are moved */
	uint64_t end;
	uint32_t unit;  /* bytes that are contiguous and aligned on both sides: 1, 2, 4, 8 or 16 */
	uint32_t inner; /* dimensions within a row, in units; not 0 */
	uint32_t ndim;  /* dimensions of rows */
	uint32_t unused;
	struct ckpt_cuda_dim dims[CKPT_CUDA_GRID_DIMS]; /* innermost first */
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct ckpt_cuda_grid) == 480, "the host and the kernels agree");

/* Names of the kernels in the module. Arguments: the grid, number of the first item, number of items. */
#define CKPT_CUDA_GATHER_GRID  "ckpt_gather_grid"
#define CKPT_CUDA_SCATTER_GRID "ckpt_scatter_grid"

#endif
