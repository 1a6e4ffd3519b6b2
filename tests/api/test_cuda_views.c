/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a GPU whose elements do not lie together, saved and restored through the public interface on a CUDA runtime
 * without a GPU: what arrives in them, and between them, is what arrives in memory of the CPU that lies alike. Whether
 * the memory that it comes through is pinned makes no difference: that of chunks larger than a block is not.
 */
#include "api/cuda_kit.h"

#define DIMS 4
/* Of the memory that a tensor is in. */
#define SIZE ((size_t)6 << 20)

/* How a tensor lies, or the box of it that is wanted. */
struct form {
	const char *name;
	uint32_t dtype;
	uint32_t ndim;
	int64_t shape[DIMS];
	int64_t strides[DIMS];
	int64_t whole[DIMS]; /* of the tensor that it is a box of; 0: it is all of it */
	int64_t start[DIMS];
};

/* Together more than a block of each kind of reader; several are larger than one chunk. */
static const struct form forms[] = {
	{"channels_last", CKPT_F32, 4, {256, 128, 3, 3}, {1152, 1, 384, 128}, {0}, {0}},
	{"channels_last.bf16", CKPT_BF16, 4, {30, 17, 3, 3}, {153, 1, 51, 17}, {0}, {0}},
	{"transposed", CKPT_F32, 2, {1200, 701}, {1, 1200}, {0}, {0}},
	{"transposed.u8", CKPT_U8, 2, {1031, 777}, {1, 1031}, {0}, {0}},
	{"permuted", CKPT_F64, 3, {40, 50, 60}, {60, 2400, 1}, {0}, {0}},
	{"rows", CKPT_F32, 2, {900, 500}, {700, 1}, {0}, {0}},
	{"every third", CKPT_F16, 1, {50000}, {3}, {0}, {0}},
	{"together", CKPT_F32, 2, {900, 700}, {700, 1}, {0}, {0}},
	{"box", CKPT_F32, 2, {600, 300}, {1, 600}, {1000, 900}, {200, 310}},
	{"box of columns", CKPT_F32, 2, {1000, 3}, {3, 1}, {1000, 900}, {0, 897}},
	{"box.channels_last", CKPT_F16, 4, {20, 16, 3, 3}, {144, 1, 48, 16}, {64, 64, 3, 3},
		{13, 40, 0, 0}},
	{"small", CKPT_F32, 2, {7, 9}, {1, 7}, {0}, {0}},
};

struct world {
	char *dir;
	struct ckpt_engine *engine;
	char *gpu[COUNT(forms)];
	char *cpu[COUNT(forms)];
	char *seen;
	bool adopts; /* what is restored to memory of the CPU: the engine is to save */
};

static struct world world;

static void open_with(struct world *w, uint32_t block_bytes)
{
	struct ckpt_engine_opts opts = kit_opts();

	ckpt_engine_close(w->engine);
	w->engine = NULL;
	opts.block_bytes = block_bytes;
	opts.pool_bytes = (uint64_t)8 * block_bytes;
	must_work(ckpt_engine_open(w->dir, &opts, &w->engine));
}

/* Step 1: of the CPU, as it is described. */
static void save_of_cpu(struct world *w)
{
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(w->engine, 1, NULL, &save));
	for (size_t i = 0; i < COUNT(forms); i++) {
		const struct form *f = &forms[i];
		const int64_t *shape = f->whole[0] ? f->whole : f->shape;
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = f->name,
			.dtype = f->dtype,
			.ndim = f->ndim,
			.shape = shape,
			.data = w->cpu[i]};

		for (size_t k = 0; k < SIZE; k++)
			w->cpu[i][k] = (char)(k * 31 + (k >> 8) * 7 + (k >> 17) + i);
		must_work(ckpt_save_add(save, &tensor, 1));
	}
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(save);
}

static int setup(void **state)
{
	struct world *w = &world;

	fake->reset(21);
	memset(w, 0, sizeof(*w));
	w->dir = scratch_make();
	w->seen = malloc(SIZE);
	for (size_t i = 0; i < COUNT(forms); i++) {
		w->cpu[i] = malloc(SIZE);
		assert_int_equal(cuda.malloc((void **)&w->gpu[i], SIZE), 0);
	}
	/* Chunks of 1 MiB. */
	open_with(w, 1 << 20);
	save_of_cpu(w);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_engine_close(w->engine);
	assert_int_equal(fake->live(FAKE_STREAMS), 0);
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
	assert_int_equal(fake->live(FAKE_PINNED), 0);
	for (size_t i = 0; i < COUNT(forms); i++) {
		assert_int_equal(cuda.free(w->gpu[i]), 0);
		free(w->cpu[i]);
	}
	/* No memory of the GPU is left with the engine either. */
	assert_int_equal(fake->live(FAKE_MEMORY), 0);
	free(w->seen);
	scratch_remove(w->dir);
	return 0;
}

/* Into memory of either that holds something else. */
static int restore(struct world *w, uint64_t step, bool gpu)
{
	struct ckpt_restore *handle = NULL;
	int r = ckpt_restore_open(w->engine, step, &handle);

	for (size_t i = 0; i < COUNT(forms) && r == 0; i++) {
		const struct form *f = &forms[i];
		struct ckpt_target target = {.size = sizeof(target),
			.device = gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST,
			.name = f->name,
			.data = gpu ? w->gpu[i] : w->cpu[i],
			.ndim = f->ndim,
			.shape = f->shape,
			.strides = f->strides,
			.start = step == 1 && f->whole[0] ? f->start : NULL};

		memset(w->cpu[i], 0xee, SIZE);
		if (gpu)
			fake->poke(w->gpu[i], w->cpu[i], SIZE);
		r = ckpt_restore_bind(handle, &target, 1);
	}
	if (r == 0)
		r = ckpt_restore_start(handle);
	if (r == 0)
		r = ckpt_restore_wait(handle, TIMEOUT_MS);
	if (r == 0 && w->adopts && !gpu)
		r = ckpt_restore_adopt(handle);
	ckpt_restore_free(handle);
	return r;
}

static void assert_alike(struct world *w, uint64_t step)
{
	must_work(restore(w, step, true));
	must_work(restore(w, step, false));
	for (size_t i = 0; i < COUNT(forms); i++) {
		fake->peek(w->gpu[i], w->seen, SIZE);
		if (memcmp(w->seen, w->cpu[i], SIZE) != 0)
			fail_msg("%s of step %llu: other bytes than on the CPU", forms[i].name,
				(unsigned long long)step);
	}
}

/* What lies on the GPU, as it lies there. */
static int save_of_gpu(struct world *w, uint64_t step)
{
	struct ckpt_save *save = NULL;
	int r;

	must_work(ckpt_save_begin(w->engine, step, NULL, &save));
	for (size_t i = 0; i < COUNT(forms); i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = forms[i].name,
			.dtype = forms[i].dtype,
			.ndim = forms[i].ndim,
			.shape = forms[i].shape,
			.strides = forms[i].strides,
			.data = w->gpu[i],
			.device = CKPT_DEVICE_CUDA};
		must_work(ckpt_save_add(save, &tensor, 1));
	}
	must_work(ckpt_save_start(save));
	r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);
	ckpt_save_free(save);
	return r;
}

/* Step 1 comes back, and what is saved of that is what lies there. */
static void check_both_ways(struct world *w, uint64_t step)
{
	struct ckpt_restore *handle = NULL;

	assert_alike(w, 1);
	must_work(save_of_gpu(w, step));
	must_work(ckpt_restore_open(w->engine, step, &handle));
	for (size_t i = 0; i < COUNT(forms); i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = forms[i].name,
			.ndim = forms[i].ndim,
			.shape = forms[i].shape,
			.strides = forms[i].strides,
			.data = w->cpu[i]};

		memset(w->cpu[i], 0xee, SIZE);
		must_work(ckpt_restore_bind(handle, &target, 1));
	}
	must_work(ckpt_restore_start(handle));
	must_work(ckpt_restore_wait(handle, TIMEOUT_MS));
	ckpt_restore_free(handle);
	for (size_t i = 0; i < COUNT(forms); i++) {
		fake->peek(w->gpu[i], w->seen, SIZE);
		assert_memory_equal(w->seen, w->cpu[i], SIZE);
	}
}

static void they_come_back_where_they_lay(void **state)
{
	struct world *w = *state;

	check_both_ways(w, 2);
	assert_int_equal(fake->notes(FAKE_UNPINNED), 0);
	assert_int_equal(fake->live(FAKE_MEMORY), COUNT(forms));
}

/* They are read into memory of the fetch's own. */
static void chunks_may_be_larger_than_the_readers_blocks(void **state)
{
	struct world *w = *state;

	open_with(w, 256 << 10);
	assert_alike(w, 1);
	assert_true(fake->notes(FAKE_UNPINNED) > 0);
	/* By way of the GPU's. */
	assert_int_equal(fake->live(FAKE_MEMORY), COUNT(forms) + 1);
	open_with(w, 64 << 10);
	assert_alike(w, 1);
}

static void memory_that_cannot_be_pinned_is_no_hindrance(void **state)
{
	struct world *w = *state;

	fake->limit_pinned(0);
	open_with(w, 1 << 20);
	w->adopts = true;
	check_both_ways(w, 2);
	w->adopts = false;
	assert_true(fake->notes(FAKE_UNPINNED) > 0);
	/* Neither of them. */
	open_with(w, 256 << 10);
	assert_alike(w, 2);
}

/* A GPU that has no memory left for it, or whose calls fail there: the restore says so, and the next one goes well. */
static void what_fails_on_the_way_fails_that_restore(void **state)
{
	static const struct {
		const char *call;
		unsigned nth;
	} faults[] = {{"cudaMalloc", 1}, {"cudaMemcpyAsync", 1}, {"cudaMemcpyAsync", 5},
		{"cuLaunchKernel", 1}, {"cuLaunchKernel", 4}, {"cudaEventRecord", 2}};
	struct world *w = *state;

	open_with(w, 256 << 10);
	for (size_t i = 0; i < COUNT(faults); i++) {
		fake->fail_call(faults[i].call, faults[i].nth, CKPT_CUDA_MEMORY_ALLOCATION);
		assert_int_equal(restore(w, 1, true), CKPT_EDEVICE);
		assert_true(fake->failed());
		assert_non_null(strstr(ckpt_last_error(), "out of memory"));
	}
	assert_alike(w, 1);
}

static void without_kernels_it_is_refused_before_a_byte_is_written(void **state)
{
	struct world *w = *state;

	open_with(w, 256 << 10);
	fake->fail_call("cuModuleLoadData", 1, 218);
	assert_int_equal(restore(w, 1, true), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(ckpt_last_error(), "tensor.contiguous()"));
	for (size_t i = 0; i < COUNT(forms); i++) {
		fake->peek(w->gpu[i], w->seen, SIZE);
		assert_memory_equal(w->seen, w->cpu[i], SIZE);
	}
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(they_come_back_where_they_lay),
		PROMISE(chunks_may_be_larger_than_the_readers_blocks),
		PROMISE(memory_that_cannot_be_pinned_is_no_hindrance),
		PROMISE(what_fails_on_the_way_fails_that_restore),
		PROMISE(without_kernels_it_is_refused_before_a_byte_is_written),
	};

	cuda_kit_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
