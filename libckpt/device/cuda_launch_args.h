/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of one launch, with the grids that it names and room for its samples, in pinned memory of the device's own.
 * Kept, and grown.
 */
#ifndef CKPT_DEVICE_CUDA_LAUNCH_ARGS_H
#define CKPT_DEVICE_CUDA_LAUNCH_ARGS_H

#include "base/error.h"
#include "device/cuda_grid.h"
#include "device/cuda_host_register.h"
#include "device/cuda_span.h"

struct ckpt_cuda_launch_args {
	void *memory;              /* NULL: none yet */
	struct ckpt_cuda_pin *pin; /* of the whole pages in it */
	struct ckpt_cuda_span *spans;
	uint64_t *samples;
	struct ckpt_cuda_grid *grids;
	uint64_t seen_spans; /* where the GPU has them */
	uint64_t seen_samples;
	uint64_t seen_grids;
	uint32_t count; /* spans in it */
	uint32_t room;
	uint32_t grid_count;
	uint32_t grid_room;
};

/*
 * Empties it and makes room, which nothing that was launched may still use. A cudaError_t, with what failed. The table
 * is as good as new then.
 */
int ckpt_cuda_launch_args_reserve(const struct ckpt_cuda_api *api,
	struct ckpt_cuda_launch_args *table, size_t spans, size_t grids, const char **ret_what);
/* Precondition: there is room. */
void ckpt_cuda_launch_args_add(
	struct ckpt_cuda_launch_args *table, const struct ckpt_cuda_span *span);
/* The same; `span->grid` is set to where it is. */
void ckpt_cuda_launch_args_add_grid(struct ckpt_cuda_launch_args *table,
	struct ckpt_cuda_span *span, const struct ckpt_cuda_grid *grid);
void ckpt_cuda_launch_args_free(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_launch_args *table);

#endif
