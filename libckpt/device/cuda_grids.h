/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a segment as a grid, the form that can express every view, and every box of an array. */
#ifndef CKPT_DEVICE_CUDA_GRIDS_H
#define CKPT_DEVICE_CUDA_GRIDS_H

#include "device/cuda_grid.h"
#include "device/device.h"

/* Most items of a launch: as many bytes as a piece of a copy (cuda_copy_plan.h), for the same reason. */
#define CKPT_CUDA_GRID_ITEMS ((uint64_t)1 << 19)

/*
 * The segment and its view are not empty. `staged`: GPU address of its first staged byte; 0: it is to be sampled, and
 * is no box.
 */
void ckpt_cuda_grid_of(
	const struct ckpt_segment *segment, uint64_t staged, struct ckpt_cuda_grid *ret_grid);
/* The items that move something: number of items from `first` on. 0: none. */
uint64_t ckpt_cuda_grid_items(const struct ckpt_cuda_grid *grid, uint64_t *ret_first);
/* True if no two elements share memory. False also for some interleaved views whose elements do not. */
bool ckpt_cuda_grid_apart(const struct ckpt_cuda_grid *grid);

#endif
