/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of kernels/segments.cl, loaded by the CUDA driver, because not every CUDA 12 runtime can load PTX. A GPU
 * without them still copies, piece by piece.
 */
#ifndef CKPT_DEVICE_CUDA_DRIVER_H
#define CKPT_DEVICE_CUDA_DRIVER_H

#include <stdint.h>
#include "base/error.h"
#include "device/cuda_api.h"
#include "device/cuda_grid.h"

/* Functions of the dynamic linker. */
struct ckpt_cuda_driver_ops {
	void *(*dlopen)(const char *name, int flags);
	void *(*dlsym)(void *handle, const char *name);
};

/* The module in a GPU's context. */
struct ckpt_cuda_kernels {
	struct ckpt_cuda_driver driver;
	struct CUmod_st *module; /* NULL: there are no kernels */
	struct CUfunc_st *sample;
	struct CUfunc_st *gather;
	struct CUfunc_st *scatter;
	struct CUfunc_st *gather_grid;
	struct CUfunc_st *scatter_grid;
	char why_not[256];
};

/*
 * Loads the module in the calling thread's current context, which the runtime has created. On failure `module` is NULL,
 * and `why_not` has the reason. `ops` NULL: the real linker.
 */
void ckpt_cuda_kernels_load(
	const struct ckpt_cuda_driver_ops *ops, struct ckpt_cuda_kernels *ret_kernels);
/* In the same context, when all launches are done. Does nothing without a module. */
void ckpt_cuda_kernels_unload(struct ckpt_cuda_kernels *kernels);

/*
 * Launches for `count` spans, not 0, in the memory that the GPU sees at `table`. Samples are written to `samples` in
 * order. They return a CUresult.
 */
int ckpt_cuda_launch_samples(const struct ckpt_cuda_kernels *kernels, uint64_t table,
	uint32_t count, uint64_t samples, struct CUstream_st *stream);
int ckpt_cuda_launch_copies(const struct ckpt_cuda_kernels *kernels, bool scatter, uint64_t table,
	uint32_t count, struct CUstream_st *stream);
/* For `count` items of a grid, not 0. The grid is copied. */
int ckpt_cuda_launch_grid(const struct ckpt_cuda_kernels *kernels, bool scatter,
	const struct ckpt_cuda_grid *grid, uint64_t first, uint32_t count,
	struct CUstream_st *stream);

#endif
