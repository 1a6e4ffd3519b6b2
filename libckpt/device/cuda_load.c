/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_cuda_load_ops. */
#include "device/cuda_load.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* The versions whose functions are known to be those of cuda_api.h. */
#define MAJOR_FIRST 12
#define MAJOR_LAST  13

#define PATHS_MAX 16 /* copies of the runtime in one process; two are rare */
#define NAME_SIZE 32

struct symbol {
	const char *name;
	size_t at;
	bool spare; /* a runtime may lack it: one linked into a program has only what that calls */
};

#define SYMBOL(member, name)                                                                       \
	{                                                                                          \
		name, offsetof(struct ckpt_cuda_api, member), false                                \
	}
#define SPARE(member, name)                                                                        \
	{                                                                                          \
		name, offsetof(struct ckpt_cuda_api, member), true                                 \
	}

static const struct symbol symbols[] = {
	SYMBOL(runtime_get_version, "cudaRuntimeGetVersion"),
	SYMBOL(driver_get_version, "cudaDriverGetVersion"),
	SYMBOL(get_device_count, "cudaGetDeviceCount"),
	SYMBOL(set_device, "cudaSetDevice"),
	SYMBOL(get_device, "cudaGetDevice"),
	SYMBOL(get_last_error, "cudaGetLastError"),
	SYMBOL(get_error_name, "cudaGetErrorName"),
	SYMBOL(get_error_string, "cudaGetErrorString"),
	SYMBOL(thread_exchange_stream_capture_mode, "cudaThreadExchangeStreamCaptureMode"),
	SYMBOL(stream_create_with_priority, "cudaStreamCreateWithPriority"),
	SYMBOL(stream_destroy, "cudaStreamDestroy"),
	SYMBOL(stream_synchronize, "cudaStreamSynchronize"),
	SYMBOL(stream_wait_event, "cudaStreamWaitEvent"),
	SYMBOL(stream_is_capturing, "cudaStreamIsCapturing"),
	SYMBOL(event_create_with_flags, "cudaEventCreateWithFlags"),
	SYMBOL(event_destroy, "cudaEventDestroy"),
	SYMBOL(event_record, "cudaEventRecord"),
	SYMBOL(event_query, "cudaEventQuery"),
	SYMBOL(event_synchronize, "cudaEventSynchronize"),
	SYMBOL(malloc, "cudaMalloc"),
	SYMBOL(free, "cudaFree"),
	SYMBOL(memcpy_async, "cudaMemcpyAsync"),
	SYMBOL(memcpy_2d_async, "cudaMemcpy2DAsync"),
	SYMBOL(host_register, "cudaHostRegister"),
	SYMBOL(host_unregister, "cudaHostUnregister"),
	SYMBOL(host_get_device_pointer, "cudaHostGetDevicePointer"),
	SPARE(device_get_pci_bus_id, "cudaDeviceGetPCIBusId"),
};

_Static_assert(sizeof(struct ckpt_cuda_api) == CKPT_COUNT(symbols) * sizeof(void *),
	"every member has its symbol");

/* Loaded libraries whose names have a prefix. */
struct mapped {
	const char *prefix;
	size_t count;
	char *paths[PATHS_MAX];
	bool no_memory;
};

struct search {
	const struct ckpt_cuda_load_ops *ops;
	int major;
	struct ckpt_error *err;
	struct ckpt_cuda_api api;
	char passed[PATH_MAX]; /* a runtime of another version than requested, or "" */
	int passed_version;
	char dlerror[256]; /* why the last one on the disk could not be loaded */
};

static const struct ckpt_cuda_load_ops real_ops = {
	.dlopen = dlopen,
	.dlsym = dlsym,
	.dlerror = dlerror,
	.dladdr = dladdr,
	.dl_iterate_phdr = dl_iterate_phdr,
};

/* 0, or an error if a function is missing. */
static int take_symbols(struct search *s, void *handle, const char *where)
{
	for (size_t i = 0; i < CKPT_COUNT(symbols); i++) {
		void *function = s->ops->dlsym(handle, symbols[i].name);

		if (!function && !symbols[i].spare)
			return ckpt_fail(s->err, CKPT_EUNSUPPORTED,
				"the CUDA runtime %s has no %s(): it is not a whole runtime of "
				"CUDA %d or %d; let the program use one that is",
				where, symbols[i].name, MAJOR_FIRST, MAJOR_LAST);
		memcpy((char *)&s->api + symbols[i].at, (const void *)&function, sizeof(function));
	}
	return 0;
}

/* 1: found; 0: not a runtime, or of another version than requested; else it cannot be used. */
static int consider(struct search *s, void *handle, const char *where)
{
	void *symbol = s->ops->dlsym(handle, "cudaRuntimeGetVersion");
	int (*get_version)(int *version);
	int version = 0;
	int r;

	if (!symbol)
		return 0;
	memcpy((void *)&get_version, (const void *)&symbol, sizeof(symbol));
	r = get_version(&version);
	if (r != CKPT_CUDA_SUCCESS)
		return ckpt_fail(s->err, CKPT_EUNSUPPORTED,
			"the CUDA runtime %s does not say its version (error %d); let the program "
			"use one of CUDA %d or %d",
			where, r, MAJOR_FIRST, MAJOR_LAST);
	if (s->major && version / 1000 != s->major) {
		(void)snprintf(s->passed, sizeof(s->passed), "%s", where);
		s->passed_version = version;
		return 0;
	}
	if (version / 1000 < MAJOR_FIRST || version / 1000 > MAJOR_LAST)
		return ckpt_fail(s->err, CKPT_EUNSUPPORTED,
			"the CUDA runtime %s is of version %d.%d, and this libckpt knows CUDA %d "
			"to %d; install a %s",
			where, version / 1000, version % 1000 / 10, MAJOR_FIRST, MAJOR_LAST,
			version / 1000 < MAJOR_FIRST ? "PyTorch that was built for one of them"
						     : "newer libckpt");
	r = take_symbols(s, handle, where);
	return r < 0 ? r : 1;
}

/* The library that contains the runtime, which may be another one than the searched one. */
static const char *library_of(struct search *s, void *handle)
{
	void *symbol = s->ops->dlsym(handle, "cudaRuntimeGetVersion");
	Dl_info info;

	return symbol && s->ops->dladdr(symbol, &info) ? info.dli_fname : NULL;
}

static int consider_library(struct search *s, const char *name, int flags)
{
	void *handle = s->ops->dlopen(name, flags);
	const char *where;
	const char *why;

	if (handle) {
		where = library_of(s, handle);
		return consider(s, handle, where ? where : name);
	}
	/* If it is not loaded, that is no reason to report. */
	why = s->ops->dlerror();
	if (why && !(flags & RTLD_NOLOAD))
		(void)snprintf(s->dlerror, sizeof(s->dlerror), "%s", why);
	return 0;
}

/* "libcudart" matches libcudart.so.12, libcudart-d0da41ae.so.12.8.90 (renamed by packaging tools) and similar names. */
static bool is_library(const char *path, const char *prefix)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	return strncmp(name, prefix, strlen(prefix)) == 0 && strstr(name, ".so");
}

/* Called with the linker's lock held, so nothing is opened here. */
static int collect_library(struct dl_phdr_info *info, size_t size, void *data)
{
	struct mapped *mapped = data;

	(void)size;
	if (!info->dlpi_name || !is_library(info->dlpi_name, mapped->prefix) ||
		mapped->count == PATHS_MAX)
		return 0;
	mapped->paths[mapped->count] = ckpt_strdup(info->dlpi_name);
	if (!mapped->paths[mapped->count]) {
		mapped->no_memory = true;
		return 1;
	}
	mapped->count++;
	return 0;
}

/* Searches them and the libraries that they are linked with. */
static int consider_mapped(struct search *s, const char *prefix)
{
	struct mapped mapped = {.prefix = prefix};
	int r = 0;

	(void)s->ops->dl_iterate_phdr(collect_library, &mapped);
	if (mapped.no_memory)
		r = ckpt_fail(s->err, -ENOMEM, "no memory to look for the CUDA runtime");
	for (size_t i = 0; i < mapped.count; i++) {
		if (r == 0)
			r = consider_library(
				s, mapped.paths[i], RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
		ckpt_free(mapped.paths[i]);
	}
	return r;
}

/*
 * dlsym() takes no reference to the library, which might be closed; so it is opened, too. The program itself cannot be
 * opened, and stays.
 */
static int consider_program(struct search *s)
{
	const char *where = library_of(s, RTLD_DEFAULT);
	void *handle = where ? s->ops->dlopen(where, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL) : NULL;

	return handle ? consider(s, handle, where)
		      : consider(s, RTLD_DEFAULT, "in the program itself");
}

static int consider_disk(struct search *s, const char *own)
{
	static const char *const names[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12"};
	int r = 0;

	if (s->major)
		return consider_library(s, own, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < CKPT_COUNT(names) && r == 0; i++)
		r = consider_library(s, names[i], RTLD_NOW | RTLD_LOCAL);
	return r;
}

static int none_found(struct search *s)
{
	const char *why = s->dlerror[0] ? s->dlerror : "no reason given";

	if (s->passed[0])
		return ckpt_fail(s->err, CKPT_EUNSUPPORTED,
			"the program says that it uses CUDA %d, and the only CUDA runtime that was "
			"found is %s, of version %d.%d (%s); install the runtime of CUDA %d "
			"(libcudart.so.%d) where the program finds it",
			s->major, s->passed, s->passed_version / 1000,
			s->passed_version % 1000 / 10, why, s->major, s->major);
	return ckpt_fail(s->err, CKPT_EUNSUPPORTED,
		"no CUDA runtime was found, neither in this process nor on the disk (%s); import "
		"PyTorch with CUDA first, or have libcudart.so of CUDA %d or %d where the dynamic "
		"linker looks (LD_LIBRARY_PATH)",
		why, MAJOR_FIRST, MAJOR_LAST);
}

int ckpt_cuda_load(const struct ckpt_cuda_load_ops *ops, int major, struct ckpt_error *err,
	struct ckpt_cuda_api *ret_api)
{
	struct search s = {.ops = ops ? ops : &real_ops, .major = major, .err = err};
	char own[NAME_SIZE];
	int r;

	if (major != 0 && (major < MAJOR_FIRST || major > MAJOR_LAST))
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"the program uses CUDA %d, and this libckpt knows CUDA %d to %d; install a "
			"%s",
			major, MAJOR_FIRST, MAJOR_LAST,
			major < MAJOR_FIRST ? "PyTorch that was built for one of them"
					    : "newer libckpt");
	(void)snprintf(own, sizeof(own), "libcudart.so.%d", major);
	/* PyTorch's CUDA library is linked with the runtime that PyTorch uses. */
	r = consider_mapped(&s, "libc10_cuda");
	if (r == 0)
		r = consider_program(&s);
	if (r == 0 && major)
		r = consider_library(&s, own, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
	if (r == 0)
		r = consider_mapped(&s, "libcudart");
	if (r == 0)
		r = consider_disk(&s, own);
	if (r == 0)
		return none_found(&s);
	if (r < 0)
		return r;
	*ret_api = s.api;
	return 0;
}
