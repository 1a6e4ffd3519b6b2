/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/cuda_rig.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/cuda_load.h"
#include "lib/hang_inbox.h"

static struct cuda_rig rig;

static bool take(void *library, const char *name, void *ret_function)
{
	void *function = dlsym(library, name);

	memcpy(ret_function, (const void *)&function, sizeof(function));
	return function != NULL;
}

static bool take_extras(void *library)
{
	return take(library, "cudaLaunchHostFunc", &rig.extra.launch_host_func) &&
	       take(library, "cudaStreamBeginCapture", &rig.extra.begin_capture) &&
	       take(library, "cudaStreamEndCapture", &rig.extra.end_capture) &&
	       take(library, "cudaGraphDestroy", &rig.extra.graph_destroy);
}

static uint64_t now_ns(struct ckpt_env *env)
{
	(void)env;
	return rig.now_ns;
}

static void init(void)
{
	static const struct ckpt_env_ops clock = {.name = "test", .now_ns = now_ns};

	rig.env.ops = &clock;
	assert_int_equal(ckpt_inbox_init(&rig.inbox), 0);
	rig.env.inbox = &rig.inbox;
}

struct cuda_rig *cuda_rig_fake(void)
{
	const char *wanted = getenv("CKPT_TEST_CUDA");
	bool newer = wanted && strcmp(wanted, "13") == 0;
	const struct fake_cuda *(*control)(void);
	void *library;

	if (rig.fake)
		return &rig;
	init();
	/* As PyTorch loads it: by its path, and seen by nobody else. */
	library = dlopen(newer ? FAKE_CUDART_13 : FAKE_CUDART_12, RTLD_NOW | RTLD_LOCAL);
	assert_non_null(library);
	assert_int_equal(ckpt_cuda_load(NULL, newer ? 13 : 12, &rig.err, &rig.api), 0);
	assert_true(take(library, "fake_cuda_control", &control));
	assert_true(take_extras(library));
	rig.fake = control();
	return &rig;
}

struct cuda_rig *cuda_rig_real(void)
{
	static const char *const names[] = {"libcudart.so.12", "libcudart.so.13"};
	int version = 0;
	int count = 0;
	void *library;

	init();
	if (ckpt_cuda_load(NULL, 0, &rig.err, &rig.api) < 0)
		return NULL;
	assert_cuda(rig.api.runtime_get_version(&version));
	library = dlopen(names[version / 1000 == 13], RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
	/* The fake may be where the linker looks. */
	if (!library || dlsym(library, "fake_cuda_control") || !take_extras(library))
		return NULL;
	return rig.api.get_device_count(&count) == CKPT_CUDA_SUCCESS && count > 0 ? &rig : NULL;
}

void cuda_rig_open(struct cuda_rig *r)
{
	struct ckpt_error *err = &r->err;

	memset(err, 0, sizeof(*err));
	r->done = 0;
	assert_int_equal(ckpt_device_cuda_open_on(&r->env, 0, &r->api, err, &r->device), 0);
}

void cuda_rig_close(struct cuda_rig *r)
{
	ckpt_device_close(r->device);
	r->device = NULL;
	assert_int_equal(r->fake->live(FAKE_STREAMS), 0);
	assert_int_equal(r->fake->live(FAKE_EVENTS), 0);
	assert_int_equal(r->fake->live(FAKE_PINNED), 0);
	assert_int_equal(r->fake->live(FAKE_MODULES), 0);
}

static void count_done(struct ckpt_node *node)
{
	(void)node;
	rig.done++;
}

void cuda_rig_copy(struct cuda_rig *r, struct ckpt_copy *copy, enum ckpt_copy_direction direction,
	struct ckpt_segment *segments, size_t count)
{
	copy->direction = direction;
	copy->segments = segments;
	copy->count = count;
	copy->job.node.run = count_done;
	ckpt_device_copy(r->device, copy);
}

void cuda_rig_await(struct cuda_rig *r, unsigned done)
{
	await_inbox(&r->inbox, r->done >= done, inbox_run(&r->inbox));
	assert_int_equal(r->done, done);
}

char *cuda_rig_pages(size_t size)
{
	char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(pages != MAP_FAILED);
	return pages;
}

void cuda_rig_pages_free(char *pages, size_t size)
{
	assert_int_equal(munmap(pages, size), 0);
}

void *cuda_rig_device_memory(struct cuda_rig *r, size_t size)
{
	void *device = NULL;

	assert_cuda(r->api.malloc(&device, size));
	return device;
}

static void wait_at_gate(void *user)
{
	struct cuda_gate *gate = user;

	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->opened, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void cuda_gate_add(struct cuda_rig *r, struct cuda_gate *gate, struct CUstream_st *stream)
{
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->opened, NULL);
	gate->open = false;
	assert_cuda(r->extra.launch_host_func(stream, wait_at_gate, gate));
}

void cuda_gate_open(struct cuda_gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->opened);
	pthread_mutex_unlock(&gate->lock);
}
