/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of a GPU are told of a segment whose elements lie anyhow. Read by the compilers of both sides. */
#ifndef CKPT_DEVICE_CUDA_GRID_H
#define CKPT_DEVICE_CUDA_GRID_H

#include <stdint.h>

/* Those of a view, and one within its runs. */
#define CKPT_CUDA_GRID_DIMS 17

/* One moves what lies in so many bytes of staging, which begin at a multiple of that: one store, or one load. */
#define CKPT_CUDA_WINDOW 16

/* A dimension: how many, and the bytes from one to the next. */
struct ckpt_cuda_dim {
	uint64_t count;
	uint64_t step;  /* in the GPU's memory, modulo 2^64: it may be backwards */
	uint64_t pitch; /* from row to row in staging; within a row: means nothing */
};

/*
 * Places are counted in the row-major bytes that the segment's offset counts. The view lies there in rows of bytes
 * without gaps: one row, or, in the array that the view is a box of, many. A row's windows have numbers, and the
 * windows of all rows, one row after the other, are the grid's items; some are empty.
 */
struct ckpt_cuda_grid {
	uint64_t data; /* the view's first element, as the GPU addresses it */
	uint64_t
		staged; /* where place 0 would be in staging, as the GPU addresses it, modulo 2^64 */
	uint64_t base;  /* the first row's place */
	uint64_t row;   /* bytes of a row */
	uint64_t windows; /* of a row, at most */
	uint64_t from;    /* the places that are moved */
	uint64_t end;
	uint32_t
		unit; /* bytes that lie together on both sides, and at their alignment: 1, 2, 4, 8 or 16 */
	uint32_t inner; /* dimensions within a row, in units; not 0 */
	uint32_t ndim;  /* and those of rows */
	uint32_t unused;
	struct ckpt_cuda_dim dims[CKPT_CUDA_GRID_DIMS]; /* the innermost first */
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct ckpt_cuda_grid) == 480, "the host and the kernels agree");

/* Kernels' names in the module. Arguments: the grid itself, number of the first item, number of items. */
#define CKPT_CUDA_GATHER_GRID  "ckpt_gather_grid"
#define CKPT_CUDA_SCATTER_GRID "ckpt_scatter_grid"

#endif
