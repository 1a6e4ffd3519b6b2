/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a launch, with its grids and space for samples, in pinned memory. Reused, and grown when needed. */
#ifndef CKPT_DEVICE_CUDA_LAUNCH_ARGS_H
#define CKPT_DEVICE_CUDA_LAUNCH_ARGS_H

#include "base/error.h"
#include "device/cuda_grid.h"
#include "device/cuda_host_register.h"
#include "device/cuda_span.h"

struct ckpt_cuda_launch_args {
	void *memory;              /* NULL: none yet */
	struct ckpt_cuda_pin *pin; /* of its whole pages */
	struct ckpt_cuda_span *spans;
	uint64_t *samples;
	struct ckpt_cuda_grid *grids;
	uint64_t seen_spans; /* their address on the GPU */
	uint64_t seen_samples;
	uint64_t seen_grids;
	uint32_t count; /* number of spans in it */
	uint32_t room;
	uint32_t grid_count;
	uint32_t grid_room;
};

/*
 * Empties it and reserves space. No launch may still use it. Returns a cudaError_t, with the failed function. The table
 * is unused then.
 */
int ckpt_cuda_launch_args_reserve(const struct ckpt_cuda_api *api,
	struct ckpt_cuda_launch_args *table, size_t spans, size_t grids, const char **ret_what);
/* Requires reserved space. */
void ckpt_cuda_launch_args_add(
	struct ckpt_cuda_launch_args *table, const struct ckpt_cuda_span *span);
/* The same; sets `span->grid` to its address. */
void ckpt_cuda_launch_args_add_grid(struct ckpt_cuda_launch_args *table,
	struct ckpt_cuda_span *span, const struct ckpt_cuda_grid *grid);
void ckpt_cuda_launch_args_free(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_launch_args *table);

#endif
