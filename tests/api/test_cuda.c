/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs through the public interface, on a CUDA runtime without a GPU (tests/cuda): they come back, an error
 * of CUDA is the end of one save, and a process that ends calls nothing.
 */
#include "api/cuda_kit.h"
#include "api/left_open.h"

#include <sys/wait.h>
#include <unistd.h>

static void tensors_of_both_kinds_come_back(void **state)
{
	struct cuda_world *w = *state;

	for (uint64_t step = 1; step <= 3; step++) {
		for (size_t i = 0; i < COUNT(w->parts); i++)
			cuda_kit_fill(&w->parts[i], (unsigned)(step * 100 + i));
		must_work(cuda_kit_save(w, step));
		cuda_kit_check(w, step);
	}
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		char *was = w->parts[i].seen;
		w->parts[i].seen = calloc(1, (size_t)w->parts[i].bytes);
		cuda_kit_fill(&w->parts[i], 7);
		free(w->parts[i].seen);
		w->parts[i].seen = was;
	}
	must_work(cuda_kit_restore(w, 3));
	cuda_kit_check_back(w);
}

/* Every call that a save makes fails once: that save is told of it, or is good; the next one is. */
static void an_error_of_cuda_is_the_end_of_one_save(void **state)
{
	static const char *const functions[] = {"cudaMemcpyAsync", "cudaEventRecord",
		"cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamIsCapturing",
		"cudaEventCreateWithFlags", "cudaStreamSynchronize", "cuLaunchKernel"};
	struct cuda_world *w = *state;
	uint64_t step = 1;
	unsigned failures = 0;

	must_work(cuda_kit_save(w, step));
	for (size_t f = 0; f < COUNT(functions); f++) {
		for (unsigned nth = 1; nth < 40; nth++) {
			fake->fail_call(functions[f], nth, CKPT_CUDA_INVALID_VALUE);
			int r = cuda_kit_save(w, ++step);
			bool met = fake->failed();
			fake->fail_call(NULL, 0, 0);
			if (r < 0) {
				assert_true(met);
				assert_int_equal(r, CKPT_EDEVICE);
				assert_non_null(strstr(ckpt_last_error(), functions[f]));
				failures++;
			} else {
				cuda_kit_check(w, step);
			}
			must_work(cuda_kit_save(w, ++step));
			cuda_kit_check(w, step);
			if (!met)
				break;
		}
	}
	assert_true(failures >= 10);
	cuda_kit_check(w, 1);
}

/* What was saved before is there, and what is on the CPU can still be saved. */
static void a_gpu_that_is_lost_takes_nothing_along(void **state)
{
	struct cuda_world *w = *state;
	struct kit_vector v;

	must_work(cuda_kit_save(w, 1));
	fake->die(3, CKPT_CUDA_ILLEGAL_ADDRESS);
	assert_int_equal(cuda_kit_save(w, 2), CKPT_EDEVICE);
	assert_int_equal(cuda_kit_save(w, 3), CKPT_EDEVICE);
	assert_int_equal(cuda_kit_restore(w, 1), CKPT_EDEVICE);
	cuda_kit_check(w, 1);
	kit_fill(&v, "cpu", 1000, 5);
	must_work(kit_save(w->engine, 4, &v, 1));
	must_work(kit_compare(w->engine, 4, &v, 1));
	kit_clear(&v);
	fake->die(0, 0);
}

/* The deadline of a save is kept though the GPU never comes to its copies. */
static void a_gpu_that_hangs_fails_the_save_in_time(void **state)
{
	struct cuda_world *w = *state;
	struct ckpt_save_opts opts = {
		.size = sizeof(opts), .flags = CKPT_SAVE_FENCED, .timeout_ms = 200};
	const struct cuda_part *p = &w->parts[0];
	struct ckpt_stream stream = cuda_kit_stream(w);
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = p->name,
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &p->bytes,
		.data = p->data,
		.device = CKPT_DEVICE_CUDA};
	struct ckpt_save *save = NULL;

	must_work(cuda_kit_save(w, 1));
	fake->stop(FAKE_COPIES);
	must_work(ckpt_save_begin(w->engine, 2, &opts, &save));
	must_work(ckpt_save_add(save, &tensor, 1));
	must_work(ckpt_save_set_streams(save, &stream, 1));
	must_work(ckpt_save_start(save));
	/* Unless its deadline has come before. */
	int r = ckpt_save_fence(save, TIMEOUT_MS);
	assert_true(r == 0 || r == -ETIMEDOUT);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS), -ETIMEDOUT);
	ckpt_save_free(save);
	fake->stop(0);
	must_work(cuda_kit_save(w, 3));
	cuda_kit_check(w, 3);
}

/* Copies wait for each other then, and nobody looks for changes; but there is a save. */
static void memory_that_cannot_be_pinned_fails_no_save(void **state)
{
	struct cuda_world *w = *state;

	w->unpinned = true;
	fake->limit_pinned(0);
	must_work(cuda_kit_save(w, 1));
	must_work(cuda_kit_save(w, 2));
	assert_true(fake->notes(FAKE_UNPINNED) > 0);
	cuda_kit_check(w, 2);
	must_work(cuda_kit_restore(w, 2));
	cuda_kit_check_back(w);
}

static void a_gpu_that_is_not_there_is_said(void **state)
{
	struct cuda_world *w = *state;
	struct ckpt_save *save = NULL;
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "far",
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &w->parts[2].bytes,
		.data = w->parts[2].data,
		.device = CKPT_DEVICE_CUDA,
		.device_index = 40};

	must_work(ckpt_save_begin(w->engine, 1, NULL, &save));
	must_work(ckpt_save_add(save, &tensor, 1));
	assert_int_equal(ckpt_save_start(save), CKPT_EDEVICE);
	assert_non_null(strstr(ckpt_last_error(), "GPU 40 is not there"));
	ckpt_save_free(save);
	must_work(cuda_kit_save(w, 2));
	cuda_kit_check(w, 2);
}

/* It comes after the copies of a save: once that is durable it may still be to come, over what is restored. */
static void await_fill(const void *data, char byte)
{
	char seen;

	do
		fake->peek(data, &seen, 1);
	while (seen != byte);
}

/* Each GPU has its own default stream, whichever is current; both use the memory that one of them has pinned. */
static void tensors_on_two_gpus_go_into_one_save(void **state)
{
	struct cuda_world *w = *state;
	const struct cuda_part *here = &w->parts[0];
	int64_t bytes[6] = {CUDA_LARGE, 10, 20, 30, 40, 50};
	char names[6][16];
	char *there[6];
	char *seen = malloc(CUDA_LARGE);
	struct ckpt_stream streams[2] = {cuda_kit_stream(w), cuda_kit_stream(w)};
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_tensor tensors[7] = {{.size = sizeof(tensors[0]),
		.name = here->name,
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &here->bytes,
		.data = here->data,
		.device = CKPT_DEVICE_CUDA}};
	struct ckpt_save *save = NULL;
	struct ckpt_restore *restore = NULL;

	streams[1].device_index = 1;
	streams[1].handle = 0;
	assert_int_equal(cuda.set_device(1), 0);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(cuda.malloc((void **)&there[i], (size_t)bytes[i]), 0);
		memset(seen, 'a' + i, (size_t)bytes[i]);
		fake->poke(there[i], seen, (size_t)bytes[i]);
		(void)snprintf(names[i], sizeof(names[i]), "there.%d", i);
		tensors[i + 1] = tensors[0];
		tensors[i + 1].name = names[i];
		tensors[i + 1].shape = &bytes[i];
		tensors[i + 1].data = there[i];
		tensors[i + 1].device_index = 1;
	}
	assert_int_equal(cuda.set_device(0), 0);
	must_work(ckpt_save_begin(w->engine, 1, &opts, &save));
	must_work(ckpt_save_add(save, tensors, 7));
	must_work(ckpt_save_set_streams(save, streams, 2));
	fake->stop(FAKE_COPIES);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	assert_int_equal(cuda.set_device(1), 0);
	for (int i = 0; i < 6; i++)
		assert_int_equal(fake->fill(there[i], 'z', (size_t)bytes[i], NULL), 0);
	assert_int_equal(cuda.set_device(0), 0);
	fake->stop(0);
	must_work(cuda_kit_finish(save));
	await_fill(there[5], 'z');
	must_work(ckpt_restore_open(w->engine, 1, &restore));
	for (int i = 0; i < 6; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.device = CKPT_DEVICE_CUDA,
			.device_index = 1,
			.name = names[i],
			.data = there[i]};
		must_work(ckpt_restore_bind(restore, &target, 1));
	}
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
	for (int i = 0; i < 6; i++) {
		fake->peek(there[i], seen, (size_t)bytes[i]);
		for (int64_t k = 0; k < bytes[i]; k++)
			assert_int_equal(seen[k], 'a' + i);
		assert_int_equal(cuda.free(there[i]), 0);
	}
	free(seen);
}

static int ended = -1;

/* In a process of its own: an engine that is left open with its GPU, and a return from main(). */
static int end_with_it_open(void)
{
	void *state = NULL;

	cuda_kit_load();
	(void)cuda_kit_setup(&state);
	struct cuda_world *w = state;
	must_work(cuda_kit_save(w, 1));
	scratch_remove(w->dir);
	fake->end();
	left_open = true;
	return 0;
}

static struct ckpt_stats stats_of(struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	must_work(ckpt_engine_stats(engine, &stats));
	return stats;
}

/* One of so many ranks of a node that its staging begins with 64 MiB at most. */
static struct ckpt_engine *open_small(const char *dir, unsigned workers)
{
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;

	opts.pool_bytes = 0;
	opts.copy_threads = workers;
	for (opts.node_ranks = 1;; opts.node_ranks *= 2) {
		must_work(ckpt_engine_open(dir, &opts, &engine));
		if (stats_of(engine).pool_bytes <= 64 << 20)
			return engine;
		ckpt_engine_close(engine);
	}
}

/* Until the engine has said how large its staging is. False: other programs have too much of the machine's memory. */
static bool has_grown(struct ckpt_engine *engine)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_engine_log(engine, TIMEOUT_MS, &record) == 0) {
		if (strstr(record.message, "and holds this rank's shard"))
			return true;
		if (strstr(record.message, "A save waits for the disk"))
			return false;
	}
	fail_msg("nothing was said of staging");
	return false;
}

static struct ckpt_save *start_one(struct cuda_world *w, struct ckpt_engine *engine, uint64_t step,
	const struct cuda_part *part)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_stream stream = cuda_kit_stream(w);
	struct ckpt_save *save = NULL;
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = part->name,
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &part->bytes,
		.data = part->data,
		.device = part->gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST};

	if (!part->gpu)
		opts.flags = 0;
	must_work(ckpt_save_begin(engine, step, &opts, &save));
	must_work(ckpt_save_add(save, &tensor, 1));
	if (part->gpu)
		must_work(ckpt_save_set_streams(save, &stream, 1));
	must_work(ckpt_save_start(save));
	return save;
}

/*
 * Staging begins with less than the tensor, and grows behind the first save. What was added is pinned as well, and the
 * fence of the next save returns before the GPU has copied anything.
 */
static void staging_that_has_grown_holds_the_next_save(void **state)
{
	struct cuda_world *w = *state;
	char *dir = scratch_make_in_memory();
	struct ckpt_engine *engine = open_small(dir, 2);
	struct cuda_part part = {.name = "large",
		.bytes = (int64_t)stats_of(engine).pool_bytes + (8 << 20),
		.gpu = true};
	struct ckpt_target target = {
		.size = sizeof(target), .name = part.name, .device = CKPT_DEVICE_CUDA};
	struct ckpt_restore *restore = NULL;
	struct ckpt_save *save;

	part.seen = malloc((size_t)part.bytes);
	assert_int_equal(cuda.malloc((void **)&part.data, (size_t)part.bytes), 0);
	cuda_kit_fill(&part, 1);
	save = start_one(w, engine, 1, &part);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	if (!has_grown(engine)) {
		print_message("other programs have most of this machine's memory\n");
		ckpt_engine_close(engine);
		assert_int_equal(cuda.free(part.data), 0);
		free(part.seen);
		scratch_remove(dir);
		skip();
	}
	assert_true(stats_of(engine).pool_bytes > (uint64_t)part.bytes);
	assert_true(fake->live(FAKE_PINNED) >= 2);
	uint64_t starved = stats_of(engine).pool_starved;
	cuda_kit_fill(&part, 2);
	fake->stop(FAKE_COPIES);
	save = start_one(w, engine, 2, &part);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	fake->stop(0);
	must_work(cuda_kit_finish(save));
	assert_int_equal(stats_of(engine).pool_starved, starved);
	memset(part.seen, 0, (size_t)part.bytes);
	fake->poke(part.data, part.seen, (size_t)part.bytes);
	target.data = part.data;
	must_work(ckpt_restore_open(engine, 2, &restore));
	must_work(ckpt_restore_bind(restore, &target, 1));
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
	char *back = malloc((size_t)part.bytes);
	fake->peek(part.data, back, (size_t)part.bytes);
	cuda_kit_fill(&part, 2);
	assert_memory_equal(back, part.seen, (size_t)part.bytes);
	free(back);
	ckpt_engine_close(engine);
	assert_int_equal(cuda.free(part.data), 0);
	free(part.seen);
	scratch_remove(dir);
}

static bool is_too_small(struct ckpt_engine *engine)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_engine_log(engine, 0, &record) == 0)
		if (strstr(record.message, "A save waits for the disk"))
			return true;
	return false;
}

/* The one worker that there is does not wait for the driver, and copies what no GPU has. */
static void a_gpu_that_does_not_pin_holds_no_worker(void **state)
{
	struct cuda_world *w = *state;
	char *dir = scratch_make_in_memory();
	struct ckpt_engine *engine = open_small(dir, 1);
	struct cuda_part small = {.name = "small", .bytes = 4096, .gpu = true};
	struct cuda_part large = {
		.name = "large", .bytes = (int64_t)stats_of(engine).pool_bytes + (8 << 20)};
	bool little = false;

	w->second = engine;
	assert_int_equal(cuda.malloc((void **)&small.data, (size_t)small.bytes), 0);
	large.data = calloc(1, (size_t)large.bytes);
	struct ckpt_save *save = start_one(w, engine, 1, &small);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(cuda_kit_finish(save));
	uint64_t pinned = fake->calls("cudaHostRegister");
	fake->block("cudaHostRegister");
	save = start_one(w, engine, 2, &large);
	await(fake->calls("cudaHostRegister") > pinned || (little = is_too_small(engine)));
	must_work(cuda_kit_finish(save));
	must_work(cuda_kit_finish(start_one(w, engine, 3, &large)));
	/* What is being pinned is not used before it is. */
	assert_true(stats_of(engine).pool_bytes < (uint64_t)large.bytes);
	fake->block(NULL);
	ckpt_engine_close(engine);
	w->second = NULL;
	assert_int_equal(cuda.free(small.data), 0);
	free(large.data);
	scratch_remove(dir);
	if (little)
		skip();
}

static void a_process_that_ends_calls_nothing(void **state)
{
	(void)state;
	assert_int_equal(ended, 0);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, cuda_kit_setup, cuda_kit_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(tensors_of_both_kinds_come_back),
		PROMISE(an_error_of_cuda_is_the_end_of_one_save),
		PROMISE(a_gpu_that_is_lost_takes_nothing_along),
		PROMISE(a_gpu_that_hangs_fails_the_save_in_time),
		PROMISE(memory_that_cannot_be_pinned_fails_no_save),
		PROMISE(a_gpu_that_is_not_there_is_said),
		PROMISE(tensors_on_two_gpus_go_into_one_save),
		PROMISE(staging_that_has_grown_holds_the_next_save),
		PROMISE(a_gpu_that_does_not_pin_holds_no_worker),
		cmocka_unit_test(a_process_that_ends_calls_nothing),
	};
	pid_t child = fork();

	if (child == 0)
		return end_with_it_open();
	assert_int_equal(waitpid(child, &ended, 0), child);
	cuda_kit_load();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
