/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels. C as the bodies are, but for `__kernel`, which only OpenCL's dialect of it has; scripts/ptx makes PTX
 * of it. A table is walked in steps of the grid, so that any grid is right.
 */
#include "device/kernels/span_bodies.h"

static uint32_t thread(void)
{
	return (uint32_t)__nvvm_read_ptx_sreg_ctaid_x() * (uint32_t)__nvvm_read_ptx_sreg_ntid_x() +
	       (uint32_t)__nvvm_read_ptx_sreg_tid_x();
}

static uint32_t threads(void)
{
	return (uint32_t)__nvvm_read_ptx_sreg_nctaid_x() * (uint32_t)__nvvm_read_ptx_sreg_ntid_x();
}

static void copy(uint64_t table, uint32_t count, bool scatter)
{
	const struct ckpt_cuda_span *spans = (const struct ckpt_cuda_span *)table;
	uint32_t lane = thread() % CKPT_CUDA_LANES;

	for (uint32_t i = thread() / CKPT_CUDA_LANES; i < count; i += threads() / CKPT_CUDA_LANES)
		ckpt_span_copy(spans, i, scatter, lane, CKPT_CUDA_LANES);
}

__kernel void ckpt_sample(uint64_t table, uint32_t count, uint64_t samples)
{
	const struct ckpt_cuda_span *spans = (const struct ckpt_cuda_span *)table;

	for (uint32_t i = thread(); i < count; i += threads())
		((uint64_t *)samples)[i] = ckpt_span_sample(spans, i);
}

__kernel void ckpt_gather(uint64_t table, uint32_t count)
{
	copy(table, count, false);
}

__kernel void ckpt_scatter(uint64_t table, uint32_t count)
{
	copy(table, count, true);
}

CKPT_GRID_BODY void copy_grid(
	const struct ckpt_cuda_grid *grid, uint64_t first, uint32_t count, bool scatter)
{
	for (uint32_t i = thread(); i < count; i += threads())
		ckpt_grid_copy(grid, scatter, first + i);
}

/* By value: what many threads read again and again is not read over the bus. */
__kernel void ckpt_gather_grid(struct ckpt_cuda_grid grid, uint64_t first, uint32_t count)
{
	copy_grid(&grid, first, count, false);
}

__kernel void ckpt_scatter_grid(struct ckpt_cuda_grid grid, uint64_t first, uint32_t count)
{
	copy_grid(&grid, first, count, true);
}
