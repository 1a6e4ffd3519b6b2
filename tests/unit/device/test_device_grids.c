/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's tensors whose elements lie anyhow: what is saved of them, and what comes back, is what the device of the CPU
 * makes of the same view.
 */
#include <errno.h>
#include <string.h>

#include <ckpt/error.h>
#include "cuda/cuda_rig.h"
#include "device/cuda_copy_plan.h"
#include "device/cuda_grids.h"
#include "device/cuda_relay.h"
#include "lib/hang.h"
#include "lib/prng.h"

#define SIZE ((size_t)12 << 20)
#define CUTS 40
#define DIMS 4

static struct cuda_rig *rig;
static const struct fake_cuda *fake;

struct world {
	char *device;
	char *staged; /* pinned, where a test does not say otherwise */
	char *bytes;  /* what the device's memory was filled with, and what it shall be */
	char *seen;
};

static struct world world;

static int setup(void **state)
{
	struct world *w = &world;
	struct prng d = {6};

	rig = cuda_rig_fake();
	fake = rig->fake;
	fake->reset(9);
	assert_cuda(rig->api.set_device(0));
	w->device = cuda_rig_device_memory(rig, SIZE);
	w->staged = cuda_rig_pages(SIZE);
	w->bytes = cuda_rig_pages(SIZE);
	w->seen = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i += sizeof(uint64_t)) {
		uint64_t word = prng_next(&d);

		memcpy(w->bytes + i, &word, sizeof(word));
	}
	fake->poke(w->device, w->bytes, SIZE);
	*state = w;
	return 0;
}

static int setup_open(void **state)
{
	(void)setup(state);
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, world.staged, SIZE, &rig->err), 0);
	return 0;
}

static int setup_unpinned(void **state)
{
	(void)setup(state);
	cuda_rig_open(rig);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	cuda_rig_close(rig);
	/* This world's, and no relay's. */
	assert_int_equal(fake->live(FAKE_MEMORY), 1);
	fake->reset(9);
	cuda_rig_pages_free(w->staged, SIZE);
	cuda_rig_pages_free(w->bytes, SIZE);
	cuda_rig_pages_free(w->seen, SIZE);
	return 0;
}

static int teardown_open(void **state)
{
	assert_int_equal(fake->notes(FAKE_UNPINNED), 0);
	ckpt_device_unpin(rig->device, world.staged, SIZE);
	return teardown(state);
}

static int run(struct ckpt_copy *copy, enum ckpt_copy_direction direction,
	struct ckpt_segment *segments, size_t count)
{
	memset(&rig->err, 0, sizeof(rig->err));
	copy->error = &rig->err;
	cuda_rig_copy(rig, copy, direction, segments, count);
	cuda_rig_await(rig, rig->done + 1);
	return copy->result;
}

/* A tensor, as PyTorch would describe it. */
struct form {
	const char *name;
	uint32_t item;
	uint32_t ndim;
	int64_t shape[DIMS];
	int64_t strides[DIMS];
	size_t at; /* where in the memory its first element is */
	bool shared;
};

static const struct form forms[] = {
	{"channels_last", 4, 4, {64, 32, 3, 3}, {288, 1, 96, 32}, 0, false},
	{"channels_last of bfloat16", 2, 4, {30, 17, 3, 3}, {153, 1, 51, 17}, 6, false},
	{"transposed", 4, 2, {700, 501}, {1, 700}, 64, false},
	{"transposed bytes", 1, 2, {1000, 333}, {1, 1000}, 3, false},
	{"transposed complex128", 16, 2, {100, 101}, {1, 100}, 160, false},
	{"permuted", 8, 3, {20, 30, 40}, {40, 800, 1}, 0, false},
	{"a part of what was permuted", 2, 3, {10, 15, 20}, {2, 1600, 40}, 2, false},
	{"backwards", 4, 2, {300, 7}, {-9, 1}, 40000, false},
	{"every third", 2, 1, {50000}, {3}, 0, false},
	{"large", 4, 2, {1201, 2003}, {1, 1201}, 32, false},
	{"expanded", 4, 2, {90, 800}, {0, 1}, 32, true},
	{"overlapping windows", 8, 2, {90, 80}, {1, 1}, 32, true},
};

static struct ckpt_segment segment_of(const struct form *f, char *memory)
{
	struct ckpt_segment s = {.view = {.data = memory + f->at,
					 .item = f->item,
					 .ndim = f->ndim,
					 .shape = f->shape,
					 .strides = f->strides},
		.staged = world.staged};

	s.length = ckpt_view_bytes(&s.view);
	return s;
}

/* Cuts it, as blocks do, at so many places, mostly between elements. The parts are staged in order, apart or not. */
static size_t cut(struct prng *d, const struct ckpt_segment *whole, size_t cuts, size_t apart,
	struct ckpt_segment parts[CUTS])
{
	uint64_t at = 0;
	size_t count = 0;

	while (at < whole->length && count + 1 < cuts) {
		uint64_t length = 1 + prng_below(d, 2 * (whole->length / cuts) + 8);

		if (count % 4 < 3)
			length += whole->view.item - (at + length) % whole->view.item;
		length = ckpt_min_u64(length, whole->length - at);
		parts[count] = *whole;
		parts[count].offset = at;
		parts[count].length = length;
		parts[count].staged = whole->staged + at + count * apart;
		at += length;
		count++;
	}
	if (at < whole->length) {
		parts[count] = *whole;
		parts[count].offset = at;
		parts[count].length = whole->length - at;
		parts[count].staged = whole->staged + at + count * apart;
		count++;
	}
	return count;
}

static void gathered_bytes_are_those_of_the_cpu(void **state)
{
	struct world *w = *state;
	struct prng d = {31};

	for (size_t i = 0; i < 2 * COUNT(forms); i++) {
		const struct form *f = &forms[i / 2];
		struct ckpt_segment s = segment_of(f, w->device);
		struct ckpt_segment here = segment_of(f, w->bytes);
		struct ckpt_segment parts[CUTS];
		size_t apart = prng_below(&d, 2) * 32;
		size_t count = cut(&d, &s, i % 2 ? CUTS : 1, apart, parts);
		struct ckpt_copy copy = {0};

		memset(w->staged, 0x77, s.length + CUTS * apart + 64);
		memset(w->seen, 0x77, s.length + CUTS * apart + 64);
		for (size_t k = 0; k < count; k++)
			ckpt_view_gather(&here.view, parts[k].offset, parts[k].length,
				w->seen + (parts[k].staged - w->staged));
		if (run(&copy, CKPT_COPY_TO_STAGING, parts, count) != 0)
			fail_msg("%s: %s", f->name, rig->err.message);
		if (memcmp(w->staged, w->seen, s.length + CUTS * apart + 64) != 0)
			fail_msg("%s: other bytes", f->name);
	}
}

/* And nothing between the elements is written. */
static void scattered_elements_are_those_of_the_cpu(void **state)
{
	struct world *w = *state;
	struct prng d = {32};

	for (size_t i = 0; i < SIZE; i++)
		w->staged[i] = (char)(i * 13 + i / 255);
	for (size_t i = 0; i < 2 * COUNT(forms); i++) {
		const struct form *f = &forms[i / 2];
		struct ckpt_segment s = segment_of(f, w->device);
		struct ckpt_segment here = segment_of(f, w->bytes);
		struct ckpt_segment parts[CUTS];
		struct ckpt_copy copy = {0};
		size_t count;

		s.staged += prng_below(&d, 2) * f->item;
		count = cut(&d, &s, i % 2 ? CUTS : 1, 16, parts);
		run(&copy, CKPT_COPY_FROM_STAGING, parts, count);
		if (f->shared) {
			assert_int_equal(copy.result, CKPT_EUNSUPPORTED);
			continue;
		}
		if (copy.result != 0)
			fail_msg("%s: %s", f->name, rig->err.message);
		for (size_t k = 0; k < count; k++)
			ckpt_view_scatter(
				&here.view, parts[k].offset, parts[k].length, parts[k].staged);
		fake->peek(w->device, w->seen, SIZE);
		if (memcmp(w->seen, w->bytes, SIZE) != 0)
			fail_msg("%s: other bytes", f->name);
	}
}

/* What a rank of another world reads: boxes of arrays, cut anywhere, into what is not in order either. */
static void boxes_of_an_array_in_staging_are_filled(void **state)
{
	static const int64_t arounds[][2 * DIMS] = {
		{64, 32, 3, 3, 0, 0, 0, 0},
		{80, 40, 3, 3, 7, 8, 0, 0},
		{64, 33, 4, 5, 0, 1, 1, 2},
	};
	const struct form *f = &forms[0];
	struct world *w = *state;
	struct prng d = {33};

	for (size_t i = 0; i < SIZE; i++)
		w->staged[i] = (char)(i * 11 + i / 253);
	for (size_t i = 0; i < 2 * COUNT(arounds); i++) {
		const int64_t *around = arounds[i / 2];
		struct ckpt_segment s = segment_of(f, w->device);
		struct ckpt_segment here = segment_of(f, w->bytes);
		struct ckpt_segment parts[CUTS];
		struct ckpt_copy copy = {0};
		size_t count;

		s.around = around;
		s.length = f->item * (uint64_t)(around[0] * around[1] * around[2] * around[3]);
		count = cut(&d, &s, i % 2 ? CUTS : 1, 4, parts);
		if (run(&copy, CKPT_COPY_FROM_STAGING, parts, count) != 0)
			fail_msg("box %zu: %s", i, rig->err.message);
		for (size_t k = 0; k < count; k++)
			ckpt_view_scatter_box(&here.view, around, parts[k].offset, parts[k].length,
				parts[k].staged);
		fake->peek(w->device, w->seen, SIZE);
		assert_memory_equal(w->seen, w->bytes, SIZE);
	}
}

static void nothing_is_moved_of_an_empty_box(void **state)
{
	const int64_t shape[] = {0, 4};
	const int64_t around[] = {8, 4, 3, 0};
	struct world *w = *state;
	struct ckpt_segment segments[6];
	struct ckpt_copy copy = {0};

	for (size_t i = 0; i < COUNT(segments); i++)
		segments[i] = (struct ckpt_segment){
			.view = {.data = w->device, .item = 4, .ndim = 2, .shape = shape},
			.length = i * 8,
			.staged = w->staged,
			.around = around};
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, segments, COUNT(segments)), 0);
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, segments + 5, 1), 0);
	fake->peek(w->device, w->seen, SIZE);
	assert_memory_equal(w->seen, w->bytes, SIZE);
}

/* Others in between are copied as ever; the order of the segments does not matter. */
static void small_ones_go_along_with_the_others(void **state)
{
	static const struct form small[] = {
		{"", 4, 2, {9, 30}, {1, 9}, 0, false},
		{"", 2, 1, {100}, {1}, 0, false},
		{"", 4, 4, {4, 8, 3, 3}, {72, 1, 24, 8}, 0, false},
		{"", 8, 2, {5, 7}, {9, 1}, 0, false},
	};
	struct world *w = *state;
	struct ckpt_segment segments[200];
	struct ckpt_copy copy = {.seed = 12};
	uint64_t launches;

	for (int sample = 1; sample >= 0; sample--) {
		memset(w->seen, 0, SIZE);
		for (size_t i = 0; i < COUNT(segments); i++) {
			struct ckpt_segment here = segment_of(&small[i % 4], w->bytes + i * 2000);

			segments[i] = segment_of(&small[i % 4], w->device + i * 2000);
			segments[i].tensor = (uint32_t)i;
			segments[i].staged = w->staged + i * 2000 + i % 3;
			ckpt_view_gather(&here.view, 0, here.length, w->seen + i * 2000 + i % 3);
		}
		launches = fake->calls("cuLaunchKernel");
		run(&copy, sample ? CKPT_COPY_SAMPLE : CKPT_COPY_TO_STAGING, segments,
			COUNT(segments));
		assert_int_equal(copy.result, 0);
		assert_int_equal(fake->calls("cuLaunchKernel"), launches + 1);
		for (size_t i = 0; i < COUNT(segments) && sample; i++)
			assert_true(
				segments[i].sample ==
				ckpt_segment_sample(
					&(struct ckpt_segment){.staged = w->seen + i * 2000 + i % 3,
						.length = segments[i].length,
						.tensor = (uint32_t)i},
					12, true));
	}
	assert_memory_equal(w->staged, w->seen, SIZE);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 0);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), 0);
}

/* Training's kernels come in between: no launch is longer than a piece of a copy. */
static void a_large_one_goes_by_several_launches(void **state)
{
	const struct form f = {"", 2, 2, {2500, 2100}, {1, 2500}, 0, false};
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&f, w->device);
	struct ckpt_copy copy = {0};

	assert_true(s.length > CKPT_CUDA_PIECE && s.length < 2 * CKPT_CUDA_PIECE);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), 0);
	assert_int_equal(fake->calls("cuLaunchKernel"), 2);
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, &s, 1), 0);
	assert_int_equal(fake->calls("cuLaunchKernel"), 4);
	fake->peek(w->device, w->seen, SIZE);
	assert_memory_equal(w->seen, w->bytes, SIZE);
}

/* The samples before and after, and the staged bytes, are of the same places. */
static void what_was_changed_meanwhile_is_found(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segments[COUNT(forms)];
	struct ckpt_copy copy = {.seed = 5};
	size_t at = 0;

	for (size_t i = 0; i < COUNT(forms); i++) {
		segments[i] = segment_of(&forms[i], w->device);
		segments[i].tensor = (uint32_t)i;
		/* Behind one another, but for the large one. */
		segments[i].length = ckpt_min_u64(segments[i].length, 400000);
		segments[i].staged += at;
		at += segments[i].length;
	}
	assert_int_equal(run(&copy, CKPT_COPY_SAMPLE, segments, COUNT(segments)), 0);
	for (size_t i = 0; i < COUNT(forms); i++) {
		struct ckpt_segment here = segment_of(&forms[i], w->bytes);

		here.length = segments[i].length;
		here.tensor = (uint32_t)i;
		assert_true(segments[i].sample == ckpt_segment_sample(&here, 5, false));
	}
	copy.sampled = true;
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, segments, COUNT(segments)), 0);
	assert_int_equal(copy.torn, -1);
	copy.sampled = false;
	assert_int_equal(run(&copy, CKPT_COPY_COMPARE, segments, COUNT(segments)), 0);
	assert_int_equal(copy.torn, -1);

	/* The second element of the transposed one, far from the first: in its first line. */
	char byte = (char)~w->bytes[forms[2].at + 700 * 4 + 2];
	fake->poke(w->device + forms[2].at + 700 * 4 + 2, &byte, 1);
	assert_int_equal(run(&copy, CKPT_COPY_COMPARE, segments + 2, 1), 0);
	assert_int_equal(copy.torn, 0);
	copy.sampled = true;
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, segments + 2, 1), 0);
	assert_int_equal(copy.torn, 0);
	copy.sampled = false;
	assert_int_equal(run(&copy, CKPT_COPY_SAMPLE, segments + 2, 1), 0);
	copy.sampled = true;
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, segments + 2, 1), 0);
	assert_int_equal(copy.torn, -1);
}

static void a_launch_that_fails_is_the_copys(void **state)
{
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[9], w->device);
	struct ckpt_copy copy = {0};

	/* The second of two launches, then the first. */
	for (unsigned nth = 2; nth > 0; nth--) {
		for (enum ckpt_copy_direction i = CKPT_COPY_TO_STAGING; i <= CKPT_COPY_FROM_STAGING;
			i++) {
			fake->fail_call("cuLaunchKernel", nth, CKPT_CUDA_ILLEGAL_ADDRESS);
			assert_int_equal(run(&copy, i, &s, 1), CKPT_EDEVICE);
			assert_true(fake->failed());
			assert_non_null(strstr(rig->err.message, "cuLaunchKernel"));
			assert_cuda(rig->api.get_last_error());
		}
	}
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), 0);
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, &s, 1), 0);
}

/* The GPU is gone when the kernel is to run: the copy comes back, and no later one is tried. */
static void a_gpu_that_is_lost_fails_it(void **state)
{
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[0], w->device);
	struct ckpt_copy copy = {.error = &rig->err};

	fake->stop(FAKE_KERNELS);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &s, 1);
	await(fake->calls("cuLaunchKernel") > 0);
	fake->die(0, CKPT_CUDA_ILLEGAL_ADDRESS);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, CKPT_EDEVICE);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), CKPT_EDEVICE);
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
}

/* Rows still go by the copy engines, however short. The other is said to be what it is. */
static void without_kernels_rows_are_what_can_be_copied(void **state)
{
	const int64_t shape[] = {(int64_t)SIZE / 4};
	const int64_t strides[] = {2};
	struct world *w = *state;
	struct ckpt_segment rows = {
		.view = {w->device + 1, 1, 1, shape, strides, 0}, .length = SIZE / 4};
	struct ckpt_segment other = segment_of(&forms[0], w->device);
	struct ckpt_copy copy = {0};

	rows.staged = w->staged;
	fake->fail_call("cuModuleLoadData", 1, 218);
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, w->staged, SIZE, &rig->err), 0);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &rows, 1), 0);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), SIZE / 4 / CKPT_CUDA_PIECE_RUNS);
	for (size_t i = 0; i < SIZE / 4; i++)
		assert_int_equal(w->staged[i], w->bytes[2 * i + 1]);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &other, 1), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(rig->err.message, "CUDA_ERROR_INVALID_PTX"));
	assert_non_null(strstr(rig->err.message, "tensor.contiguous()"));
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, &other, 1), CKPT_EUNSUPPORTED);
	ckpt_error_clear(&rig->err);
	assert_int_equal(ckpt_device_takes(rig->device, &rows, &rig->err), 0);
	assert_int_equal(ckpt_device_takes(rig->device, &other, &rig->err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(rig->err.message, "CUDA_ERROR_INVALID_PTX"));
	ckpt_device_unpin(rig->device, w->staged, SIZE);
}

/* Only what is pinned to its last byte is read and written by the kernels where it is. */
static void staging_that_is_not_pinned_goes_by_the_relay(void **state)
{
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[0], w->device);
	struct ckpt_segment here = segment_of(&forms[0], w->bytes);
	struct ckpt_segment many[8];
	struct ckpt_copy copy = {0};

	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = segment_of(&forms[2], w->device);
	assert_int_equal(ckpt_device_pin(rig->device, w->staged, SIZE / 2, &rig->err), 0);
	s.staged = w->staged + SIZE / 2 - s.length + 1;
	ckpt_view_gather(&here.view, 0, here.length, w->seen);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), 0);
	assert_memory_equal(s.staged, w->seen, s.length);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 1);
	assert_int_equal(fake->live(FAKE_MEMORY), 2);
	s.staged--;
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), 0);
	assert_memory_equal(s.staged, w->seen, s.length);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 1);
	assert_int_equal(run(&copy, CKPT_COPY_SAMPLE, &s, 1), 0);
	for (size_t i = 0; i < COUNT(many); i++)
		many[i].staged = w->staged + SIZE / 2 + i;
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, many, COUNT(many)), 0);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 1 + COUNT(many));
	assert_int_equal(fake->calls("cudaMalloc"), 2);
	ckpt_device_unpin(rig->device, w->staged, SIZE / 2);
}

/* As many pieces as the relay makes of it, each in its turn. */
static void a_large_one_goes_through_the_relay_in_pieces(void **state)
{
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[9], w->device);
	struct ckpt_segment here = segment_of(&forms[9], w->bytes);
	uint64_t pieces = (s.length + CKPT_CUDA_RELAY - 1) / CKPT_CUDA_RELAY;
	struct ckpt_copy copy = {0};

	assert_true(pieces > 2);
	ckpt_view_gather(&here.view, 0, here.length, w->seen);
	assert_int_equal(run(&copy, CKPT_COPY_TO_STAGING, &s, 1), 0);
	assert_memory_equal(w->staged, w->seen, s.length);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), pieces);
	assert_int_equal(fake->calls("cuLaunchKernel"), pieces);
	for (size_t i = 0; i < s.length; i++)
		w->staged[i] ^= 0x3c;
	ckpt_view_scatter(&here.view, 0, here.length, w->staged);
	assert_int_equal(run(&copy, CKPT_COPY_FROM_STAGING, &s, 1), 0);
	fake->peek(w->device, w->seen, SIZE);
	assert_memory_equal(w->seen, w->bytes, SIZE);
	assert_int_equal(fake->calls("cuLaunchKernel"), 2 * pieces);
}

/* Any call of a piece, of the first or of a later one; what is next goes well. */
static void a_call_of_the_relay_that_fails_is_the_copys(void **state)
{
	static const struct {
		const char *call;
		unsigned nth;
		const char *text;
	} faults[] = {
		{"cudaMalloc", 1, "is not pinned needs: cudaMalloc: out of memory"},
		{"cudaMemcpyAsync", 1, "cudaMemcpyAsync: out of memory"},
		{"cudaMemcpyAsync", 2, "cudaMemcpyAsync: out of memory"},
		{"cuLaunchKernel", 1, "cuLaunchKernel: out of memory"},
		{"cuLaunchKernel", 2, "cuLaunchKernel: out of memory"},
	};
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[9], w->device);
	struct ckpt_copy copy = {0};

	for (enum ckpt_copy_direction i = CKPT_COPY_TO_STAGING; i <= CKPT_COPY_FROM_STAGING; i++) {
		for (size_t k = i == CKPT_COPY_FROM_STAGING; k < COUNT(faults); k++) {
			fake->fail_call(faults[k].call, faults[k].nth, CKPT_CUDA_MEMORY_ALLOCATION);
			assert_int_equal(run(&copy, i, &s, 1), CKPT_EDEVICE);
			assert_true(fake->failed());
			if (!strstr(rig->err.message, faults[k].text))
				fail_msg("%s %u: %s", faults[k].call, faults[k].nth,
					rig->err.message);
			assert_cuda(rig->api.get_last_error());
		}
		assert_int_equal(run(&copy, i, &s, 1), 0);
	}
}

static void what_is_stopped_is_not_relayed_any_more(void **state)
{
	struct world *w = *state;
	struct ckpt_segment s = segment_of(&forms[9], w->device);
	atomic_bool stop = false;
	struct ckpt_copy copy = {.error = &rig->err, .stop = &stop};

	fake->block("cuLaunchKernel");
	cuda_rig_copy(rig, &copy, CKPT_COPY_FROM_STAGING, &s, 1);
	fake->await_blocked();
	atomic_store(&stop, true);
	fake->block(NULL);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, -ECANCELED);
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 1);
}

/* Before the first byte of a restore is moved. */
static void what_can_be_scattered_is_known_beforehand(void **state)
{
	static const int64_t shape[] = {3, 2};
	static const int64_t entangled[] = {2, 3};
	struct world *w = *state;
	struct ckpt_segment grid = segment_of(&forms[0], w->device);
	struct ckpt_segment between = {
		.view = {w->device, 4, 2, shape, entangled, 0}, .length = 24, .staged = w->staged};
	struct ckpt_segment flat = {
		.view = {w->device, 4, 2, shape, NULL, 0}, .length = 24, .staged = w->staged};

	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_takes(rig->device, &flat, &rig->err), 0);
	assert_int_equal(ckpt_device_takes(rig->device, &grid, &rig->err), 0);
	assert_int_equal(ckpt_device_takes(rig->device, &between, &rig->err), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(rig->err.message, "lie between one another"));
}

#define PROMISE(name)  cmocka_unit_test_setup_teardown(name, setup_open, teardown_open)
#define UNPINNED(name) cmocka_unit_test_setup_teardown(name, setup_unpinned, teardown)
#define UNOPENED(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(gathered_bytes_are_those_of_the_cpu),
		PROMISE(scattered_elements_are_those_of_the_cpu),
		PROMISE(boxes_of_an_array_in_staging_are_filled),
		PROMISE(nothing_is_moved_of_an_empty_box),
		UNPINNED(gathered_bytes_are_those_of_the_cpu),
		UNPINNED(scattered_elements_are_those_of_the_cpu),
		UNPINNED(boxes_of_an_array_in_staging_are_filled),
		UNPINNED(nothing_is_moved_of_an_empty_box),
		PROMISE(small_ones_go_along_with_the_others),
		PROMISE(a_large_one_goes_by_several_launches),
		PROMISE(what_was_changed_meanwhile_is_found),
		PROMISE(a_launch_that_fails_is_the_copys),
		PROMISE(a_gpu_that_is_lost_fails_it),
		UNOPENED(without_kernels_rows_are_what_can_be_copied),
		UNPINNED(staging_that_is_not_pinned_goes_by_the_relay),
		UNPINNED(a_large_one_goes_through_the_relay_in_pieces),
		UNPINNED(a_call_of_the_relay_that_fails_is_the_copys),
		UNPINNED(what_is_stopped_is_not_relayed_any_more),
		UNOPENED(what_can_be_scattered_is_known_beforehand),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
