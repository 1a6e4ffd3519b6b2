/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs through the public interface, on a CUDA runtime without a GPU (tests/cuda): what is saved is what the
 * streams had computed by the save, the host waits for no copy, and an error of CUDA is the end of one save.
 */
#include "api/kit.h"
#include "api/left_open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/fake_cuda.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Of one tensor; a few blocks of 256 KiB. */
#define LARGE 700001
#define SMALL 33

static const struct fake_cuda *fake;
static struct {
	int (*malloc)(void **device, size_t size);
	int (*free)(void *device);
	int (*set_device)(int device);
	int (*stream_create)(struct CUstream_st **stream, unsigned flags, int priority);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*stream_synchronize)(struct CUstream_st *stream);
	int (*begin_capture)(struct CUstream_st *stream, int mode);
	int (*end_capture)(struct CUstream_st *stream, void **graph);
	int (*graph_destroy)(void *graph);
} cuda;

static void take(void *library, const char *name, void *ret_function)
{
	void *function = dlsym(library, name);

	assert_non_null(function);
	memcpy(ret_function, (const void *)&function, sizeof(function));
}

/* As PyTorch loads it. */
static void load_runtime(void)
{
	const struct fake_cuda *(*control)(void);
	const char *wanted = getenv("CKPT_TEST_CUDA");
	bool newer = wanted && strcmp(wanted, "13") == 0;
	void *library = dlopen(newer ? FAKE_CUDART_13 : FAKE_CUDART_12, RTLD_NOW | RTLD_LOCAL);

	assert_non_null(library);
	take(library, "fake_cuda_control", &control);
	fake = control();
	take(library, "cudaMalloc", &cuda.malloc);
	take(library, "cudaFree", &cuda.free);
	take(library, "cudaSetDevice", &cuda.set_device);
	take(library, "cudaStreamCreateWithPriority", &cuda.stream_create);
	take(library, "cudaStreamDestroy", &cuda.stream_destroy);
	take(library, "cudaStreamSynchronize", &cuda.stream_synchronize);
	take(library, "cudaStreamBeginCapture", &cuda.begin_capture);
	take(library, "cudaStreamEndCapture", &cuda.end_capture);
	take(library, "cudaGraphDestroy", &cuda.graph_destroy);
}

/* A state with tensors on the GPU and on the CPU, which share blocks. */
struct part {
	const char *name;
	int64_t bytes;
	bool gpu;
	char *data; /* where it is */
	char *seen; /* memory of the CPU, as large */
};

struct world {
	char *dir;
	struct ckpt_engine *engine;
	struct CUstream_st *compute;
	bool unpinned; /* no memory can be */
	struct part parts[6];
};

static struct world world;

static void fill(struct part *part, unsigned seed)
{
	for (int64_t i = 0; i < part->bytes; i++)
		part->seen[i] = (char)((unsigned)i * 31 + seed + (unsigned)(i >> 9));
	if (part->gpu)
		fake->poke(part->data, part->seen, (size_t)part->bytes);
	else
		memcpy(part->data, part->seen, (size_t)part->bytes);
}

static int setup(void **state)
{
	static const struct part parts[] = {{.name = "gpu.large", .bytes = LARGE, .gpu = true},
		{.name = "cpu.large", .bytes = LARGE},
		{.name = "gpu.small", .bytes = SMALL, .gpu = true},
		{.name = "cpu.small", .bytes = SMALL}, {.name = "gpu.one", .bytes = 1, .gpu = true},
		{.name = "gpu.other", .bytes = 5000, .gpu = true}};
	struct world *w = &world;

	fake->reset(11);
	memset(w, 0, sizeof(*w));
	w->dir = scratch_make();
	w->engine = kit_open(w->dir, 0);
	/* Nothing of CUDA before there is a tensor on a GPU. */
	assert_int_equal(fake->calls(NULL), 0);
	assert_int_equal(cuda.stream_create(&w->compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0), 0);
	for (size_t i = 0; i < COUNT(parts); i++) {
		struct part *p = &w->parts[i];
		*p = parts[i];
		p->seen = malloc((size_t)p->bytes);
		p->data = p->gpu ? NULL : malloc((size_t)p->bytes);
		if (p->gpu)
			assert_int_equal(cuda.malloc((void **)&p->data, (size_t)p->bytes), 0);
		fill(p, (unsigned)i);
	}
	*state = w;
	return 0;
}

/* Whatever has happened, nothing of the engine's is left in the runtime. */
static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_engine_close(w->engine);
	assert_int_equal(cuda.stream_destroy(w->compute), 0);
	assert_int_equal(fake->live(FAKE_STREAMS), 0);
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
	assert_int_equal(fake->live(FAKE_PINNED), 0);
	assert_true(w->unpinned || fake->notes(FAKE_UNPINNED) == 0);
	assert_int_equal(fake->notes(FAKE_UNRECORDED), 0);
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		free(w->parts[i].seen);
		if (w->parts[i].gpu)
			assert_int_equal(cuda.free(w->parts[i].data), 0);
		else
			free(w->parts[i].data);
	}
	scratch_remove(w->dir);
	return 0;
}

static struct ckpt_stream stream_of(const struct world *w)
{
	return (struct ckpt_stream){.size = sizeof(struct ckpt_stream),
		.device = CKPT_DEVICE_CUDA,
		.handle = (uintptr_t)w->compute};
}

/* Not started. `eager`: that tensor is. */
static struct ckpt_save *begin(struct world *w, uint64_t step, bool streams, const char *eager)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_stream stream = stream_of(w);
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(w->engine, step, &opts, &save));
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		const struct part *p = &w->parts[i];
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = p->name,
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &p->bytes,
			.data = p->data,
			.device = p->gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST,
			.flags = eager && strcmp(eager, p->name) == 0 ? CKPT_TENSOR_EAGER : 0};
		must_work(ckpt_save_add(save, &tensor, 1));
	}
	if (streams)
		must_work(ckpt_save_set_streams(save, &stream, 1));
	return save;
}

static int finish(struct ckpt_save *save)
{
	int r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);

	ckpt_save_free(save);
	return r;
}

/* Saves with the stream, from begin to end. */
static int save_all(struct world *w, uint64_t step)
{
	struct ckpt_save *save = begin(w, step, true, NULL);

	int r = ckpt_save_start(save);
	if (r == 0)
		r = ckpt_save_wait_eager(save, TIMEOUT_MS);
	if (r == 0)
		r = ckpt_save_fence(save, TIMEOUT_MS);
	if (r == 0)
		r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);
	ckpt_save_free(save);
	return r;
}

/* What the step holds, into memory of the CPU, is what `seen` is. */
static void assert_saved(struct world *w, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	char *back[COUNT(w->parts)];

	must_work(ckpt_restore_open(w->engine, step, &restore));
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		back[i] = calloc(1, (size_t)w->parts[i].bytes);
		struct ckpt_target target = {
			.size = sizeof(target), .name = w->parts[i].name, .data = back[i]};
		must_work(ckpt_restore_bind(restore, &target, 1));
	}
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		if (memcmp(back[i], w->parts[i].seen, (size_t)w->parts[i].bytes) != 0)
			fail_msg("%s is not what it was at step %llu", w->parts[i].name,
				(unsigned long long)step);
		free(back[i]);
	}
}

/* The step goes to where the tensors are, which hold something else by now. */
static int restore_all(struct world *w, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(w->engine, step, &restore);

	for (size_t i = 0; i < COUNT(w->parts) && r == 0; i++) {
		const struct part *p = &w->parts[i];
		struct ckpt_target target = {.size = sizeof(target),
			.device = p->gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST,
			.name = p->name,
			.data = p->data};
		r = ckpt_restore_bind(restore, &target, 1);
	}
	if (r == 0)
		r = ckpt_restore_start(restore);
	if (r == 0)
		r = ckpt_restore_wait(restore, TIMEOUT_MS);
	ckpt_restore_free(restore);
	return r;
}

static void assert_back(const struct world *w)
{
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		const struct part *p = &w->parts[i];
		char *now = calloc(1, (size_t)p->bytes);

		if (p->gpu)
			fake->peek(p->data, now, (size_t)p->bytes);
		else
			memcpy(now, p->data, (size_t)p->bytes);
		assert_memory_equal(now, p->seen, (size_t)p->bytes);
		free(now);
	}
}

static void tensors_of_both_kinds_come_back(void **state)
{
	struct world *w = *state;

	for (uint64_t step = 1; step <= 3; step++) {
		for (size_t i = 0; i < COUNT(w->parts); i++)
			fill(&w->parts[i], (unsigned)(step * 100 + i));
		must_work(save_all(w, step));
		assert_saved(w, step);
	}
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		char *was = w->parts[i].seen;
		w->parts[i].seen = calloc(1, (size_t)w->parts[i].bytes);
		fill(&w->parts[i], 7);
		free(w->parts[i].seen);
		w->parts[i].seen = was;
	}
	must_work(restore_all(w, 3));
	assert_back(w);
}

/* No copy of the GPU can be made, and yet all three calls return; the next step's kernels wait for the copies. */
static void the_host_is_ahead_of_the_gpu(void **state)
{
	struct world *w = *state;

	must_work(save_all(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = begin(w, 2, true, "gpu.small");
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
	must_work(finish(save));
	assert_saved(w, 2);
}

/* Nothing holds the kernels of the next step back: they overtake the copies, and that is found out. */
static void without_a_fence_the_save_is_torn(void **state)
{
	struct world *w = *state;
	struct part *large = &w->parts[0];
	struct ckpt_error error = {.size = sizeof(error)};

	must_work(save_all(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	assert_int_equal(cuda.stream_synchronize(w->compute), 0);
	fake->stop(0);
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS)), CKPT_ETORN);
	assert_int_equal(ckpt_save_error(save, &error), CKPT_ETORN);
	assert_string_equal(error.tensor, "gpu.large");
	ckpt_save_free(save);
	must_work(save_all(w, 3));
}

/* The copies are made, and then the tensor is changed before the fence: that might have been before them. */
static void a_change_between_the_copies_and_the_fence_is_torn(void **state)
{
	struct world *w = *state;
	struct part *large = &w->parts[0];

	must_work(save_all(w, 1));
	struct ckpt_save *save = begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	/* The host does not wait for what the GPU finds: it fails the save behind its back. */
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	assert_int_equal(finish(save), CKPT_ETORN);
	must_work(save_all(w, 3));
}

/* What the stream had been given before the save is what is saved, be it done or not. */
static void a_save_comes_after_what_the_stream_was_given(void **state)
{
	struct world *w = *state;
	struct part *large = &w->parts[0];

	must_work(save_all(w, 1));
	fake->stop(FAKE_KERNELS);
	assert_int_equal(fake->fill(large->data, 3, (size_t)large->bytes, w->compute), 0);
	struct ckpt_save *save = begin(w, 2, true, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	fake->stop(0);
	must_work(finish(save));
	memset(large->seen, 3, (size_t)large->bytes);
	assert_saved(w, 2);
}

/* The first byte of the tensor as it is on the GPU. */
static char small_of(const struct part *small)
{
	char now[SMALL];

	fake->peek(small->data, now, sizeof(now));
	return now[0];
}

/* The stream goes on behind the eager tensor while the others are still to be copied. */
static void eager_tensors_are_copied_first(void **state)
{
	enum { COPIES = 8 };
	struct world *w = *state;
	struct part *small = &w->parts[2];

	must_work(save_all(w, 1));
	fake->stop(FAKE_COPIES);
	struct ckpt_save *save = begin(w, 2, true, "gpu.small");
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
	must_work(finish(save));
	assert_saved(w, 2);
}

/* Nobody can be held but the caller. */
static void without_a_stream_the_fence_waits_for_the_copies(void **state)
{
	struct world *w = *state;
	struct ckpt_save *save;

	must_work(save_all(w, 1));
	fake->stop(FAKE_COPIES);
	save = begin(w, 2, false, "gpu.small");
	must_work(ckpt_save_start(save));
	assert_int_equal(ckpt_save_wait_eager(save, 10), -ETIMEDOUT);
	assert_int_equal(ckpt_save_fence(save, 10), -ETIMEDOUT);
	fake->stop(0);
	must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(finish(save));
	assert_saved(w, 2);
}

/* ... and for the look at them: nothing else keeps what comes behind the fence from being taken for a change before. */
static void without_a_stream_the_fence_waits_for_the_look(void **state)
{
	struct world *w = *state;
	struct part *large = &w->parts[0];

	must_work(save_all(w, 1));
	struct ckpt_save *save = begin(w, 2, false, NULL);
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	fake->stop(FAKE_KERNELS);
	assert_int_equal(ckpt_save_fence(save, 10), -ETIMEDOUT);
	fake->stop(0);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	assert_int_equal(fake->fill(large->data, 0x5a, (size_t)large->bytes, w->compute), 0);
	must_work(finish(save));
	assert_saved(w, 2);
}

/* A graph is captured on the stream: it is left alone, and the save is what fails. */
static void a_stream_that_is_captured_is_left_alone(void **state)
{
	struct world *w = *state;
	void *graph = NULL;

	must_work(save_all(w, 1));
	assert_int_equal(cuda.begin_capture(w->compute, CKPT_CUDA_MODE_GLOBAL), 0);
	assert_int_equal(save_all(w, 2), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(ckpt_last_error(), "captured into a CUDA graph"));
	/* It would be an error if anything had broken the capture. */
	assert_int_equal(cuda.end_capture(w->compute, &graph), 0);
	assert_int_equal(cuda.graph_destroy(graph), 0);
	must_work(save_all(w, 3));
	assert_saved(w, 3);
}

/* Every call that a save makes fails once: that save is told of it, or is good; the next one is. */
static void an_error_of_cuda_is_the_end_of_one_save(void **state)
{
	static const char *const functions[] = {"cudaMemcpyAsync", "cudaEventRecord",
		"cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamIsCapturing",
		"cudaEventCreateWithFlags", "cudaStreamSynchronize", "cuLaunchKernel"};
	struct world *w = *state;
	uint64_t step = 1;
	unsigned failures = 0;

	must_work(save_all(w, step));
	for (size_t f = 0; f < COUNT(functions); f++) {
		for (unsigned nth = 1; nth < 40; nth++) {
			fake->fail_call(functions[f], nth, CKPT_CUDA_INVALID_VALUE);
			int r = save_all(w, ++step);
			bool met = fake->failed();
			fake->fail_call(NULL, 0, 0);
			if (r < 0) {
				assert_true(met);
				assert_int_equal(r, CKPT_EDEVICE);
				assert_non_null(strstr(ckpt_last_error(), functions[f]));
				failures++;
			} else {
				assert_saved(w, step);
			}
			must_work(save_all(w, ++step));
			assert_saved(w, step);
			if (!met)
				break;
		}
	}
	assert_true(failures >= 10);
	assert_saved(w, 1);
}

/* What was saved before is there, and what is on the CPU can still be saved. */
static void a_gpu_that_is_lost_takes_nothing_along(void **state)
{
	struct world *w = *state;
	struct kit_vector v;

	must_work(save_all(w, 1));
	fake->die(3, CKPT_CUDA_ILLEGAL_ADDRESS);
	assert_int_equal(save_all(w, 2), CKPT_EDEVICE);
	assert_int_equal(save_all(w, 3), CKPT_EDEVICE);
	assert_int_equal(restore_all(w, 1), CKPT_EDEVICE);
	assert_saved(w, 1);
	kit_fill(&v, "cpu", 1000, 5);
	must_work(kit_save(w->engine, 4, &v, 1));
	must_work(kit_compare(w->engine, 4, &v, 1));
	kit_clear(&v);
	fake->die(0, 0);
}

/* The deadline of a save is kept though the GPU never comes to its copies. */
static void a_gpu_that_hangs_fails_the_save_in_time(void **state)
{
	struct world *w = *state;
	struct ckpt_save_opts opts = {
		.size = sizeof(opts), .flags = CKPT_SAVE_FENCED, .timeout_ms = 200};
	const struct part *p = &w->parts[0];
	struct ckpt_stream stream = stream_of(w);
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = p->name,
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &p->bytes,
		.data = p->data,
		.device = CKPT_DEVICE_CUDA};
	struct ckpt_save *save = NULL;

	must_work(save_all(w, 1));
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
	must_work(save_all(w, 3));
	assert_saved(w, 3);
}

/* Copies wait for each other then, and nobody looks for changes; but there is a save. */
static void memory_that_cannot_be_pinned_fails_no_save(void **state)
{
	struct world *w = *state;

	w->unpinned = true;
	fake->limit_pinned(0);
	must_work(save_all(w, 1));
	must_work(save_all(w, 2));
	assert_true(fake->notes(FAKE_UNPINNED) > 0);
	assert_saved(w, 2);
	must_work(restore_all(w, 2));
	assert_back(w);
}

static void a_gpu_that_is_not_there_is_said(void **state)
{
	struct world *w = *state;
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
	must_work(save_all(w, 2));
	assert_saved(w, 2);
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
	struct world *w = *state;
	const struct part *here = &w->parts[0];
	int64_t bytes[6] = {LARGE, 10, 20, 30, 40, 50};
	char names[6][16];
	char *there[6];
	char *seen = malloc(LARGE);
	struct ckpt_stream streams[2] = {stream_of(w), stream_of(w)};
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
	must_work(finish(save));
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

static struct ckpt_save *begin_large(struct world *w, struct large *large, uint64_t step)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_stream stream = stream_of(w);
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
	struct world *w = *state;
	char *dir = scratch_make_in_memory();
	struct large large = large_state(dir);

	struct ckpt_save *save = begin_large(w, &large, 1);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(finish(save));
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
		must_work(finish(save));
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
	struct world *w = *state;
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
	struct world *w = *state;
	struct ckpt_save *save = begin(w, 1, false, NULL);
	struct ckpt_stream streams[2] = {stream_of(w), stream_of(w)};

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
	must_work(finish(save));
	assert_saved(w, 1);
}

static int ended = -1;

/* In a process of its own: an engine that is left open with its GPU, and a return from main(). */
static int end_with_it_open(void)
{
	struct world *w = &world;

	load_runtime();
	(void)setup((void **)&w);
	must_work(save_all(w, 1));
	scratch_remove(w->dir);
	fake->end();
	left_open = true;
	return 0;
}

static void a_process_that_ends_calls_nothing(void **state)
{
	(void)state;
	assert_int_equal(ended, 0);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(tensors_of_both_kinds_come_back),
		PROMISE(the_host_is_ahead_of_the_gpu),
		PROMISE(without_a_fence_the_save_is_torn),
		PROMISE(a_change_between_the_copies_and_the_fence_is_torn),
		PROMISE(a_save_comes_after_what_the_stream_was_given),
		PROMISE(eager_tensors_are_copied_first),
		PROMISE(without_a_stream_the_fence_waits_for_the_copies),
		PROMISE(without_a_stream_the_fence_waits_for_the_look),
		PROMISE(a_stream_that_is_captured_is_left_alone),
		PROMISE(an_error_of_cuda_is_the_end_of_one_save),
		PROMISE(a_gpu_that_is_lost_takes_nothing_along),
		PROMISE(a_gpu_that_hangs_fails_the_save_in_time),
		PROMISE(memory_that_cannot_be_pinned_fails_no_save),
		PROMISE(a_gpu_that_is_not_there_is_said),
		PROMISE(tensors_on_two_gpus_go_into_one_save),
		PROMISE(a_large_save_waits_for_no_copy),
		PROMISE(tensors_may_go_when_the_failure_is_told),
		PROMISE(streams_that_cannot_be_are_refused),
		cmocka_unit_test(a_process_that_ends_calls_nothing),
	};
	pid_t child = fork();

	if (child == 0)
		return end_with_it_open();
	assert_int_equal(waitpid(child, &ended, 0), child);
	load_runtime();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
