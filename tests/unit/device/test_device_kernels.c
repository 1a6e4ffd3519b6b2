/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU's device does with kernels: samples of what the CPU cannot read, and many small segments at once. */
#include <string.h>

#include <ckpt/error.h>
#include "base/alloc.h"
#include "cuda/cuda_rig.h"
#include "device/cuda_launch_args.h"
#include "lib/prng.h"

#define SIZE  ((size_t)1 << 20)
#define MANY  2000
#define STEP  (SIZE / MANY)
#define OTHER 3 /* a device that is not this one */

static struct cuda_rig *rig;
static const struct fake_cuda *fake;

struct world {
	struct CUstream_st *compute;
	char *device;
	char *staged; /* pinned, where a test does not say otherwise */
	char *bytes;  /* what the device's memory was filled with */
	struct ckpt_segment segments[MANY];
	int64_t shapes[MANY][2];
	int64_t strides[MANY][2];
};

static struct world world;

/* Of any sort that kernels take: whole or in rows, all of it or a part. */
static void draw_segment(struct world *w, struct prng *d, size_t i)
{
	int64_t rows = (int64_t)(1 + prng_below(d, 8));
	int64_t columns = (int64_t)(1 + prng_below(d, 10));
	struct ckpt_segment *s = &w->segments[i];
	uint64_t bytes;

	w->shapes[i][0] = rows;
	w->shapes[i][1] = columns;
	w->strides[i][0] = columns + (int64_t)prng_below(d, 3);
	w->strides[i][1] = 1;
	*s = (struct ckpt_segment){.view = {.data = w->device + i * STEP + prng_below(d, 16),
					   .item = prng_below(d, 2) ? 4 : 2,
					   .ndim = 2,
					   .shape = w->shapes[i],
					   .strides = prng_below(d, 2) ? w->strides[i] : NULL},
		.staged = w->staged + i * STEP + prng_below(d, 16),
		.tensor = (uint32_t)i,
		.sample = i};
	bytes = ckpt_view_bytes(&s->view);
	s->offset = prng_below(d, 3) ? 0 : prng_below(d, bytes);
	s->length = bytes - s->offset;
}

static int setup(void **state)
{
	struct world *w = &world;
	struct prng d = {6};

	rig = cuda_rig_fake();
	fake = rig->fake;
	fake->reset(9);
	assert_cuda(rig->api.set_device(0));
	assert_cuda(rig->api.stream_create_with_priority(
		&w->compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	w->device = cuda_rig_device_memory(rig, SIZE);
	w->staged = cuda_rig_pages(SIZE);
	w->bytes = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i++)
		w->bytes[i] = (char)prng_next(&d);
	fake->poke(w->device, w->bytes, SIZE);
	for (size_t i = 0; i < MANY; i++)
		draw_segment(w, &d, i);
	*state = w;
	return 0;
}

static int setup_open(void **state)
{
	(void)setup(state);
	cuda_rig_open(rig);
	assert_true(rig->device->samples);
	assert_null(rig->device->no_samples);
	assert_int_equal(ckpt_device_pin(rig->device, world.staged, SIZE, &rig->err), 0);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	(void)rig->api.stream_destroy(w->compute);
	cuda_rig_close(rig);
	fake->reset(9);
	cuda_rig_pages_free(w->staged, SIZE);
	cuda_rig_pages_free(w->bytes, SIZE);
	return 0;
}

static int teardown_open(void **state)
{
	ckpt_device_unpin(rig->device, world.staged, SIZE);
	return teardown(state);
}

/* The segment, of the bytes that the device's memory was filled with. */
static struct ckpt_segment known(const struct world *w, size_t i)
{
	struct ckpt_segment s = w->segments[i];

	s.view.data = w->bytes + (s.view.data - w->device);
	return s;
}

static void run(struct ckpt_copy *copy, enum ckpt_copy_direction direction, size_t count)
{
	memset(&rig->err, 0, sizeof(rig->err));
	copy->error = &rig->err;
	cuda_rig_copy(rig, copy, direction, world.segments, count);
	cuda_rig_await(rig, rig->done + 1);
}

static void assert_staged(const struct world *w, size_t count)
{
	static char wanted[SIZE];

	memset(wanted, 0, SIZE);
	for (size_t i = 0; i < count; i++) {
		struct ckpt_segment s = known(w, i);
		if (s.view.device != OTHER)
			ckpt_view_gather(
				&s.view, s.offset, s.length, wanted + (s.staged - w->staged));
	}
	assert_memory_equal(w->staged, wanted, SIZE);
}

static void samples_are_those_that_the_cpu_would_take(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {.seed = 77};

	w->segments[5].view.device = OTHER;
	w->segments[6].length = 0;
	/* They have no staging. */
	for (size_t i = 0; i < MANY; i++)
		w->segments[i].staged = NULL;
	run(&copy, CKPT_COPY_SAMPLE, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(copy.torn, -1);
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_segment s = known(w, i);

		if (i == 5)
			assert_int_equal(s.sample, 5);
		else
			assert_true(s.sample == ckpt_segment_sample(&s, 77, false));
	}
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 0);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), 0);
}

static void a_comparison_finds_the_first_that_was_changed(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {.seed = 77};

	w->segments[1].view.device = OTHER;
	run(&copy, CKPT_COPY_SAMPLE, MANY);
	/* Their owner may have changed them by now. */
	w->segments[100].eager = w->segments[MANY - 1].eager = true;
	w->segments[100].sample++;
	w->segments[MANY - 1].sample++;
	run(&copy, CKPT_COPY_COMPARE, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(copy.torn, -1);
	for (size_t i = MANY - 3; i > 300; i -= 100) {
		char byte;

		fake->peek(w->segments[i].view.data, &byte, 1);
		byte ^= 1;
		w->segments[i].offset = 0;
		fake->poke(w->segments[i].view.data, &byte, 1);
		uint64_t before = w->segments[i].sample;
		run(&copy, CKPT_COPY_COMPARE, MANY);
		assert_int_equal(copy.result, 0);
		assert_int_equal(copy.torn, (int64_t)i);
		/* It stays what it was compared with. */
		assert_true(w->segments[i].sample == before);
	}
}

/* Whoever compares reads staging: the samples are of the same bytes. */
static void staged_bytes_are_held_against_the_kernels_samples(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {.seed = 4};

	run(&copy, CKPT_COPY_SAMPLE, MANY);
	copy.sampled = true;
	run(&copy, CKPT_COPY_TO_STAGING, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(copy.torn, -1);
	for (size_t i = 0; i < MANY; i++)
		if (i == 17 || i == 40)
			fake->poke(w->segments[i].view.data, "changed", 1);
	w->segments[17].offset = w->segments[40].offset = 0;
	copy.sampled = false;
	run(&copy, CKPT_COPY_SAMPLE, 17);
	copy.sampled = true;
	run(&copy, CKPT_COPY_TO_STAGING, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(copy.torn, 17);
}

static void a_sample_is_of_what_was_computed_before_it(void **state)
{
	struct world *w = *state;
	struct ckpt_copy before = {0};
	struct ckpt_copy after = {0};
	struct cuda_gate gate;

	cuda_gate_add(rig, &gate, w->compute);
	assert_cuda(fake->fill(w->device, 1, SIZE, w->compute));
	assert_int_equal(ckpt_device_follow(rig->device, (uintptr_t)w->compute, &rig->err), 0);
	cuda_rig_copy(rig, &before, CKPT_COPY_SAMPLE, w->segments, MANY);
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)w->compute, CKPT_HOLD_ALL, -1, &rig->err),
		0);
	assert_cuda(fake->fill(w->device, 2, SIZE, w->compute));
	cuda_gate_open(&gate);
	cuda_rig_await(rig, 1);
	assert_int_equal(before.result, 0);
	memset(w->bytes, 1, SIZE);
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_segment s = known(w, i);
		assert_true(s.sample == ckpt_segment_sample(&s, 0, false));
	}
	assert_int_equal(ckpt_device_follow(rig->device, (uintptr_t)w->compute, &rig->err), 0);
	cuda_rig_copy(rig, &after, CKPT_COPY_COMPARE, w->segments, MANY);
	cuda_rig_await(rig, 2);
	assert_int_equal(after.torn, 0);
}

static void small_segments_go_by_one_launch_each_way(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};
	char *seen = cuda_rig_pages(SIZE);

	w->segments[3].view.device = OTHER;
	w->segments[4].length = 0;
	run(&copy, CKPT_COPY_TO_STAGING, MANY);
	assert_int_equal(copy.result, 0);
	assert_staged(w, MANY);
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
	for (size_t i = 0; i < SIZE; i++)
		w->staged[i] = (char)~w->staged[i];
	run(&copy, CKPT_COPY_FROM_STAGING, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(fake->calls("cuLaunchKernel"), 2);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 0);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), 0);
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_segment s = known(w, i);
		if (i != 3)
			ckpt_view_scatter(&s.view, s.offset, s.length, s.staged);
	}
	fake->peek(w->device, seen, SIZE);
	assert_memory_equal(seen, w->bytes, SIZE);
	cuda_rig_pages_free(seen, SIZE);
}

/* As many as fit behind each other, among them one byte more than kernels are given. */
static void large_segments_go_piece_by_piece_beside_them(void **state)
{
	const size_t lengths[] = {100, CKPT_CUDA_SPAN_MAX, CKPT_CUDA_SPAN_MAX + 1, 1, 7000, 300000};
	const int64_t shape[] = {SIZE};
	struct world *w = *state;
	struct ckpt_copy copy = {0};

	for (size_t i = 0, at = 0; i < COUNT(lengths); at += lengths[i++])
		w->segments[i] = (struct ckpt_segment){
			.view = {.data = w->device, .item = 1, .ndim = 1, .shape = shape},
			.offset = at,
			.length = lengths[i],
			.staged = w->staged + at + i};
	run(&copy, CKPT_COPY_TO_STAGING, COUNT(lengths));
	assert_int_equal(copy.result, 0);
	assert_staged(w, COUNT(lengths));
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 2);
}

static void assert_no_launch(struct world *w, size_t count)
{
	struct ckpt_copy copy = {0};
	uint64_t launches = fake->calls("cuLaunchKernel");

	memset(w->staged, 0, SIZE);
	run(&copy, CKPT_COPY_TO_STAGING, count);
	assert_int_equal(copy.result, 0);
	assert_staged(w, count);
	assert_int_equal(fake->calls("cuLaunchKernel"), launches);
}

static void few_are_not_worth_a_launch(void **state)
{
	assert_no_launch(*state, 3);
}

static bool no_pin(void *user, size_t size)
{
	(void)user;
	return size == sizeof(struct ckpt_cuda_pin);
}

static void staging_that_a_gpu_does_not_see_is_copied_from_the_host(void **state)
{
	struct world *w = *state;
	uint64_t unpinned;

	/* Not pinned at all: the copies wait, and are made. */
	cuda_rig_open(rig);
	assert_no_launch(w, 50);
	unpinned = fake->notes(FAKE_UNPINNED);
	assert_true(unpinned > 0);
	/* Another part of it is. */
	assert_int_equal(
		ckpt_device_pin(rig->device, w->staged + SIZE / 2, SIZE / 2, &rig->err), 0);
	assert_no_launch(w, 50);
	ckpt_device_unpin(rig->device, w->staged + SIZE / 2, SIZE / 2);
	/* Pinned, but without an address there. */
	fake->fail_call("cudaHostGetDevicePointer", 1, CKPT_CUDA_INVALID_VALUE);
	assert_int_equal(ckpt_device_pin(rig->device, w->staged, SIZE, &rig->err), 0);
	assert_true(fake->failed());
	unpinned = fake->notes(FAKE_UNPINNED);
	assert_no_launch(w, 50);
	assert_int_equal(fake->notes(FAKE_UNPINNED), unpinned);
	ckpt_device_unpin(rig->device, w->staged, SIZE);
	/* Without memory to note where, nothing is pinned: copies would not know where its parts begin. */
	uint64_t pinned = fake->live(FAKE_PINNED);
	ckpt_alloc_set_hook(no_pin, NULL);
	int r = ckpt_device_pin(rig->device, w->staged, SIZE, &rig->err);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, CKPT_EDEVICE);
	assert_int_equal(fake->live(FAKE_PINNED), pinned);
	assert_no_launch(w, 50);
}

static void a_table_is_kept_and_grows(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};
	uint64_t pinned;

	run(&copy, CKPT_COPY_SAMPLE, 10);
	pinned = fake->calls("cudaHostRegister");
	for (size_t i = 0; i < 20; i++)
		run(&copy, i % 2 ? CKPT_COPY_COMPARE : CKPT_COPY_TO_STAGING, 10 + i);
	assert_int_equal(fake->calls("cudaHostRegister"), pinned);
	run(&copy, CKPT_COPY_SAMPLE, MANY);
	assert_int_equal(copy.result, 0);
	assert_int_equal(fake->calls("cudaHostRegister"), pinned + 1);
	run(&copy, CKPT_COPY_SAMPLE, MANY);
	assert_int_equal(fake->calls("cudaHostRegister"), pinned + 1);
	/* The staging and the one table: what it was before it grew is unpinned. */
	assert_int_equal(fake->live(FAKE_PINNED), 2);
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_segment s = known(w, i);
		assert_true(s.sample == ckpt_segment_sample(&s, 0, false));
	}
}

/* Each has a table of its own, which nobody else fills before it is done. */
static void copies_under_way_share_no_table(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copies[20] = {0};
	size_t each = MANY / COUNT(copies);

	fake->stop(FAKE_KERNELS);
	for (size_t i = 0; i < COUNT(copies); i++)
		cuda_rig_copy(rig, &copies[i], i % 2 ? CKPT_COPY_TO_STAGING : CKPT_COPY_SAMPLE,
			&w->segments[i * each], each);
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)w->compute, CKPT_HOLD_ALL, -1, &rig->err),
		0);
	fake->stop(0);
	cuda_rig_await(rig, COUNT(copies));
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_segment s = known(w, i);
		char wanted[STEP];

		assert_int_equal(copies[i / each].result, 0);
		ckpt_view_gather(&s.view, s.offset, s.length, wanted);
		if (i / each % 2)
			assert_memory_equal(s.staged, wanted, s.length);
		else
			assert_true(s.sample == ckpt_segment_sample(&s, 0, false));
	}
}

static void without_kernels_it_is_said_and_copies_go_on(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};

	fake->fail_call("cuModuleLoadData", 1, 218);
	cuda_rig_open(rig);
	assert_false(rig->device->samples);
	assert_string_equal(rig->device->no_samples,
		"cuModuleLoadData: a PTX JIT compilation failed (CUDA_ERROR_INVALID_PTX)");
	assert_int_equal(ckpt_device_pin(rig->device, w->staged, SIZE, &rig->err), 0);
	run(&copy, CKPT_COPY_SAMPLE, 10);
	assert_int_equal(copy.result, CKPT_EUNSUPPORTED);
	assert_non_null(strstr(rig->err.message, "GPU 0 has no kernels"));
	assert_non_null(strstr(rig->err.message, "CUDA_ERROR_INVALID_PTX"));
	assert_no_launch(w, MANY);
	ckpt_device_unpin(rig->device, w->staged, SIZE);
}

static bool no_memory(void *user, size_t size)
{
	(void)user;
	return size > 30000;
}

/* Of samples that is a failure; small segments can go otherwise. */
static void a_table_that_is_not_to_be_had_is_said(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};

	for (unsigned i = 0; i < 4; i++) {
		static const char *const functions[] = {
			"cudaHostRegister", "cudaHostGetDevicePointer", NULL, "cudaHostRegister"};

		if (functions[i])
			fake->fail_call(functions[i], 1, CKPT_CUDA_MEMORY_ALLOCATION);
		else
			ckpt_alloc_set_hook(no_memory, NULL);
		if (i < 3) {
			run(&copy, CKPT_COPY_SAMPLE, MANY);
			assert_int_equal(copy.result, CKPT_EDEVICE);
			assert_non_null(strstr(rig->err.message, "the table of a kernel launch"));
		} else {
			assert_no_launch(w, MANY);
		}
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(i == 2 || fake->failed());
		/* The thread's last error is not left to others: nothing of it is pinned either. */
		assert_int_equal(fake->live(FAKE_PINNED), 1);
	}
	run(&copy, CKPT_COPY_SAMPLE, MANY);
	assert_int_equal(copy.result, 0);
}

static void a_launch_that_fails_is_the_copys(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};

	for (enum ckpt_copy_direction i = CKPT_COPY_TO_STAGING; i <= CKPT_COPY_COMPARE; i++) {
		fake->fail_call("cuLaunchKernel", 1, CKPT_CUDA_ILLEGAL_ADDRESS);
		run(&copy, i, MANY);
		assert_int_equal(copy.result, CKPT_EDEVICE);
		assert_non_null(strstr(rig->err.message, "cuLaunchKernel"));
		assert_int_equal(copy.torn, -1);
		assert_int_equal(w->segments[8].sample, 8);
	}
	run(&copy, CKPT_COPY_TO_STAGING, MANY);
	assert_int_equal(copy.result, 0);
	assert_staged(w, MANY);
}

/* The GPU is gone when the kernel is to run. */
static void samples_of_a_gpu_that_is_lost_are_not_delivered(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = {0};

	fake->stop(FAKE_KERNELS);
	copy.error = &rig->err;
	cuda_rig_copy(rig, &copy, CKPT_COPY_SAMPLE, w->segments, MANY);
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)w->compute, CKPT_HOLD_ALL, -1, &rig->err),
		0);
	fake->die(0, CKPT_CUDA_ILLEGAL_ADDRESS);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, CKPT_EDEVICE);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(w->segments[i].sample, i);
}

#define PROMISE(name)  cmocka_unit_test_setup_teardown(name, setup_open, teardown_open)
#define UNOPENED(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(samples_are_those_that_the_cpu_would_take),
		PROMISE(a_comparison_finds_the_first_that_was_changed),
		PROMISE(staged_bytes_are_held_against_the_kernels_samples),
		PROMISE(a_sample_is_of_what_was_computed_before_it),
		PROMISE(small_segments_go_by_one_launch_each_way),
		PROMISE(large_segments_go_piece_by_piece_beside_them),
		PROMISE(few_are_not_worth_a_launch),
		UNOPENED(staging_that_a_gpu_does_not_see_is_copied_from_the_host),
		PROMISE(a_table_is_kept_and_grows),
		PROMISE(copies_under_way_share_no_table),
		UNOPENED(without_kernels_it_is_said_and_copies_go_on),
		PROMISE(a_table_that_is_not_to_be_had_is_said),
		PROMISE(a_launch_that_fails_is_the_copys),
		cmocka_unit_test_setup_teardown(
			samples_of_a_gpu_that_is_lost_are_not_delivered, setup_open, teardown_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
