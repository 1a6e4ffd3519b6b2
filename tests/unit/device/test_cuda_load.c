/* SPDX-License-Identifier: Apache-2.0 */
/* Which CUDA runtime is taken, in a made-up process and in this one; and what is said of those that are refused. */
#include "lib/test.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/cuda_load.h"

/* A library of the made-up process, of which a runtime is a part unless it needs another one. */
struct library {
	const char *path;    /* its last part is the soname */
	bool mapped;         /* else it lies on the disk */
	bool global;         /* RTLD_DEFAULT finds its symbols */
	int version;         /* 0: it has no cudaRuntimeGetVersion() */
	const char *missing; /* a function that it lacks */
	const char *needs;   /* the path of the one that it was linked with */
};

#define LOADED(at, number)                                                                         \
	{                                                                                          \
		.path = (at), .mapped = true, .version = (number)                                  \
	}
#define ON_DISK(at, number)                                                                        \
	{                                                                                          \
		.path = (at), .version = (number)                                                  \
	}
#define NONE                                                                                       \
	{                                                                                          \
		.path = NULL                                                                       \
	}

static const struct library *libraries;
static char trail[1024]; /* what was opened, in order; "?" before a name: only if it is loaded */

#define VERSION_FUNCTION(n)                                                                        \
	static int version_##n(int *version)                                                       \
	{                                                                                          \
		*version = n;                                                                      \
		return 0;                                                                          \
	}

VERSION_FUNCTION(11080)
VERSION_FUNCTION(12040)
VERSION_FUNCTION(13000)
VERSION_FUNCTION(14020)

static int no_version(int *version)
{
	(void)version;
	return CKPT_CUDA_INSUFFICIENT_DRIVER;
}

static void *version_function(int version)
{
	static const struct {
		int version;
		int (*function)(int *version);
	} all[] = {{11080, version_11080}, {12040, version_12040}, {13000, version_13000},
		{14020, version_14020}, {-1, no_version}};
	void *pointer = NULL;

	for (size_t i = 0; i < COUNT(all); i++)
		if (all[i].version == version)
			memcpy(&pointer, (const void *)&all[i].function, sizeof(pointer));
	return pointer;
}

static const char *soname(const struct library *l)
{
	return strrchr(l->path, '/') + 1;
}

static void *made_up_dlopen(const char *name, int flags)
{
	size_t used = strlen(trail);

	assert_int_equal(flags & (RTLD_NOW | RTLD_GLOBAL), RTLD_NOW);
	(void)snprintf(
		trail + used, sizeof(trail) - used, "%s%s ", flags & RTLD_NOLOAD ? "?" : "", name);
	for (const struct library *l = libraries; l->path; l++)
		if ((strcmp(name, l->path) == 0 || strcmp(name, soname(l)) == 0) &&
			(l->mapped || !(flags & RTLD_NOLOAD)))
			return (void *)l;
	return NULL;
}

static void *made_up_dlsym(void *handle, const char *name)
{
	const struct library *l = handle;

	for (const struct library *g = libraries; handle == RTLD_DEFAULT && g->path; g++)
		if (g->global)
			l = g;
	for (const struct library *n = libraries; l && l->needs && n->path; n++)
		if (strcmp(n->path, l->needs) == 0)
			l = n;
	if (!l || (l->missing && strcmp(name, l->missing) == 0))
		return NULL;
	if (strcmp(name, "cudaRuntimeGetVersion") == 0)
		return version_function(l->version);
	return trail; /* nobody calls it */
}

static char *made_up_dlerror(void)
{
	return (char *)"cannot open shared object file";
}

/* Functions are told apart by version. */
static int made_up_dladdr(const void *address, Dl_info *info)
{
	for (const struct library *l = libraries; l->path; l++) {
		if (l->needs || version_function(l->version) != address)
			continue;
		info->dli_fname = l->path;
		return 1;
	}
	return 0;
}

static int made_up_phdr(int (*each)(struct dl_phdr_info *info, size_t size, void *data), void *data)
{
	struct dl_phdr_info info = {.dlpi_name = ""};
	int r = each(&info, sizeof(info), data);

	info.dlpi_name = "/lib/libcuda.so.1";
	r = r ? r : each(&info, sizeof(info), data);
	for (const struct library *l = libraries; l->path && !r; l++) {
		info.dlpi_name = l->path;
		r = l->mapped ? each(&info, sizeof(info), data) : 0;
	}
	return r;
}

static const struct ckpt_cuda_load_ops made_up = {
	.dlopen = made_up_dlopen,
	.dlsym = made_up_dlsym,
	.dlerror = made_up_dlerror,
	.dladdr = made_up_dladdr,
	.dl_iterate_phdr = made_up_phdr,
};

/* What is found in a process with these; the version, or the error. */
static int find(const struct library *all, int major, struct ckpt_error *err)
{
	struct ckpt_cuda_api api;
	int version = 0;
	int r;

	libraries = all;
	trail[0] = 0;
	memset(err, 0, sizeof(*err));
	r = ckpt_cuda_load(&made_up, major, err, &api);
	if (r < 0) {
		assert_int_equal(r, err->code);
		return r;
	}
	assert_int_equal(r, 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	return version;
}

/* Not to be taken, though it is of the right version. */
static const struct library worse = {
	.path = "/usr/lib/libcudart.so.12", .version = 12040, .missing = "cudaEventQuery"};

static void the_one_that_was_named_is_taken_and_no_other_asked_for(void **state)
{
	const struct library both[] = {
		LOADED("/a/libcudart.so.13", 13000), LOADED("/b/libcudart.so.12", 12040), NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(both, 12, &err), 12040);
	assert_string_equal(trail, "?libcudart.so.12 ");
	assert_int_equal(find(both, 13, &err), 13000);
	assert_string_equal(trail, "?libcudart.so.13 ");
	/* Nobody has named one, and nothing says whose they are: the first that was loaded. */
	assert_int_equal(find(both, 0, &err), 13000);
	assert_string_equal(trail, "?/a/libcudart.so.13 ");
}

static void a_renamed_one_is_found_before_any_is_loaded(void **state)
{
	const struct library packed[] = {LOADED("/wheel/libcudart-d0da41ae.so.13.0.96", 13000),
		LOADED("/wheel/libcudart-2f12ac07.so.12.4.99", 12040), worse, NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(packed, 12, &err), 12040);
	assert_string_equal(trail, "?libcudart.so.12 ?/wheel/libcudart-d0da41ae.so.13.0.96 "
				   "?/wheel/libcudart-2f12ac07.so.12.4.99 ");
}

static void one_within_the_program_is_found_before_any_is_loaded(void **state)
{
	const struct library within[] = {
		{.path = "/bin/program", .global = true, .version = 12040}, worse, NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(within, 12, &err), 12040);
	assert_string_equal(trail, "?/bin/program ");
	assert_int_equal(find(within, 0, &err), 12040);
	assert_string_equal(trail, "?/bin/program ");
	/* It is passed over for the one that was named. */
	assert_int_equal(find(within, 13, &err), CKPT_EUNSUPPORTED);
	assert_string_equal(trail, "?/bin/program ?libcudart.so.13 libcudart.so.13 ");
}

/* By whoever: what was loaded before for somebody's own use is not the program's. */
static void one_that_is_loaded_for_all_is_the_programs(void **state)
{
	const struct library both[] = {LOADED("/a/libcudart.so.13", 13000),
		{.path = "/b/libcudart.so.12", .mapped = true, .global = true, .version = 12040},
		NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(both, 0, &err), 12040);
	/* With a reference of our own. */
	assert_string_equal(trail, "?/b/libcudart.so.12 ");
	assert_int_equal(find(both, 13, &err), 13000);
}

static void the_one_that_pytorch_uses_comes_first(void **state)
{
	const struct library torch[] = {LOADED("/a/libcudart.so.13", 13000),
		{.path = "/b/libcudart.so.13", .mapped = true, .global = true, .version = 13000},
		LOADED("/t/libcudart-d0da41ae.so.12", 12040),
		{.path = "/t/libc10_cuda.so", .mapped = true, .needs = torch[2].path}, NONE};
	const struct library alone[] = {
		LOADED("/t/libc10_cuda.so", 0), LOADED("/a/libcudart.so.13", 13000), NONE};
	const struct library old[] = {LOADED("/a/libcudart.so.13", 13000),
		LOADED("/t/libcudart.so.11.0", 11080),
		{.path = "/t/libc10_cuda.so", .mapped = true, .needs = old[1].path}, NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(torch, 0, &err), 12040);
	assert_string_equal(trail, "?/t/libc10_cuda.so ");
	assert_int_equal(find(torch, 12, &err), 12040);
	assert_string_equal(trail, "?/t/libc10_cuda.so ");
	/* What is asked for is not what PyTorch uses. */
	assert_int_equal(find(torch, 13, &err), 13000);
	/* Its runtime is within it, for nobody to see. */
	assert_int_equal(find(alone, 0, &err), 13000);
	assert_string_equal(trail, "?/t/libc10_cuda.so ?/a/libcudart.so.13 ");
	/* What is said is said of the runtime. */
	assert_int_equal(find(old, 0, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "/t/libcudart.so.11.0 is of version 11.8"));
}

static void the_disk_comes_last_and_the_named_one_alone(void **state)
{
	const struct library disk[] = {ON_DISK("/usr/lib/libcudart.so.12", 12040),
		ON_DISK("/usr/lib/libcudart.so.13", 13000), NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(disk, 12, &err), 12040);
	assert_string_equal(trail, "?libcudart.so.12 libcudart.so.12 ");
	assert_int_equal(find(disk, 0, &err), 13000);
	assert_string_equal(trail, "libcudart.so libcudart.so.13 ");
}

static void where_there_is_none_it_says_what_to_do(void **state)
{
	const struct library none[] = {NONE};
	const struct library other[] = {LOADED("/a/libcudart.so.13", 13000), NONE};
	struct ckpt_error err;

	(void)state;
	assert_int_equal(find(none, 0, &err), CKPT_EUNSUPPORTED);
	assert_string_equal(trail, "libcudart.so libcudart.so.13 libcudart.so.12 ");
	assert_non_null(strstr(err.message, "no CUDA runtime was found"));
	assert_non_null(strstr(err.message, "cannot open shared object file"));
	assert_non_null(strstr(err.message, "LD_LIBRARY_PATH"));
	assert_int_equal(find(other, 12, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "/a/libcudart.so.13, of version 13.0"));
	assert_non_null(strstr(err.message, "install the runtime of CUDA 12"));
}

static void versions_that_are_not_known_are_refused(void **state)
{
	const struct library old[] = {
		LOADED("/a/libcudart.so.11.0", 11080), ON_DISK("/b/libcudart.so.12", 12040), NONE};
	const struct library later[] = {LOADED("/a/libcudart.so.14", 14020), NONE};
	const struct library silent[] = {LOADED("/a/libcudart.so.12", -1), NONE};
	struct ckpt_error err;

	(void)state;
	/* A second one would not be what the program uses. */
	assert_int_equal(find(old, 0, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "/a/libcudart.so.11.0 is of version 11.8"));
	assert_int_equal(find(later, 0, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "install a newer libckpt"));
	assert_int_equal(find(silent, 12, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "error 35"));
	assert_int_equal(find(later, 14, &err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(err.message, "the program uses CUDA 14"));
	assert_int_equal(find(old, 11, &err), CKPT_EUNSUPPORTED);
	assert_string_equal(trail, "");
}

/* Each of the functions in turn. */
static void one_that_lacks_a_function_is_refused(void **state)
{
	static const char *const names[] = {"cudaDriverGetVersion", "cudaGetDeviceCount",
		"cudaSetDevice", "cudaGetDevice", "cudaGetLastError", "cudaGetErrorName",
		"cudaGetErrorString", "cudaThreadExchangeStreamCaptureMode",
		"cudaStreamCreateWithPriority", "cudaStreamDestroy", "cudaStreamSynchronize",
		"cudaStreamWaitEvent", "cudaStreamIsCapturing", "cudaEventCreateWithFlags",
		"cudaEventDestroy", "cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize",
		"cudaMalloc", "cudaFree", "cudaMemcpyAsync", "cudaMemcpy2DAsync",
		"cudaHostRegister", "cudaHostUnregister", "cudaHostGetDevicePointer"};
	struct ckpt_error err;

	(void)state;
	/* Two more: the version, and the one below. */
	assert_int_equal(COUNT(names) + 2, sizeof(struct ckpt_cuda_api) / sizeof(void *));
	for (size_t i = 0; i < COUNT(names); i++) {
		const struct library lacking[] = {{.path = "/a/libcudart.so.12",
							  .mapped = true,
							  .version = 12040,
							  .missing = names[i]},
			LOADED("/b/libcudart.so.13", 13000), NONE};

		assert_int_equal(find(lacking, 12, &err), CKPT_EUNSUPPORTED);
		assert_non_null(strstr(err.message, names[i]));
		assert_non_null(strstr(err.message, "libcudart.so.12 has no"));
	}
}

/* A program that has the runtime within it has what it calls itself. */
static void one_that_does_not_say_where_a_gpu_is_will_do(void **state)
{
	const struct library lacking[] = {{.path = "/a/libcudart.so.12",
						  .mapped = true,
						  .version = 12040,
						  .missing = "cudaDeviceGetPCIBusId"},
		NONE};
	struct ckpt_cuda_api api;
	struct ckpt_error err;

	(void)state;
	libraries = lacking;
	assert_int_equal(ckpt_cuda_load(&made_up, 12, &err, &api), 0);
	assert_null((const void *)api.device_get_pci_bus_id);
	assert_non_null((const void *)api.set_device);
}

static bool refuse(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void no_memory_is_said(void **state)
{
	const struct library some[] = {LOADED("/a/libcudart.so.13", 13000), NONE};
	struct ckpt_error err;

	(void)state;
	ckpt_alloc_set_hook(refuse, NULL);
	assert_int_equal(find(some, 0, &err), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
}

/* The real linker, with the libraries that the tests build. */
static void in_this_process_the_loaded_one_is_found(void **state)
{
	struct ckpt_error err = {.size = 0};
	struct ckpt_cuda_api api;
	void *later;
	int version = 0;

	(void)state;
	assert_non_null(dlopen(FAKE_CUDART_13, RTLD_NOW | RTLD_LOCAL));
	assert_int_equal(ckpt_cuda_load(NULL, 13, &err, &api), 0);
	later = dlopen(FAKE_CUDART_12, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(later);
	assert_int_equal(ckpt_cuda_load(NULL, 12, &err, &api), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 12080);
	assert_ptr_equal((void *)(uintptr_t)api.memcpy_async, dlsym(later, "cudaMemcpyAsync"));
	assert_int_equal(ckpt_cuda_load(NULL, 13, &err, &api), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 13000);
	assert_int_equal(ckpt_cuda_load(NULL, 0, &err, &api), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 13000);
}

/* Those that find symbols without opening anything: somebody else may close what he has opened. */
static void what_was_found_among_all_symbols_stays_loaded(void **state)
{
	struct ckpt_error err = {.size = 0};
	struct ckpt_cuda_api api;
	void *theirs = dlopen(FAKE_CUDART_13, RTLD_NOW | RTLD_GLOBAL);
	int version = 0;

	(void)state;
	assert_non_null(theirs);
	assert_int_equal(ckpt_cuda_load(NULL, 0, &err, &api), 0);
	assert_int_equal(dlclose(theirs), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 13000);
	assert_non_null(dlopen(FAKE_CUDART_13, RTLD_NOW | RTLD_NOLOAD));
}

/* Behind one that was loaded before it, for all to see. */
static void in_this_process_the_one_of_pytorch_is_found(void **state)
{
	struct ckpt_error err = {.size = 0};
	struct ckpt_cuda_api api;
	int version = 0;

	(void)state;
	assert_non_null(dlopen(FAKE_C10, RTLD_NOW | RTLD_LOCAL));
	assert_int_equal(ckpt_cuda_load(NULL, 0, &err, &api), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 12080);
	assert_int_equal(ckpt_cuda_load(NULL, 13, &err, &api), 0);
	assert_int_equal(api.runtime_get_version(&version), 0);
	assert_int_equal(version, 13000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_one_that_was_named_is_taken_and_no_other_asked_for),
		cmocka_unit_test(a_renamed_one_is_found_before_any_is_loaded),
		cmocka_unit_test(one_within_the_program_is_found_before_any_is_loaded),
		cmocka_unit_test(one_that_is_loaded_for_all_is_the_programs),
		cmocka_unit_test(the_one_that_pytorch_uses_comes_first),
		cmocka_unit_test(the_disk_comes_last_and_the_named_one_alone),
		cmocka_unit_test(where_there_is_none_it_says_what_to_do),
		cmocka_unit_test(versions_that_are_not_known_are_refused),
		cmocka_unit_test(one_that_lacks_a_function_is_refused),
		cmocka_unit_test(one_that_does_not_say_where_a_gpu_is_will_do),
		cmocka_unit_test(no_memory_is_said),
		cmocka_unit_test(what_was_found_among_all_symbols_stays_loaded),
		cmocka_unit_test(in_this_process_the_loaded_one_is_found),
		cmocka_unit_test(in_this_process_the_one_of_pytorch_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
