/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that hold the same on GPUs, on a CUDA runtime without a GPU (tests/cuda): what differs is found by the GPU
 * itself, what it is given after the start is no difference, and rank 1 has nothing to write there.
 */
#include "api/cuda_kit.h"

#define RANKS     2
#define OWN_GROUP 2
/* The first line of every 256 KiB is looked at. */
#define PLACE     ((262144 * 2) + 5)

struct ranks {
	struct cuda_world *world;
	struct ckpt_engine *engines[RANKS];
	struct ckpt_save *saves[RANKS];
	void *copies[RANKS];
	bool on_cpu;     /* rank 1 holds the same in memory of the CPU */
	bool streamless; /* nobody can be held back but the caller */
	char *bytes;     /* that they hold */
};

static void open_ranks(struct ranks *r, struct cuda_world *w)
{
	r->world = w;
	r->bytes = malloc(CUDA_LARGE);
	for (size_t i = 0; i < CUDA_LARGE; i++)
		r->bytes[i] = (char)(i * 7 + (i >> 8));
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		struct ckpt_engine_opts opts = kit_opts();

		opts.rank = rank;
		opts.world = RANKS;
		opts.session = "gpus";
		must_work(
			ckpt_engine_open(scratch_join(w->dir, "ranks"), &opts, &r->engines[rank]));
		assert_int_equal(cuda.malloc(&r->copies[rank], CUDA_LARGE), 0);
		fake->poke(r->copies[rank], r->bytes, CUDA_LARGE);
	}
}

static void close_ranks(struct ranks *r)
{
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		ckpt_engine_close(r->engines[rank]);
		assert_int_equal(cuda.free(r->copies[rank]), 0);
	}
	free(r->bytes);
}

/* Rank 0 writes the tensor of the GPU, rank 1 one of the CPU. */
static void start(struct ranks *r, uint32_t rank, uint64_t step)
{
	const int64_t size = CUDA_LARGE;
	const int64_t few = 8;
	struct ckpt_stream stream = cuda_kit_stream(r->world);
	struct ckpt_tensor gpu = {.size = sizeof(gpu),
		.name = "w",
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &size,
		.data = r->copies[rank],
		.device = CKPT_DEVICE_CUDA};
	struct ckpt_tensor cpu = {.size = sizeof(cpu),
		.name = "c",
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &few,
		.data = r->bytes};

	must_work(ckpt_save_begin(r->engines[rank], step, NULL, &r->saves[rank]));
	must_work(ckpt_save_add(r->saves[rank], rank == 0 ? &gpu : &cpu, 1));
	if (r->on_cpu && rank == 1) {
		gpu.device = CKPT_DEVICE_HOST;
		gpu.data = r->bytes;
	}
	must_work(ckpt_save_add_replicas(r->saves[rank], 1, &gpu, 1));
	must_work(ckpt_save_add_replicas(r->saves[rank], 1, &cpu, 1));
	must_work(ckpt_save_add_replicas(r->saves[rank], OWN_GROUP, &cpu, 1));
	must_work(ckpt_save_set_own(r->saves[rank], OWN_GROUP, CKPT_OWN_UNKNOWN));
	if (!r->streamless)
		must_work(ckpt_save_set_streams(r->saves[rank], &stream, 1));
	must_work(ckpt_save_start(r->saves[rank]));
	if (!r->streamless)
		must_work(ckpt_save_wait_eager(r->saves[rank], TIMEOUT_MS));
}

static int finish(struct ranks *r, const char *text)
{
	int result = 0;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		struct ckpt_error error = {.size = sizeof(error)};
		int code = kit_wait(r->saves[rank]);

		if (code < 0 && text) {
			(void)ckpt_save_error(r->saves[rank], &error);
			assert_non_null(strstr(error.message, text));
		}
		assert_true(rank == 0 || code == result);
		result = code;
		ckpt_save_free(r->saves[rank]);
	}
	return result;
}

static void save_both(struct ranks *r, uint64_t step)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		start(r, rank, step);
}

static void what_differs_on_gpus_is_found(void **state)
{
	struct ranks r = {0};

	open_ranks(&r, *state);
	/* At first lines are looked at that lie close together. */
	r.bytes[PLACE] ^= 1;
	fake->poke(r.copies[1], r.bytes, CUDA_LARGE);
	save_both(&r, 1);
	assert_int_equal(
		finish(&r, "rank 1 and rank 0 hold different bytes of 'w'"), CKPT_EREPLICA);
	fake->poke(r.copies[0], r.bytes, CUDA_LARGE);
	for (uint64_t step = 2; step <= 4; step++) {
		save_both(&r, step);
		assert_int_equal(finish(&r, NULL), 0);
	}
	/* And later, if most of it does. */
	for (size_t i = 0; i < CUDA_LARGE; i++)
		r.bytes[i]++;
	fake->poke(r.copies[0], r.bytes, CUDA_LARGE);
	save_both(&r, 5);
	assert_int_equal(finish(&r, "alike at step 4"), CKPT_EREPLICA);
	close_ranks(&r);
}

/* All that the rank writes has been. */
static void await_written(struct ckpt_save *save)
{
	struct ckpt_save_info info = {.size = sizeof(info)};

	for (int ms = 0; info.bytes == 0 || info.bytes_written < info.bytes; ms++) {
		assert_true(ms < TIMEOUT_MS);
		assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 1), -ETIMEDOUT);
		must_work(ckpt_save_info(save, &info));
	}
}

/* The stream is held back for what is looked at, also on the rank that copies nothing from its GPU. */
static void what_comes_after_the_start_is_no_difference(void **state)
{
	struct cuda_world *w = *state;
	struct ranks r = {0};

	open_ranks(&r, w);
	for (uint64_t step = 1; step <= 2; step++) {
		fake->stop(FAKE_KERNELS);
		save_both(&r, step);
		assert_int_equal(fake->fill(r.copies[1], 3, CUDA_LARGE, w->compute), 0);
		/* It waits for what its GPU has not looked at. */
		await_written(r.saves[1]);
		fake->stop(0);
		assert_int_equal(cuda.stream_synchronize(w->compute), 0);
		assert_int_equal(finish(&r, NULL), 0);
		fake->poke(r.copies[1], r.bytes, CUDA_LARGE);
	}
	close_ranks(&r);
}

/* Without a stream the caller waits until its GPU has looked, though it copies nothing from there. */
static void without_a_stream_staged_waits_for_the_look(void **state)
{
	struct ranks r = {.streamless = true};

	open_ranks(&r, *state);
	for (uint64_t step = 1; step <= 2; step++) {
		fake->stop(FAKE_KERNELS);
		save_both(&r, step);
		assert_int_equal(ckpt_save_wait(r.saves[1], CKPT_LEVEL_STAGED, 50), -ETIMEDOUT);
		fake->stop(0);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			must_work(ckpt_save_wait(r.saves[rank], CKPT_LEVEL_STAGED, TIMEOUT_MS));
		assert_int_equal(finish(&r, NULL), 0);
	}
	close_ranks(&r);
}

/* Equal bytes are no difference wherever they are, and what differs is found by samples. */
static void a_gpu_and_a_cpu_are_compared(void **state)
{
	struct ranks r = {.on_cpu = true};

	open_ranks(&r, *state);
	for (uint64_t step = 1; step <= 3; step++) {
		save_both(&r, step);
		assert_int_equal(finish(&r, NULL), 0);
	}
	r.bytes[0] ^= 1;
	save_both(&r, 4);
	assert_int_equal(finish(&r, "alike at step 3"), CKPT_EREPLICA);
	/* Not at first either. */
	save_both(&r, 5);
	assert_int_equal(finish(&r, "'w'"), CKPT_EREPLICA);
	close_ranks(&r);
}

/* What a program that reads no log is told. */
static void check_unchecked(struct ranks *r, uint64_t first, uint64_t second)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	must_work(ckpt_engine_stats(r->engines[0], &stats));
	assert_int_equal(stats.unchecked, first);
	must_work(ckpt_engine_stats(r->engines[1], &stats));
	assert_int_equal(stats.unchecked, second);
}

/* What both know of their own copies. */
static void check_own(const struct ranks *r, enum ckpt_own own)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(ckpt_engine_own(r->engines[rank], OWN_GROUP), own);
}

/* One without kernels, such as one whose driver is too old, never can. */
static void a_gpu_without_kernels_is_told(void **state)
{
	struct ranks r = {0};

	fake->fail_call("cuModuleLoadData", 1, 218);
	open_ranks(&r, *state);
	for (uint64_t step = 1; step <= 2; step++) {
		save_both(&r, step);
		assert_int_equal(finish(&r, NULL), 0);
		check_unchecked(&r, CKPT_UNCHECKED_GPU, 0);
		/* Each goes on to write its own copy: nobody knows whether they are alike. */
		check_own(&r, CKPT_OWN_UNKNOWN);
	}
	close_ranks(&r);
}

/* A GPU that cannot look costs the proof, and not the step. */
static void a_look_that_fails_is_no_failure_of_the_step(void **state)
{
	struct ranks r = {0};

	open_ranks(&r, *state);
	r.bytes[0] ^= 1;
	fake->poke(r.copies[1], r.bytes, CUDA_LARGE);
	start(&r, 0, 1);
	must_work(ckpt_save_wait(r.saves[0], CKPT_LEVEL_STAGED, TIMEOUT_MS));
	/* The table of the first launch cannot be pinned: that of rank 1's look. */
	fake->fail_call("cudaHostRegister", 2, CKPT_CUDA_MEMORY_ALLOCATION);
	start(&r, 1, 1);
	assert_int_equal(finish(&r, NULL), 0);
	fake->fail_call(NULL, 0, 0);
	check_unchecked(&r, 0, CKPT_UNCHECKED_MEMORY);
	/* Rank 0 has told of its own, and was compared with nobody. */
	check_own(&r, CKPT_OWN_UNKNOWN);
	for (uint64_t step = 2; step <= 3; step++) {
		save_both(&r, step);
		assert_int_equal(finish(&r, "'w'"), CKPT_EREPLICA);
	}
	close_ranks(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			what_differs_on_gpus_is_found, cuda_kit_setup, cuda_kit_teardown),
		cmocka_unit_test_setup_teardown(what_comes_after_the_start_is_no_difference,
			cuda_kit_setup, cuda_kit_teardown),
		cmocka_unit_test_setup_teardown(without_a_stream_staged_waits_for_the_look,
			cuda_kit_setup, cuda_kit_teardown),
		cmocka_unit_test_setup_teardown(
			a_gpu_and_a_cpu_are_compared, cuda_kit_setup, cuda_kit_teardown),
		cmocka_unit_test_setup_teardown(
			a_gpu_without_kernels_is_told, cuda_kit_setup, cuda_kit_teardown),
		cmocka_unit_test_setup_teardown(a_look_that_fails_is_no_failure_of_the_step,
			cuda_kit_setup, cuda_kit_teardown),
	};

	cuda_kit_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
