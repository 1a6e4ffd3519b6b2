/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save and the streams of the program, on a CUDA runtime without a GPU (tests/cuda): what is saved is what they had
 * computed by the save, what comes behind its fence waits for its copies, and the host waits for none, be the driver's
 * queue full or a graph captured.
 */
#include "api/cuda_kit.h"

/* No copy of the GPU can be made, and yet all three calls return; the next step's kernels wait for the copies. */
static void the_host_is_ahead_of_the_gpu(void **state)
{
	struct cuda_world *w = *state;

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = cuda_kit_begin(w, 2, true, "gpu.small");
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	for (size_t i = 0; i < COUNT(w->parts); i++)
		if (w->parts[i].gpu)
			assert_int_equal(fake->fill(w->parts[i].data, 0x5a,
						 (size_t)w->parts[i].bytes, w->compute),
				0);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_STAGED, 0), -ETIMEDOUT);
	fake->stop(0);
	must_work(cuda_kit_finish(save));
	cuda_kit_check(w, 2);
}

/* Nothing holds the kernels of the next step back: they overtake the copies, and that is found out. */
static void without_a_fence_the_save_is_torn(void **state)
{
	struct cuda_world *w = *state;
	struct cuda_part *large = &w->parts[0];
	struct ckpt_error error = {.size = sizeof(error)};

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = cuda_kit_begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	assert_int_equal(cuda.stream_synchronize(w->compute), 0);
	fake->stop(0);
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS)), CKPT_ETORN);
	assert_int_equal(ckpt_save_error(save, &error), CKPT_ETORN);
	assert_string_equal(error.tensor, "gpu.large");
	ckpt_save_free(save);
	must_work(cuda_kit_save(w, 3));
}

/* The copies are made, and then the tensor is changed before the fence: that might have been before them. */
static void a_change_between_the_copies_and_the_fence_is_torn(void **state)
{
	struct cuda_world *w = *state;
	struct cuda_part *large = &w->parts[0];

	must_work(cuda_kit_save(w, 1));
	struct ckpt_save *save = cuda_kit_begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	/* The host does not wait for what the GPU finds: it fails the save behind its back. */
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	assert_int_equal(cuda_kit_finish(save), CKPT_ETORN);
	must_work(cuda_kit_save(w, 3));
}

/* What the stream had been given before the save is what is saved, be it done or not. */
static void a_save_comes_after_what_the_stream_was_given(void **state)
{
	struct cuda_world *w = *state;
	struct cuda_part *large = &w->parts[0];

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_KERNELS);
	assert_int_equal(fake->fill(large->data, 3, (size_t)large->bytes, w->compute), 0);
	struct ckpt_save *save = cuda_kit_begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	fake->stop(0);
	must_work(cuda_kit_finish(save));
	memset(large->seen, 3, (size_t)large->bytes);
	cuda_kit_check(w, 2);
}

/* The first byte of the tensor as it is on the GPU. */
static char small_of(const struct cuda_part *small)
{
	char now[CUDA_SMALL];

	fake->peek(small->data, now, sizeof(now));
	return now[0];
}

/* The stream goes on behind the eager tensor while the others are still to be copied. */
static void eager_tensors_are_copied_first(void **state)
{
	enum { COPIES = 8 };
	struct cuda_world *w = *state;
	struct cuda_part *small = &w->parts[2];

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = cuda_kit_begin(w, 2, true, "gpu.small");
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	assert_int_equal(fake->fill(small->data, 9, (size_t)small->bytes, w->compute), 0);
	/* One at a time, until the kernel has run: the rest of its block, if need be, and nothing else. */
	for (unsigned looks = 0; small_of(small) != 9; looks++) {
		assert_true(looks < 100 * COPIES);
		if (looks % 100 == 0)
			fake->allow(1);
		assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_STAGED, 20), -ETIMEDOUT);
	}
	assert_int_equal(cuda.stream_synchronize(w->compute), 0);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_STAGED, 0), -ETIMEDOUT);
	fake->stop(0);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	cuda_kit_check(w, 2);
}

/* Nobody can be held but the caller. */
static void without_a_stream_the_fence_waits_for_the_copies(void **state)
{
	struct cuda_world *w = *state;
	struct ckpt_save *save;

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_COPIES);
	save = cuda_kit_begin(w, 2, false, "gpu.small");
	must_work(ckpt_save_start(save));
	assert_int_equal(ckpt_save_wait_eager(save, 10), -ETIMEDOUT);
	assert_int_equal(ckpt_save_fence(save, 10), -ETIMEDOUT);
	fake->stop(0);
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	cuda_kit_check(w, 2);
}

/* ... and for the look at them: nothing else keeps what comes behind the fence from being taken for a change before. */
static void without_a_stream_the_fence_waits_for_the_look(void **state)
{
	struct cuda_world *w = *state;
	struct cuda_part *large = &w->parts[0];

	must_work(cuda_kit_save(w, 1));
	struct ckpt_save *save = cuda_kit_begin(w, 2, false, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	fake->stop(FAKE_KERNELS);
	assert_int_equal(ckpt_save_fence(save, 10), -ETIMEDOUT);
	fake->stop(0);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	must_work(cuda_kit_finish(save));
	cuda_kit_check(w, 2);
}

/* A graph is captured on the stream: it is left alone, and the save is what fails. */
static void a_stream_that_is_captured_is_left_alone(void **state)
{
	struct cuda_world *w = *state;
	void *graph = NULL;

	must_work(cuda_kit_save(w, 1));
	assert_int_equal(cuda.begin_capture(w->compute, CKPT_CUDA_MODE_GLOBAL), 0);
	assert_int_equal(cuda_kit_save(w, 2), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(ckpt_last_error(), "captured into a CUDA graph"));
	/* It would be an error if anything had broken the capture. */
	assert_int_equal(cuda.end_capture(w->compute, &graph), 0);
	assert_int_equal(cuda.graph_destroy(graph), 0);
	must_work(cuda_kit_save(w, 3));
	cuda_kit_check(w, 3);
}

/* As many blocks as 10 GB have, of tensors that are a few blocks and many. */
#define BLOCK_BYTES (64 << 10)
#define BLOCKS      1280

struct large {
	struct ckpt_engine *engine;
	int64_t bytes[5];
	char names[5][16];
	char *data[5];
	char *seen;
};

static struct large large_state(const char *dir)
{
	static const int64_t blocks[] = {700, 3, 400, 17, 160};
	struct ckpt_engine_opts opts = kit_opts();
	struct large large = {.seen = malloc((size_t)BLOCKS * BLOCK_BYTES)};

	opts.block_bytes = BLOCK_BYTES;
	opts.pool_bytes = (uint64_t)(BLOCKS + 40) * BLOCK_BYTES;
	must_work(ckpt_engine_open(dir, &opts, &large.engine));
	for (size_t i = 0; i < COUNT(large.data); i++) {
		large.bytes[i] = blocks[i] * BLOCK_BYTES;
		(void)snprintf(large.names[i], sizeof(large.names[i]), "large.%zu", i);
		assert_int_equal(cuda.malloc((void **)&large.data[i], (size_t)large.bytes[i]), 0);
		for (int64_t k = 0; k < large.bytes[i]; k++)
			large.seen[k] = (char)(k * 7 + (k >> 11) + (int64_t)i);
		fake->poke(large.data[i], large.seen, (size_t)large.bytes[i]);
	}
	return large;
}

static struct ckpt_save *begin_large(struct cuda_world *w, struct large *large, uint64_t step)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_stream stream = cuda_kit_stream(w);
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(large->engine, step, &opts, &save));
	for (size_t i = 0; i < COUNT(large->data); i++) {
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = large->names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &large->bytes[i],
			.data = large->data[i],
			.device = CKPT_DEVICE_CUDA};
		must_work(ckpt_save_add(save, &tensor, 1));
	}
	must_work(ckpt_save_set_streams(save, &stream, 1));
	must_work(ckpt_save_start(save));
	return save;
}

static void restore_large(struct large *large, uint64_t step)
{
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_restore_open(large->engine, step, &restore));
	for (size_t i = 0; i < COUNT(large->data); i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.device = CKPT_DEVICE_CUDA,
			.name = large->names[i],
			.data = large->data[i]};
		must_work(ckpt_restore_bind(restore, &target, 1));
	}
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
}

/*
 * The driver's queue has room for all of a large save: the fence returns though the GPU has not made a single copy. Also
 * when a restore has left the slots in any order.
 */
static void a_large_save_waits_for_no_copy(void **state)
{
	struct cuda_world *w = *state;
	char *dir = scratch_make_in_memory();
	struct large large = large_state(dir);

	struct ckpt_save *save = begin_large(w, &large, 1);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	restore_large(&large, 1);
	for (uint64_t step = 2; step <= 3; step++) {
		fake->limit_queue(512);
		fake->stop(FAKE_COPIES);
		save = begin_large(w, &large, step);
		must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
		must_work(ckpt_save_fence(save, TIMEOUT_MS));
		assert_int_equal(fake->notes(FAKE_FULL), 0);
		for (size_t i = 0; i < COUNT(large.data); i++)
			assert_int_equal(
				fake->fill(large.data[i], 0x5a, (size_t)large.bytes[i], w->compute),
				0);
		fake->stop(0);
		must_work(cuda_kit_finish(save));
		/* The kernels are behind the copies, and a restore follows no stream. */
		assert_int_equal(cuda.stream_synchronize(w->compute), 0);
		restore_large(&large, step);
	}
	for (size_t i = 0; i < COUNT(large.data); i++) {
		fake->peek(large.data[i], large.seen, (size_t)large.bytes[i]);
		for (int64_t k = 0; k < large.bytes[i]; k++)
			if (large.seen[k] != (char)(k * 7 + (k >> 11) + (int64_t)i))
				fail_msg("%s: byte %lld", large.names[i], (long long)k);
		assert_int_equal(cuda.free(large.data[i]), 0);
	}
	ckpt_engine_close(large.engine);
	free(large.seen);
	scratch_remove(dir);
}

/*
 * A save that fails while the driver's queue is full: when that is told nothing more of it is given to the GPU, and its
 * tensors may be freed. Until then a call that reads one stands in the driver.
 */
static void tensors_may_go_when_the_failure_is_told(void **state)
{
	struct cuda_world *w = *state;
	char *dir = scratch_make_in_memory();
	struct large large = large_state(dir);

	fake->block("cudaMemcpyAsync");
	struct ckpt_save *save = begin_large(w, &large, 1);
	fake->await_blocked();
	/* The samples are taken: from here on the queue moves for nothing but copies. */
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	assert_int_equal(cuda.stream_synchronize(w->compute), 0);
	fake->limit_queue(20);
	fake->stop(FAKE_COPIES);
	fake->block(NULL);
	await(fake->notes(FAKE_FULL) > 0);
	ckpt_save_cancel(save);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 20), -ETIMEDOUT);
	/* Room for the call and the event behind it; for more, never all, if the cancel is late. */
	unsigned limit = 30;
	do
		fake->limit_queue(limit);
	while (ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 100) == -ETIMEDOUT && (limit += 10) < BLOCKS);
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS)), -ECANCELED);
	uint64_t given = fake->calls("cudaMemcpyAsync");
	fake->stop(0);
	/* Waits for what it has been given, as NVIDIA's does; any other copy would end this process. */
	for (size_t i = 0; i < COUNT(large.data); i++)
		assert_int_equal(cuda.free(large.data[i]), 0);
	ckpt_save_free(save);
	ckpt_engine_close(large.engine);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), given);
	free(large.seen);
	scratch_remove(dir);
}

static void streams_that_cannot_be_are_refused(void **state)
{
	struct cuda_world *w = *state;
	struct ckpt_save *save = cuda_kit_begin(w, 1, false, NULL);
	struct ckpt_stream streams[2] = {cuda_kit_stream(w), cuda_kit_stream(w)};

	streams[1].device = CKPT_DEVICE_HOST;
	assert_int_equal(ckpt_save_set_streams(save, streams, 2), -EINVAL);
	streams[1].device = CKPT_DEVICE_CUDA;
	streams[1].device_index = 63;
	assert_int_equal(ckpt_save_set_streams(save, streams, 2), -EINVAL);
	streams[1].device_index = 0;
	streams[1].reserved = 1;
	assert_int_equal(ckpt_save_set_streams(save, streams, 2), -EINVAL);
	streams[1].reserved = 0;
	assert_int_equal(ckpt_save_set_streams(save, NULL, 1), -EINVAL);
	struct ckpt_stream *many = calloc(5000, sizeof(*many));
	for (size_t i = 0; i < 5000; i++)
		many[i] = streams[0];
	assert_int_equal(ckpt_save_set_streams(save, many, 5000), -E2BIG);
	free(many);
	/* Of a GPU that nothing of the save is on. */
	streams[1].device_index = 5;
	must_work(ckpt_save_set_streams(save, streams, 2));
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	cuda_kit_check(w, 1);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, cuda_kit_setup, cuda_kit_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(the_host_is_ahead_of_the_gpu),
		PROMISE(without_a_fence_the_save_is_torn),
		PROMISE(a_change_between_the_copies_and_the_fence_is_torn),
		PROMISE(a_save_comes_after_what_the_stream_was_given),
		PROMISE(eager_tensors_are_copied_first),
		PROMISE(without_a_stream_the_fence_waits_for_the_copies),
		PROMISE(without_a_stream_the_fence_waits_for_the_look),
		PROMISE(a_stream_that_is_captured_is_left_alone),
		PROMISE(a_large_save_waits_for_no_copy),
		PROMISE(tensors_may_go_when_the_failure_is_told),
		PROMISE(streams_that_cannot_be_are_refused),
	};

	cuda_kit_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
