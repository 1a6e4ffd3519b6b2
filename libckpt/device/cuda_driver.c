/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_cuda_driver_ops. */
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda_ptx.h"
#include "device/cuda_span.h"

#define LIBRARY "libcuda.so.1"

struct symbol {
	const char *name;
	size_t at;
};

#define SYMBOL(member, name)                                                                       \
	{                                                                                          \
		name, offsetof(struct ckpt_cuda_driver, member)                                    \
	}

static const struct symbol symbols[] = {
	SYMBOL(module_load_data, "cuModuleLoadData"),
	SYMBOL(module_get_function, "cuModuleGetFunction"),
	SYMBOL(module_unload, "cuModuleUnload"),
	SYMBOL(launch_kernel, "cuLaunchKernel"),
	SYMBOL(get_error_name, "cuGetErrorName"),
	SYMBOL(get_error_string, "cuGetErrorString"),
};

_Static_assert(sizeof(struct ckpt_cuda_driver) == CKPT_COUNT(symbols) * sizeof(void *),
	"every member has its symbol");

static const struct ckpt_cuda_driver_ops real_ops = {.dlopen = dlopen, .dlsym = dlsym};

/* False: see `why_not`. The library stays loaded: the runtime uses it. */
static bool find_driver(const struct ckpt_cuda_driver_ops *ops, struct ckpt_cuda_kernels *k)
{
	void *library = ops->dlopen(LIBRARY, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);

	if (!library)
		library = ops->dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		(void)snprintf(k->why_not, sizeof(k->why_not),
			"the CUDA driver (" LIBRARY ") was not found");
		return false;
	}
	for (size_t i = 0; i < CKPT_COUNT(symbols); i++) {
		void *function = ops->dlsym(library, symbols[i].name);

		if (!function) {
			(void)snprintf(k->why_not, sizeof(k->why_not),
				"the CUDA driver (" LIBRARY ") has no %s()", symbols[i].name);
			return false;
		}
		memcpy((char *)&k->driver + symbols[i].at, (const void *)&function,
			sizeof(function));
	}
	return true;
}

static void word(struct ckpt_cuda_kernels *k, int error, const char *what)
{
	const char *name = NULL;
	const char *text = NULL;

	(void)k->driver.get_error_name(error, &name);
	(void)k->driver.get_error_string(error, &text);
	(void)snprintf(k->why_not, sizeof(k->why_not), "%s: %s (%s)", what,
		text ? text : "an error without a text", name ? name : "unknown");
}

void ckpt_cuda_kernels_load(
	const struct ckpt_cuda_driver_ops *ops, struct ckpt_cuda_kernels *ret_kernels)
{
	struct ckpt_cuda_kernels *k = ret_kernels;
	const struct {
		const char *name;
		struct CUfunc_st **function;
	} kernels[] = {{CKPT_CUDA_SAMPLE, &k->sample}, {CKPT_CUDA_GATHER, &k->gather},
		{CKPT_CUDA_SCATTER, &k->scatter}, {CKPT_CUDA_GATHER_GRID, &k->gather_grid},
		{CKPT_CUDA_SCATTER_GRID, &k->scatter_grid}};
	int e;

	*k = (struct ckpt_cuda_kernels){.module = NULL};
	if (!find_driver(ops ? ops : &real_ops, k))
		return;
	e = k->driver.module_load_data(&k->module, ckpt_cuda_ptx);
	if (e != CKPT_CUDA_SUCCESS) {
		k->module = NULL;
		word(k, e, "cuModuleLoadData");
		return;
	}
	for (size_t i = 0; i < CKPT_COUNT(kernels) && e == CKPT_CUDA_SUCCESS; i++)
		e = k->driver.module_get_function(kernels[i].function, k->module, kernels[i].name);
	if (e != CKPT_CUDA_SUCCESS) {
		word(k, e, "cuModuleGetFunction");
		ckpt_cuda_kernels_unload(k);
	}
}

void ckpt_cuda_kernels_unload(struct ckpt_cuda_kernels *k)
{
	/* Failures are ignored: the context is lost, or keeps a few kilobytes. */
	if (k->module)
		(void)k->driver.module_unload(k->module);
	k->module = NULL;
}

int ckpt_cuda_launch_samples(const struct ckpt_cuda_kernels *k, uint64_t table, uint32_t count,
	uint64_t samples, struct CUstream_st *stream)
{
	void *arguments[] = {&table, &count, &samples};
	unsigned blocks = (count - 1) / CKPT_CUDA_SAMPLE_BLOCK + 1;

	CKPT_ASSERT(k->module && count > 0);
	return k->driver.launch_kernel(
		k->sample, blocks, 1, 1, CKPT_CUDA_SAMPLE_BLOCK, 1, 1, 0, stream, arguments, NULL);
}

static int launch_blocks(const struct ckpt_cuda_kernels *k, struct CUfunc_st *kernel,
	unsigned blocks, struct CUstream_st *stream, void **arguments)
{
	if (blocks > CKPT_CUDA_COPY_BLOCKS)
		blocks = CKPT_CUDA_COPY_BLOCKS;
	return k->driver.launch_kernel(
		kernel, blocks, 1, 1, CKPT_CUDA_COPY_BLOCK, 1, 1, 0, stream, arguments, NULL);
}

int ckpt_cuda_launch_copies(const struct ckpt_cuda_kernels *k, bool scatter, uint64_t table,
	uint32_t count, struct CUstream_st *stream)
{
	void *arguments[] = {&table, &count};

	CKPT_ASSERT(k->module && count > 0);
	return launch_blocks(k, scatter ? k->scatter : k->gather,
		(count - 1) / (CKPT_CUDA_COPY_BLOCK / CKPT_CUDA_LANES) + 1, stream, arguments);
}

int ckpt_cuda_launch_grid(const struct ckpt_cuda_kernels *k, bool scatter,
	const struct ckpt_cuda_grid *grid, uint64_t first, uint32_t count,
	struct CUstream_st *stream)
{
	struct ckpt_cuda_grid copy = *grid;
	void *arguments[] = {&copy, &first, &count};

	CKPT_ASSERT(k->module && count > 0);
	return launch_blocks(k, scatter ? k->scatter_grid : k->gather_grid,
		(count - 1) / CKPT_CUDA_COPY_BLOCK + 1, stream, arguments);
}
