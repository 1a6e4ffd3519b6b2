/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels on the fake driver: they are found or it is said why not, and a launch does what its table says. */
#include <string.h>

#include "cuda/cuda_rig.h"
#include "device/cuda_driver.h"
#include "device/cuda_span.h"
#include "device/sample_mix.h"
#include "lib/prng.h"

#define SIZE  ((size_t)1 << 20)
#define SPANS 10000
#define STEP  100 /* bytes from span to span */

static struct cuda_rig *rig;
static const struct ckpt_cuda_api *cuda;

struct world {
	struct CUstream_st *stream;
	struct ckpt_cuda_kernels kernels;
	char *host;    /* pinned and mapped: the bytes, and behind them the table and the samples */
	uint64_t seen; /* where the GPU has it */
	char *device;
	char *bytes;
};

static int setup(void **state)
{
	static struct world world;
	struct world *w = &world;
	struct prng d = {4};
	void *seen = NULL;

	rig = cuda_rig_fake();
	cuda = &rig->api;
	rig->fake->reset(7);
	assert_cuda(cuda->set_device(0));
	assert_cuda(
		cuda->stream_create_with_priority(&w->stream, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	w->device = cuda_rig_device_memory(rig, SIZE);
	w->host = cuda_rig_pages(3 * SIZE);
	w->bytes = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i++)
		w->bytes[i] = (char)prng_next(&d);
	rig->fake->poke(w->device, w->bytes, SIZE);
	assert_cuda(cuda->host_register(w->host, 3 * SIZE,
		CKPT_CUDA_HOST_REGISTER_PORTABLE | CKPT_CUDA_HOST_REGISTER_MAPPED));
	assert_cuda(cuda->host_get_device_pointer(&seen, w->host, 0));
	w->seen = (uintptr_t)seen;
	ckpt_cuda_kernels_load(NULL, &w->kernels);
	assert_non_null(w->kernels.module);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_cuda_kernels_unload(&w->kernels);
	assert_int_equal(rig->fake->live(FAKE_MODULES), 0);
	rig->fake->reset(7);
	cuda_rig_pages_free(w->host, 3 * SIZE);
	cuda_rig_pages_free(w->bytes, SIZE);
	return 0;
}

/* Its functions are those of the fake; one may be missing, or all of it. */
static const char *missing;
static bool no_library;
static char other_functions;

static void *made_up_dlopen(const char *name, int flags)
{
	assert_string_equal(name, "libcuda.so.1");
	(void)flags;
	return no_library ? NULL : &other_functions;
}

static void *made_up_dlsym(void *handle, const char *name)
{
	assert_ptr_equal(handle, &other_functions);
	/* Nobody calls it. */
	return strcmp(name, missing) == 0 ? NULL : &other_functions;
}

static const struct ckpt_cuda_driver_ops made_up = {made_up_dlopen, made_up_dlsym};

static void a_driver_that_is_not_whole_is_said(void **state)
{
	static const char *const names[] = {"cuModuleLoadData", "cuModuleGetFunction",
		"cuModuleUnload", "cuLaunchKernel", "cuGetErrorName", "cuGetErrorString"};
	struct ckpt_cuda_kernels kernels;

	(void)state;
	assert_int_equal(COUNT(names), sizeof(struct ckpt_cuda_driver) / sizeof(void *));
	for (size_t i = 0; i < COUNT(names); i++) {
		missing = names[i];
		ckpt_cuda_kernels_load(&made_up, &kernels);
		assert_null(kernels.module);
		assert_non_null(strstr(kernels.why_not, names[i]));
	}
	no_library = true;
	ckpt_cuda_kernels_load(&made_up, &kernels);
	no_library = false;
	assert_null(kernels.module);
	assert_non_null(strstr(kernels.why_not, "(libcuda.so.1) was not found"));
}

static void kernels_that_are_refused_are_said(void **state)
{
	struct ckpt_cuda_kernels kernels;

	(void)state;
	rig->fake->fail_call("cuModuleLoadData", 1, 218);
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_null(kernels.module);
	assert_string_equal(kernels.why_not,
		"cuModuleLoadData: a PTX JIT compilation failed (CUDA_ERROR_INVALID_PTX)");
	/* What has no name has none. */
	rig->fake->fail_call("cuModuleLoadData", 1, 987);
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_null(kernels.module);
	assert_non_null(strstr(kernels.why_not, "an error without a text"));
	for (unsigned i = 1; i <= 3; i++) {
		rig->fake->fail_call("cuModuleGetFunction", i, 500);
		ckpt_cuda_kernels_load(NULL, &kernels);
		assert_null(kernels.module);
		assert_non_null(strstr(kernels.why_not, "CUDA_ERROR_NOT_FOUND"));
	}
	assert_int_equal(rig->fake->live(FAKE_MODULES), 1);
	ckpt_cuda_kernels_unload(&kernels);
}

static void *load_in_thread(void *user)
{
	assert_cuda(cuda->set_device(1));
	ckpt_cuda_kernels_load(NULL, user);
	return NULL;
}

static void a_gpu_that_nothing_was_made_for_has_no_context(void **state)
{
	struct ckpt_cuda_kernels kernels;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, load_in_thread, &kernels), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_null(kernels.module);
	assert_non_null(strstr(kernels.why_not, "CUDA_ERROR_INVALID_CONTEXT"));
}

/* Spans of 1 to STEP bytes; the table is behind the bytes, the samples behind it. */
static struct ckpt_cuda_span *make_table(struct world *w)
{
	struct ckpt_cuda_span *table = (void *)(w->host + SIZE);

	for (size_t i = 0; i < SPANS; i++)
		table[i] = (struct ckpt_cuda_span){.data = (uintptr_t)w->device + i * STEP,
			.run = 1 + i % STEP,
			.length = 1 + i % STEP,
			.staged = w->seen + i * STEP,
			.key = ckpt_sample_key(3, 0, (uint32_t)i, 1 + i % STEP)};
	return table;
}

static void ten_thousand_samples_are_one_launch(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_span *table = make_table(w);
	uint64_t *samples = (void *)(w->host + 2 * SIZE);

	assert_cuda(ckpt_cuda_launch_samples(
		&w->kernels, w->seen + SIZE, SPANS, w->seen + 2 * SIZE, w->stream));
	assert_cuda(cuda->stream_synchronize(w->stream));
	assert_int_equal(rig->fake->calls("cuLaunchKernel"), 1);
	for (size_t i = 0; i < SPANS; i++) {
		int64_t shape[] = {(int64_t)table[i].length};
		struct ckpt_segment segment = {
			.view = {.data = w->bytes + i * STEP, .item = 1, .ndim = 1, .shape = shape},
			.length = table[i].length,
			.tensor = (uint32_t)i};

		assert_true(samples[i] == ckpt_segment_sample(&segment, 3, false));
	}
	assert_int_equal(samples[SPANS], 0);
}

static void spans_go_to_staging_and_back(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_span *table = make_table(w);
	char *seen = cuda_rig_pages(SIZE);

	assert_cuda(
		ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, SPANS - 5, w->stream));
	assert_cuda(cuda->stream_synchronize(w->stream));
	for (size_t i = 0; i < SPANS; i++) {
		size_t length = i < SPANS - 5 ? table[i].length : 0;

		assert_memory_equal(w->host + i * STEP, w->bytes + i * STEP, length);
		for (size_t j = length; j < STEP; j++)
			assert_int_equal(w->host[i * STEP + j], 0);
	}
	for (size_t i = 0; i < SPANS * STEP; i++)
		w->host[i] = (char)(i * 3);
	assert_cuda(ckpt_cuda_launch_copies(&w->kernels, true, w->seen + SIZE, SPANS, w->stream));
	assert_cuda(cuda->stream_synchronize(w->stream));
	rig->fake->peek(w->device, seen, SIZE);
	for (size_t i = 0; i < SPANS; i++) {
		size_t length = table[i].length;

		assert_memory_equal(seen + i * STEP, w->host + i * STEP, length);
		assert_memory_equal(
			seen + i * STEP + length, w->bytes + i * STEP + length, STEP - length);
	}
	cuda_rig_pages_free(seen, SIZE);
}

static void a_launch_takes_its_turn_in_the_stream(void **state)
{
	struct world *w = *state;
	struct cuda_gate gate;

	(void)make_table(w);
	cuda_gate_add(rig, &gate, w->stream);
	assert_cuda(rig->fake->fill(w->device, 9, SIZE, w->stream));
	assert_cuda(ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, SPANS, w->stream));
	assert_cuda(rig->fake->fill(w->device, 8, SIZE, w->stream));
	assert_int_equal(w->host[0], 0);
	cuda_gate_open(&gate);
	assert_cuda(cuda->stream_synchronize(w->stream));
	for (size_t i = 0; i < SPANS; i++)
		assert_int_equal(w->host[i * STEP], 9);
}

static void a_launch_that_fails_is_the_drivers_error(void **state)
{
	struct world *w = *state;

	(void)make_table(w);
	rig->fake->fail_call("cuLaunchKernel", 1, 701);
	assert_int_equal(ckpt_cuda_launch_samples(
				 &w->kernels, w->seen + SIZE, 1, w->seen + 2 * SIZE, w->stream),
		701);
	assert_true(rig->fake->failed());
}

/* What the fake objects to. */
static void what_a_gpu_cannot_reach_is_forbidden(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_span *table = make_table(w);
	struct CUstream_st *other;

	rig->fake->forgive(true);
	/* The host's address, which the GPU does not have. */
	(void)ckpt_cuda_launch_copies(&w->kernels, false, (uintptr_t)table, 1, w->stream);
	assert_non_null(strstr(rig->fake->forbidden(), "table is in memory"));
	rig->fake->forgive(true);
	table[1].staged = (uintptr_t)w->host;
	(void)ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, 2, w->stream);
	assert_cuda(cuda->stream_synchronize(w->stream));
	assert_non_null(strstr(rig->fake->forbidden(), "a kernel ran on memory"));
	rig->fake->forgive(true);
	(void)make_table(w);
	table[0].data += SIZE;
	(void)ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, 1, w->stream);
	assert_cuda(cuda->stream_synchronize(w->stream));
	assert_non_null(strstr(rig->fake->forbidden(), "a kernel ran on memory"));
	rig->fake->forgive(true);
	assert_cuda(cuda->set_device(1));
	assert_cuda(cuda->stream_create_with_priority(&other, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(cuda->set_device(0));
	(void)ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, 1, other);
	assert_non_null(strstr(rig->fake->forbidden(), "a stream of another GPU"));
	rig->fake->forgive(true);
	/* Staging that a kernel writes to, and the module under one. */
	(void)make_table(w);
	rig->fake->stop(FAKE_KERNELS);
	assert_cuda(ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, 1, w->stream));
	(void)w->kernels.driver.module_unload(w->kernels.module);
	assert_non_null(strstr(rig->fake->forbidden(), "cuModuleUnload() under a kernel"));
	(void)ckpt_cuda_launch_copies(&w->kernels, false, w->seen + SIZE, 1, w->stream);
	assert_non_null(strstr(rig->fake->forbidden(), "a module that was unloaded"));
	w->kernels.module = NULL;
	(void)cuda->host_unregister(w->host);
	assert_non_null(strstr(rig->fake->forbidden(), "unpinned under a copy"));
	rig->fake->forgive(true);
	rig->fake->stop(0);
	assert_cuda(cuda->stream_synchronize(w->stream));
}

#define DRIVER(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		DRIVER(a_driver_that_is_not_whole_is_said),
		DRIVER(kernels_that_are_refused_are_said),
		DRIVER(a_gpu_that_nothing_was_made_for_has_no_context),
		DRIVER(ten_thousand_samples_are_one_launch),
		DRIVER(spans_go_to_staging_and_back),
		DRIVER(a_launch_takes_its_turn_in_the_stream),
		DRIVER(a_launch_that_fails_is_the_drivers_error),
		DRIVER(what_a_gpu_cannot_reach_is_forbidden),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
