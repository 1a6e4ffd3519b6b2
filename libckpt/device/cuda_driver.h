/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of kernels/segments.cl, on the CUDA driver: not every runtime of CUDA 12 can load PTX. A GPU without
 * them still copies, piece by piece.
 */
#ifndef CKPT_DEVICE_CUDA_DRIVER_H
#define CKPT_DEVICE_CUDA_DRIVER_H

#include <stdint.h>
#include "base/error.h"
#include "device/cuda_api.h"
#include "device/cuda_grid.h"

/* The dynamic linker, whose functions these are. */
struct ckpt_cuda_driver_ops {
	void *(*dlopen)(const char *name, int flags);
	void *(*dlsym)(void *handle, const char *name);
};

/* The module in one GPU's context. */
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
 * In the calling thread's current context, which the runtime has made by then. Whoever cannot have kernels finds
 * `module` NULL and the reason in `why_not`. `ops` NULL: the real linker.
 */
void ckpt_cuda_kernels_load(
	const struct ckpt_cuda_driver_ops *ops, struct ckpt_cuda_kernels *ret_kernels);
/* In the same context; not before what was launched is done. Nothing without a module. */
void ckpt_cuda_kernels_unload(struct ckpt_cuda_kernels *kernels);

/*
 * Launches of `count` spans, not 0, in the memory that `table` is for the GPU. The samples go to `samples`, one after
 * the other. They return a CUresult.
 */
int ckpt_cuda_launch_samples(const struct ckpt_cuda_kernels *kernels, uint64_t table,
	uint32_t count, uint64_t samples, struct CUstream_st *stream);
int ckpt_cuda_launch_copies(const struct ckpt_cuda_kernels *kernels, bool scatter, uint64_t table,
	uint32_t count, struct CUstream_st *stream);
/* Of `count` items of a grid, not 0. It is copied: it need not stay. */
int ckpt_cuda_launch_grid(const struct ckpt_cuda_kernels *kernels, bool scatter,
	const struct ckpt_cuda_grid *grid, uint64_t first, uint32_t count,
	struct CUstream_st *stream);

#endif
