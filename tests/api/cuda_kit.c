/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cuda_kit.h"

#include <dlfcn.h>

const struct fake_cuda *fake;
struct cuda_calls cuda;

static struct cuda_world world;

static void take(void *library, const char *name, void *ret_function)
{
	void *function = dlsym(library, name);

	assert_non_null(function);
	memcpy(ret_function, (const void *)&function, sizeof(function));
}

void cuda_kit_load(void)
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

void cuda_kit_fill(struct cuda_part *part, unsigned seed)
{
	for (int64_t i = 0; i < part->bytes; i++)
		part->seen[i] = (char)((unsigned)i * 31 + seed + (unsigned)(i >> 9));
	if (part->gpu)
		fake->poke(part->data, part->seen, (size_t)part->bytes);
	else
		memcpy(part->data, part->seen, (size_t)part->bytes);
}

int cuda_kit_setup(void **state)
{
	static const struct cuda_part parts[] = {
		{.name = "gpu.large", .bytes = CUDA_LARGE, .gpu = true},
		{.name = "cpu.large", .bytes = CUDA_LARGE},
		{.name = "gpu.small", .bytes = CUDA_SMALL, .gpu = true},
		{.name = "cpu.small", .bytes = CUDA_SMALL},
		{.name = "gpu.one", .bytes = 1, .gpu = true},
		{.name = "gpu.other", .bytes = 5000, .gpu = true}};
	struct cuda_world *w = &world;

	fake->reset(11);
	memset(w, 0, sizeof(*w));
	w->dir = scratch_make();
	w->engine = kit_open(w->dir, 0);
	/* Nothing of CUDA before there is a tensor on a GPU. */
	assert_int_equal(fake->calls(NULL), 0);
	assert_int_equal(cuda.stream_create(&w->compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0), 0);
	for (size_t i = 0; i < COUNT(parts); i++) {
		struct cuda_part *p = &w->parts[i];
		*p = parts[i];
		p->seen = malloc((size_t)p->bytes);
		p->data = p->gpu ? NULL : malloc((size_t)p->bytes);
		if (p->gpu)
			assert_int_equal(cuda.malloc((void **)&p->data, (size_t)p->bytes), 0);
		cuda_kit_fill(p, (unsigned)i);
	}
	*state = w;
	return 0;
}

int cuda_kit_teardown(void **state)
{
	struct cuda_world *w = *state;

	/* A test that has failed may have left it blocked, or stopped. */
	fake->block(NULL);
	fake->stop(0);
	ckpt_engine_close(w->second);
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

struct ckpt_stream cuda_kit_stream(const struct cuda_world *w)
{
	return (struct ckpt_stream){.size = sizeof(struct ckpt_stream),
		.device = CKPT_DEVICE_CUDA,
		.handle = (uintptr_t)w->compute};
}

struct ckpt_save *cuda_kit_begin(
	struct cuda_world *w, uint64_t step, bool streams, const char *eager)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = CKPT_SAVE_FENCED};
	struct ckpt_stream stream = cuda_kit_stream(w);
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(w->engine, step, &opts, &save));
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		const struct cuda_part *p = &w->parts[i];
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

int cuda_kit_finish(struct ckpt_save *save)
{
	int r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);

	ckpt_save_free(save);
	return r;
}

int cuda_kit_save(struct cuda_world *w, uint64_t step)
{
	struct ckpt_save *save = cuda_kit_begin(w, step, true, NULL);

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

void cuda_kit_check(struct cuda_world *w, uint64_t step)
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

int cuda_kit_restore(struct cuda_world *w, uint64_t step)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_open(w->engine, step, &restore);

	for (size_t i = 0; i < COUNT(w->parts) && r == 0; i++) {
		const struct cuda_part *p = &w->parts[i];
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

void cuda_kit_check_back(const struct cuda_world *w)
{
	for (size_t i = 0; i < COUNT(w->parts); i++) {
		const struct cuda_part *p = &w->parts[i];
		char *now = calloc(1, (size_t)p->bytes);

		if (p->gpu)
			fake->peek(p->data, now, (size_t)p->bytes);
		else
			memcpy(now, p->data, (size_t)p->bytes);
		assert_memory_equal(now, p->seen, (size_t)p->bytes);
		free(now);
	}
}
