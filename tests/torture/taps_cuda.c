/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime and driver, and the devices that are made of them. What the fake does inside of a call does not
 * count. What waits, waits all the same before it fails, and what destroys does so.
 */
#include <dlfcn.h>
#include <string.h>

#include <ckpt/error.h>
#include "base/procfs.h"
#include "device/cuda_driver.h"
#include "device/cuda_load.h"
#include "device/device_cuda.h"
#include "torture/gpus.h"
#include "torture/tap.h"

/* A code for a cudaError_t: neither an errno nor one of the library's. */
#define CUDA(error) (-20000 - (error))
/* An error of that call, and one that often is the context's end. */
#define OFTEN       CUDA(CKPT_CUDA_MEMORY_ALLOCATION), CUDA(CKPT_CUDA_ILLEGAL_ADDRESS)

/* clang-format off */
TAP_REAL(int, ckpt_cuda_load, (const struct ckpt_cuda_load_ops *ops, int major, struct ckpt_error *err,
	struct ckpt_cuda_api *ret_api))
TAP_REAL(void, ckpt_cuda_kernels_load, (const struct ckpt_cuda_driver_ops *ops,
	struct ckpt_cuda_kernels *ret_kernels))
TAP_REAL(int, ckpt_device_cuda_open, (struct ckpt_env *env, int index, int major, struct ckpt_error *err,
	struct ckpt_device **ret_device))
TAP_REAL(bool, ckpt_procfs_read, (const char *root, const char *path, struct ckpt_buf *text))
/* clang-format on */

static struct ckpt_cuda_api real_api;
static struct ckpt_cuda_driver real_driver;

#define CUDA_TAP(from, member, params, args, carried_out, ...)                                     \
	static const struct torture_call call_##member = {                                         \
		"cuda." #member, TORTURE_TABLE, {__VA_ARGS__}};                                    \
	static int tap_##member params                                                             \
	{                                                                                          \
		int code = torture_event(&call_##member, "", __builtin_frame_address(0));          \
		if (code && !(carried_out))                                                        \
			return -code - 20000;                                                      \
		torture_enter(__builtin_frame_address(0));                                         \
		torture_set_foreign(true);                                                         \
		int e = (from).member args;                                                        \
		torture_set_foreign(false);                                                        \
		torture_leave();                                                                   \
		return code ? -code - 20000 : e;                                                   \
	}

/* clang-format off */
CUDA_TAP(real_api, get_device_count, (int *count), (count), false, CUDA(CKPT_CUDA_NO_DEVICE), OFTEN)
CUDA_TAP(real_api, set_device, (int device), (device), false, OFTEN)
CUDA_TAP(real_api, get_device, (int *device), (device), false, OFTEN)
CUDA_TAP(real_api, thread_exchange_stream_capture_mode, (int *mode), (mode), false, OFTEN)
CUDA_TAP(real_api, stream_create_with_priority, (struct CUstream_st **stream, unsigned flags, int priority),
	(stream, flags, priority), false, OFTEN)
CUDA_TAP(real_api, stream_destroy, (struct CUstream_st *stream), (stream), true, OFTEN)
CUDA_TAP(real_api, stream_synchronize, (struct CUstream_st *stream), (stream), true, OFTEN)
CUDA_TAP(real_api, stream_wait_event, (struct CUstream_st *stream, struct CUevent_st *event, unsigned flags),
	(stream, event, flags), false, OFTEN)
CUDA_TAP(real_api, stream_is_capturing, (struct CUstream_st *stream, int *status), (stream, status), false,
	CUDA(CKPT_CUDA_STREAM_CAPTURE_IMPLICIT), OFTEN)
CUDA_TAP(real_api, event_create_with_flags, (struct CUevent_st **event, unsigned flags), (event, flags), false,
	OFTEN)
CUDA_TAP(real_api, event_destroy, (struct CUevent_st *event), (event), true, OFTEN)
CUDA_TAP(real_api, event_record, (struct CUevent_st *event, struct CUstream_st *stream), (event, stream), false,
	OFTEN)
CUDA_TAP(real_api, event_query, (struct CUevent_st *event), (event), false, OFTEN)
CUDA_TAP(real_api, event_synchronize, (struct CUevent_st *event), (event), true, OFTEN)
CUDA_TAP(real_api, malloc, (void **device, size_t size), (device, size), false, OFTEN)
CUDA_TAP(real_api, free, (void *device), (device), true, OFTEN)
CUDA_TAP(real_api, memcpy_async, (void *to, const void *from, size_t count, int kind, struct CUstream_st *stream),
	(to, from, count, kind, stream), false, OFTEN)
CUDA_TAP(real_api, memcpy_2d_async, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
	size_t height, int kind, struct CUstream_st *stream),
	(to, to_pitch, from, from_pitch, width, height, kind, stream), false, OFTEN)
CUDA_TAP(real_api, host_register, (void *base, size_t size, unsigned flags), (base, size, flags), false,
	OFTEN)
CUDA_TAP(real_api, host_unregister, (void *base), (base), true, OFTEN)
CUDA_TAP(real_api, host_get_device_pointer, (void **device, void *host, unsigned flags), (device, host, flags),
	false, OFTEN)
CUDA_TAP(real_api, device_get_pci_bus_id, (char *id, int size, int device), (id, size, device), false, OFTEN)
CUDA_TAP(real_driver, module_load_data, (struct CUmod_st **module, const void *image), (module, image), false,
	OFTEN)
CUDA_TAP(real_driver, module_get_function, (struct CUfunc_st **function, struct CUmod_st *module,
	const char *name), (function, module, name), false, OFTEN)
CUDA_TAP(real_driver, module_unload, (struct CUmod_st *module), (module), true, OFTEN)
CUDA_TAP(real_driver, launch_kernel, (struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
	struct CUstream_st *stream, void **arguments, void **extra),
	(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, extra), false,
	OFTEN)
/* clang-format on */

/* It cannot fail; the fake has an error for each thread, for which the linker allocates. */
static int get_last_error(void)
{
	torture_enter(__builtin_frame_address(0));
	torture_set_foreign(true);
	int e = real_api.get_last_error();
	torture_set_foreign(false);
	torture_leave();
	return e;
}

int ckpt_cuda_load(const struct ckpt_cuda_load_ops *ops, int major, struct ckpt_error *err,
	struct ckpt_cuda_api *ret_api)
{
	struct ckpt_cuda_api api;
	int r = get_ckpt_cuda_load()(ops, major, err, &api);

	if (r < 0)
		return r;
	/* Of two GPUs each asks for it: on the thread of whoever opens them, one after the other. */
	real_api = api;
	*ret_api = (struct ckpt_cuda_api){.runtime_get_version = api.runtime_get_version,
		.driver_get_version = api.driver_get_version,
		.get_device_count = tap_get_device_count,
		.set_device = tap_set_device,
		.get_device = tap_get_device,
		.get_last_error = get_last_error,
		.get_error_name = api.get_error_name,
		.get_error_string = api.get_error_string,
		.thread_exchange_stream_capture_mode = tap_thread_exchange_stream_capture_mode,
		.stream_create_with_priority = tap_stream_create_with_priority,
		.stream_destroy = tap_stream_destroy,
		.stream_synchronize = tap_stream_synchronize,
		.stream_wait_event = tap_stream_wait_event,
		.stream_is_capturing = tap_stream_is_capturing,
		.event_create_with_flags = tap_event_create_with_flags,
		.event_destroy = tap_event_destroy,
		.event_record = tap_event_record,
		.event_query = tap_event_query,
		.event_synchronize = tap_event_synchronize,
		.malloc = tap_malloc,
		.free = tap_free,
		.memcpy_async = tap_memcpy_async,
		.memcpy_2d_async = tap_memcpy_2d_async,
		.host_register = tap_host_register,
		.host_unregister = tap_host_unregister,
		.host_get_device_pointer = tap_host_get_device_pointer,
		.device_get_pci_bus_id = tap_device_get_pci_bus_id};
	return 0;
}

/* The driver's functions are called before they could be replaced in what was loaded. */
static void *find_driver(void *library, const char *name)
{
	static const struct {
		const char *name;
		void *tap;
		void *real;
	} taps[] = {
		{"cuModuleLoadData", (void *)tap_module_load_data, &real_driver.module_load_data},
		{"cuModuleGetFunction", (void *)tap_module_get_function,
			&real_driver.module_get_function},
		{"cuModuleUnload", (void *)tap_module_unload, &real_driver.module_unload},
		{"cuLaunchKernel", (void *)tap_launch_kernel, &real_driver.launch_kernel},
	};
	void *function = dlsym(library, name);

	for (size_t i = 0; i < sizeof(taps) / sizeof(taps[0]) && function; i++) {
		if (strcmp(taps[i].name, name) != 0)
			continue;
		memcpy(taps[i].real, (const void *)&function, sizeof(function));
		return taps[i].tap;
	}
	return function;
}

void ckpt_cuda_kernels_load(
	const struct ckpt_cuda_driver_ops *ops, struct ckpt_cuda_kernels *ret_kernels)
{
	static const struct ckpt_cuda_driver_ops taps = {.dlopen = dlopen, .dlsym = find_driver};

	get_ckpt_cuda_kernels_load()(ops ? ops : &taps, ret_kernels);
}

/* The table of a GPU. */

static const struct torture_call copy_call = {"gpu.copy", TORTURE_TABLE, {CKPT_EDEVICE, -ENOMEM}};
static const struct torture_call pin_call = {"gpu.pin", TORTURE_TABLE, {CKPT_EDEVICE}};
static const struct torture_call follow_call = {"gpu.follow", TORTURE_TABLE, {CKPT_EDEVICE}};
static const struct torture_call hold_call = {
	"gpu.hold", TORTURE_TABLE, {CKPT_EDEVICE, -ETIMEDOUT}};

static const struct ckpt_device_ops *real_gpu;
static struct ckpt_device_ops tapped_gpu;

static void gpu_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	/* What says that nothing more comes has nothing that could fail. */
	int code = copy->direction == CKPT_COPY_NOTHING
			   ? 0
			   : torture_event(&copy_call, "", __builtin_frame_address(0));

	if (!code) {
		real_gpu->copy(device, copy);
		return;
	}
	copy->result = ckpt_fail(copy->error, code, "a GPU made to fail");
	ckpt_inbox_push(device->env->inbox, &copy->job.node);
}

static int gpu_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err)
{
	int code = torture_event(&pin_call, "", __builtin_frame_address(0));

	return code ? ckpt_fail(err, code, "a GPU made to fail")
		    : real_gpu->pin(device, base, size, err);
}

static int gpu_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err)
{
	int code = torture_event(&follow_call, "", __builtin_frame_address(0));

	return code ? ckpt_fail(err, code, "a GPU made to fail")
		    : real_gpu->follow(device, stream, err);
}

static int gpu_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err)
{
	int code = torture_event(&hold_call, "", __builtin_frame_address(0));

	return code ? ckpt_fail(err, code, "a GPU made to fail")
		    : real_gpu->hold(device, stream, which, timeout_ms, err);
}

int ckpt_device_cuda_open(struct ckpt_env *env, int index, int major, struct ckpt_error *err,
	struct ckpt_device **ret_device)
{
	int r = get_ckpt_device_cuda_open()(env, index, major, err, ret_device);

	if (r < 0 || !torture_armed())
		return r;
	real_gpu = (*ret_device)->ops;
	tapped_gpu = *real_gpu;
	tapped_gpu.copy = gpu_copy;
	tapped_gpu.pin = gpu_pin;
	tapped_gpu.follow = gpu_follow;
	tapped_gpu.hold = gpu_hold;
	(*ret_device)->ops = &tapped_gpu;
	return 0;
}

/* A machine of several nodes, as the kernel would describe it. */
bool ckpt_procfs_read(const char *root, const char *path, struct ckpt_buf *text)
{
	bool numa = strstr(path, "/numa_node") || strstr(path, "/has_memory");

	return get_ckpt_procfs_read()(numa ? gpus_machine() : root, path, text);
}
