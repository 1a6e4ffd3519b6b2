/* SPDX-License-Identifier: Apache-2.0 */
/* A segment as a grid: the one form that says of every view, and of every box of an array, where its elements lie. */
#ifndef CKPT_DEVICE_CUDA_GRIDS_H
#define CKPT_DEVICE_CUDA_GRIDS_H

#include "device/cuda_grid.h"
#include "device/device.h"

/* Items of one launch, at most: as many bytes as a piece of a copy has (cuda_copy_plan.h), for the same reason. */
#define CKPT_CUDA_GRID_ITEMS ((uint64_t)1 << 19)

/*
 * Preconditions: the segment and its view are not empty. `staged`: its first byte in staging, as the GPU has it; 0: it
 * is to be sampled, and is no box.
 */
void ckpt_cuda_grid_of(
	const struct ckpt_segment *segment, uint64_t staged, struct ckpt_cuda_grid *ret_grid);
/* The items in which what it moves lies: so many from the first on. 0: it moves nothing. */
uint64_t ckpt_cuda_grid_items(const struct ckpt_cuda_grid *grid, uint64_t *ret_first);
/* True if no two elements share memory. Some that do not, but lie between one another, are not seen to be apart. */
bool ckpt_cuda_grid_apart(const struct ckpt_cuda_grid *grid);

#endif
