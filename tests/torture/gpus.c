/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/gpus.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda/fake_cuda.h"
#include "torture/errands.h"

#define CONTIGUOUS 1
#define PARTS      14

/*
 * Tensors of floats, on two GPUs: the deed's, small ones, so many that they go by one launch, and some whose elements do
 * not lie together. The last is what a trial that is `boxed` has saved of the CPU.
 */
static const struct part {
	const char *name;
	int32_t gpu;
	bool eager;
	uint32_t ndim;
	int64_t shape[2];
	int64_t strides[2]; /* CONTIGUOUS of the first dimension of one */
} parts[PARTS] = {
	{"layers.0.weight", 0, false, 1, {40000}, {CONTIGUOUS}},
	{"layers.0.bias", 0, true, 1, {100}, {CONTIGUOUS}},
	{"head", 0, false, 1, {9000}, {2}},
	{"turned", 0, false, 2, {300, 64}, {1, 300}},
	{"there", 1, false, 1, {5000}, {CONTIGUOUS}},
	{"there.turned", 1, false, 2, {20, 30}, {1, 20}},
	{"small.0", 0, false, 1, {40}, {CONTIGUOUS}},
	{"small.1", 0, false, 1, {3}, {CONTIGUOUS}},
	{"small.2", 0, false, 1, {70}, {3}},
	{"small.3", 0, false, 2, {7, 9}, {1, 7}},
	{"small.4", 0, false, 2, {5, 8}, {20, 1}},
	{"small.5", 0, true, 1, {1}, {CONTIGUOUS}},
	{"small.6", 0, true, 2, {6, 11}, {1, 6}},
	{"plain", 0, false, 2, {60, 50}, {1, 60}},
};

/* Every float that a part's elements lie among. */
#define ROOM 40000

static const struct fake_cuda *fake;
static struct CUstream_st *compute;
static float *there[PARTS];
static char machine[600];

static int (*cuda_malloc)(void **device, size_t size);
static int (*cuda_set_device)(int device);
static int (*stream_create)(struct CUstream_st **stream, unsigned flags, int priority);
static int (*stream_destroy)(struct CUstream_st *stream);

static void take(void *library, const char *name, void *ret_function)
{
	void *function = dlsym(library, name);

	if (!function)
		workload_die("no %s()", name);
	memcpy(ret_function, (const void *)&function, sizeof(function));
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	if (!f || fputs(text, f) < 0 || fclose(f) != 0)
		workload_die("%s cannot be written", path);
}

void gpus_make_machine(const char *root)
{
	static const char *const paths[] = {"", "/sys", "/sys/bus", "/sys/bus/pci",
		"/sys/bus/pci/devices", "/sys/bus/pci/devices/0000:3b:00.0",
		"/sys/bus/pci/devices/0000:af:00.0", "/sys/devices", "/sys/devices/system",
		"/sys/devices/system/node"};
	static const char *const files[] = {"/sys/bus/pci/devices/0000:3b:00.0/numa_node",
		"/sys/bus/pci/devices/0000:af:00.0/numa_node",
		"/sys/devices/system/node/has_memory"};
	static const char *const texts[] = {"0\n", "1\n", "0-1\n"};
	char path[700];

	(void)snprintf(machine, sizeof(machine), "%s/machine", root);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		(void)snprintf(path, sizeof(path), "%s%s", machine, paths[i]);
		if (mkdir(path, 0755) < 0)
			workload_die("%s cannot be made", path);
	}
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		(void)snprintf(path, sizeof(path), "%s%s", machine, files[i]);
		write_file(path, texts[i]);
	}
}

const char *gpus_machine(void)
{
	return machine;
}

/* As a program that uses CUDA would come to it, before it comes to the library. */
static void begin(void)
{
	void *library = dlopen(FAKE_CUDART_12, RTLD_NOW | RTLD_LOCAL);
	const struct fake_cuda *(*control)(void);

	if (!library)
		workload_die("%s", dlerror());
	take(library, "fake_cuda_control", &control);
	take(library, "cudaMalloc", &cuda_malloc);
	take(library, "cudaSetDevice", &cuda_set_device);
	take(library, "cudaStreamCreateWithPriority", &stream_create);
	take(library, "cudaStreamDestroy", &stream_destroy);
	fake = control();
	fake->reset(5);
	if (stream_create(&compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0) != 0)
		workload_die("no stream");
	for (unsigned i = 0; i < PARTS; i++) {
		(void)cuda_set_device(parts[i].gpu);
		if (cuda_malloc((void **)&there[i], ROOM * sizeof(float)) != 0)
			workload_die("no memory of a GPU");
	}
	(void)cuda_set_device(0);
}

/* Whatever was made to fail, the library has left nothing on the GPUs. */
static void end(void)
{
	static const char *const names[FAKE_KINDS] = {
		"streams", "events", "pinned memory", "memory", "modules"};

	if (atomic_load(&torture->abandoned) || atomic_load(&torture->silent))
		return;
	(void)stream_destroy(compute);
	for (int i = 0; i < FAKE_KINDS; i++) {
		size_t own = i == FAKE_MEMORY ? PARTS : 0;

		if (fake->live((enum fake_kind)i) != own)
			torture_wrong("%zu left on the GPUs: %s",
				fake->live((enum fake_kind)i) - own, names[i]);
	}
	fake->reset(5);
}

static int64_t count_of(const struct part *p)
{
	return p->shape[0] * (p->ndim > 1 ? p->shape[1] : 1);
}

/* Where element number `i`, in the order of its rows, lies. */
static int64_t place_of(const struct part *p, int64_t i)
{
	if (p->ndim == 1)
		return i * p->strides[0];
	return i / p->shape[1] * p->strides[0] + i % p->shape[1] * p->strides[1];
}

/* The deed's own is what its seed decides; the last is as errands.c fills it. */
static float value_of(const struct workload *d, unsigned part, int64_t i)
{
	if (part < WORKLOAD_TENSORS)
		return d->live[part][i];
	return (float)i + (part + 1 < PARTS ? 7.0F * (float)part : 0.0F);
}

static void put(const struct workload *d)
{
	static float image[ROOM];

	for (unsigned i = 0; i < PARTS; i++) {
		memset(image, 0xab, sizeof(image));
		for (int64_t k = 0; k < count_of(&parts[i]); k++)
			image[place_of(&parts[i], k)] = value_of(d, i, k);
		fake->poke(there[i], image, sizeof(image));
	}
}

/* As it was before that it is restored. */
static void spoil(void)
{
	static float image[ROOM];

	memset(image, 0xee, sizeof(image));
	for (unsigned i = 0; i < PARTS; i++)
		fake->poke(there[i], image, sizeof(image));
}

static bool is_bound(unsigned part, bool all)
{
	return all ? part + 1 < PARTS : part < WORKLOAD_TENSORS || part + 1 == PARTS;
}

/* What lies on the GPUs is of this seed, and nothing between was written. */
static bool is_back(struct workload *d, unsigned seed, bool all)
{
	static float image[ROOM];
	bool same = true;

	workload_fill(d, seed);
	for (unsigned i = 0; i < PARTS; i++) {
		if (!is_bound(i, all))
			continue;
		fake->peek(there[i], image, sizeof(image));
		for (int64_t k = 0; k < count_of(&parts[i]); k++) {
			float *at = &image[place_of(&parts[i], k)];

			same &= *at == value_of(d, i, k);
			memset(at, 0xee, sizeof(*at));
		}
		for (size_t k = 0; k < sizeof(image); k++)
			same &= ((unsigned char *)image)[k] == 0xee;
	}
	return same;
}

static bool add(struct ckpt_save *save)
{
	for (unsigned i = 0; i + 1 < PARTS; i++) {
		const struct part *p = &parts[i];
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.flags = p->eager ? CKPT_TENSOR_EAGER : 0,
			.name = p->name,
			.dtype = CKPT_F32,
			.ndim = p->ndim,
			.shape = p->shape,
			.strides = p->strides,
			.data = there[i],
			.device = CKPT_DEVICE_CUDA,
			.device_index = p->gpu};

		if (CALL(ckpt_save_add(save, &tensor, 1)) < 0)
			return false;
	}
	return true;
}

/* The first GPU's own stream, and the other's default one. */
static bool add_streams(struct ckpt_save *save)
{
	const struct ckpt_stream streams[2] = {{.size = sizeof(streams[0]),
						       .device = CKPT_DEVICE_CUDA,
						       .handle = (uintptr_t)compute},
		{.size = sizeof(streams[0]), .device = CKPT_DEVICE_CUDA, .device_index = 1}};

	return CALL(ckpt_save_set_streams(save, streams, 2)) == 0;
}

static bool save(struct workload *d, unsigned step, unsigned seed, bool fenced)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = fenced ? CKPT_SAVE_FENCED : 0};
	struct ckpt_save *handle = NULL;

	workload_log(d, "try %u %u\n", step, seed);
	workload_fill(d, seed);
	put(d);
	if (CALL(ckpt_save_begin(d->engine, step, &opts, &handle)) < 0)
		return errand_outcome(false, "begin", step);
	if (!add(handle) || (fenced && !add_streams(handle)) || CALL(ckpt_save_start(handle)) < 0) {
		DO(ckpt_save_free(handle));
		return errand_outcome(false, "start", step);
	}
	if (fenced) {
		int r = CALL(ckpt_save_wait_eager(handle, TORTURE_WAIT_MS));
		if (r == 0)
			r = CALL(ckpt_save_fence(handle, TORTURE_WAIT_MS));
		if (r == CKPT_ETORN)
			torture_wrong("nobody has changed a tensor");
		if (r < 0)
			DO(ckpt_save_cancel(handle));
	}
	return errand_outcome(errand_finish(d, handle, step, seed), "save", step);
}

static bool bind(struct ckpt_restore *handle, bool all)
{
	for (unsigned i = 0; i < PARTS; i++) {
		const struct part *p = &parts[i];
		struct ckpt_target target = {.size = sizeof(target),
			.name = p->name,
			.dtype = CKPT_F32,
			.ndim = p->ndim,
			.shape = p->shape,
			.strides = p->strides,
			.data = there[i],
			.device = CKPT_DEVICE_CUDA,
			.device_index = p->gpu};

		if (is_bound(i, all) && CALL(ckpt_restore_bind(handle, &target, 1)) < 0)
			return false;
	}
	return true;
}

/* The latest, which is `step` with its own number for a seed, `all` of it having been on GPUs. */
static bool resume(struct workload *d, unsigned step, unsigned seed, bool all)
{
	struct ckpt_restore *handle = NULL;
	int r = CALL(ckpt_restore_open(d->engine, CKPT_STEP_LATEST, &handle));

	if (r < 0)
		return errand_outcome(false, "restore", step);
	spoil();
	if (!bind(handle, all) || CALL(ckpt_restore_start(handle)) < 0)
		r = -1;
	else
		r = errand_wait(handle);
	if (errand_endless(r) || r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE)
		torture_wrong("restoring step %u: %d: %s", step, r, ckpt_last_error());
	if (r == 0 && ckpt_restore_step(handle) != step)
		torture_wrong(
			"restored step %u, not %u", (unsigned)ckpt_restore_step(handle), step);
	if (r == 0 && !is_back(d, seed, all))
		torture_wrong("step %u is not what was saved", step);
	if (r == 0 && !all)
		r = CALL(ckpt_restore_adopt(handle));
	DO(ckpt_restore_free(handle));
	return errand_outcome(r == 0, "restore", step);
}

void trial_gpus(struct workload *d)
{
	begin();
	if (errand_open(d, 0)) {
		(void)save(d, 1, 101, true);
		if (save(d, 2, 102, false))
			(void)resume(d, 2, 102, true);
		errand_close(d);
	}
	end();
}

void trial_gpus_resume(struct workload *d)
{
	begin();
	if (errand_open(d, 0)) {
		if (resume(d, 3, 3, false))
			(void)save(d, 4, 104, true);
		errand_close(d);
	}
	end();
}
