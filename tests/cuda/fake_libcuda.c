/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 of the fake: its functions, by their names. */
#include "cuda/fake_driver.h"
#include "cuda/fake_inside.h"

static const struct ckpt_cuda_driver *beside;

EXPORT int cuModuleLoadData(struct CUmod_st **module, const void *image);
EXPORT int cuModuleGetFunction(
	struct CUfunc_st **function, struct CUmod_st *module, const char *name);
EXPORT int cuModuleUnload(struct CUmod_st *module);
EXPORT int cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
	struct CUstream_st *stream, void **arguments, void **extra);
EXPORT int cuGetErrorName(int error, const char **name);
EXPORT int cuGetErrorString(int error, const char **text);

EXPORT void fake_driver_connect(const struct ckpt_cuda_driver *driver)
{
	if (!beside)
		beside = driver;
}

int cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	return beside->module_load_data(module, image);
}

int cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	return beside->module_get_function(function, module, name);
}

int cuModuleUnload(struct CUmod_st *module)
{
	return beside->module_unload(module);
}

int cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
	unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
	struct CUstream_st *stream, void **arguments, void **extra)
{
	return beside->launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared, stream, arguments, extra);
}

int cuGetErrorName(int error, const char **name)
{
	return beside->get_error_name(error, name);
}

int cuGetErrorString(int error, const char **text)
{
	return beside->get_error_string(error, text);
}
