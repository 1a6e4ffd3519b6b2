/* SPDX-License-Identifier: Apache-2.0 */
#include "device/devices.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/device_cuda.h"

int ckpt_devices_number(uint32_t kind, int32_t index)
{
	if (kind == CKPT_DEVICE_HOST)
		return 0;
	if (kind != CKPT_DEVICE_CUDA || index < 0 || index >= CKPT_GPUS_MAX)
		return -1;
	return index + 1;
}

int ckpt_devices_init(struct ckpt_devices *devices, const struct ckpt_devices_config *config)
{
	CKPT_ASSERT(config->host && config->host->number == 0);
	*devices = (struct ckpt_devices){.config = *config};
	int r = -pthread_mutex_init(&devices->lock, NULL);
	if (r < 0)
		return r;
	devices->at[0] = config->host;
	devices->open = 1;
	devices->first.base = config->staging;
	devices->first.bytes = config->staging_bytes;
	devices->last = &devices->first;
	return 0;
}

/* Unpins the parts before `end`; NULL: all. */
static void unpin_parts(
	struct ckpt_devices *devices, struct ckpt_device *gpu, const struct ckpt_devices_part *end)
{
	for (struct ckpt_devices_part *p = &devices->first; p != end; p = p->next)
		(void)ckpt_device_unpin(gpu, p->base, p->bytes);
}

void ckpt_devices_close(struct ckpt_devices *devices)
{
	if (!devices->at[0])
		return;
	ckpt_env_os_close(devices->worker);
	devices->worker = NULL;
	while (devices->gpus > 0) {
		struct ckpt_device *gpu = devices->at[devices->order[--devices->gpus]];

		if (devices->pinned >> gpu->number & 1)
			unpin_parts(devices, gpu, NULL);
		ckpt_device_close(gpu);
	}
	while (devices->first.next) {
		struct ckpt_devices_part *part = devices->first.next;

		devices->first.next = part->next;
		ckpt_free(part);
	}
	ckpt_device_close(devices->at[0]);
	devices->at[0] = NULL;
	(void)pthread_mutex_destroy(&devices->lock);
}

static int prefer_parts(struct ckpt_devices *devices, int node)
{
	int r = 0;

	for (struct ckpt_devices_part *p = &devices->first; p && r == 0; p = p->next)
		r = ckpt_numa_prefer(devices->config.numa, p->base, p->bytes, node);
	return r;
}

/*
 * Pinned pages cannot move, so this is done before the first GPU pins them, or never. Only the distance of copies
 * depends on it.
 */
static void place_staging(struct ckpt_devices *devices, const struct ckpt_device *gpu)
{
	const struct ckpt_devices_config *c = &devices->config;
	int node = ckpt_numa_node_of(c->numa, gpu->bus);
	int r;

	if (node < 0)
		return;
	if (devices->placed || devices->pinned) {
		if (devices->placed && devices->node >= 0 && devices->node != node)
			ckpt_log(c->log, CKPT_LOG_INFO,
				"staging is on NUMA node %d but GPU %u on node %d: its copies go "
				"from one to the other",
				devices->node, gpu->number - 1, node);
		return;
	}
	r = prefer_parts(devices, node);
	if (r < 0)
		ckpt_log(c->log, CKPT_LOG_INFO,
			"staging cannot be put on NUMA node %d, where GPU %u is (mbind: %s): "
			"copies may go from one node to another",
			node, gpu->number - 1, ckpt_code_text(r));
	devices->placed = true;
	devices->node = r < 0 ? -1 : node;
}

static int pin_parts(struct ckpt_devices *devices, struct ckpt_device *gpu, size_t *ret_bytes,
	struct ckpt_error *err)
{
	*ret_bytes = 0;
	for (struct ckpt_devices_part *p = &devices->first; p; p = p->next) {
		int r = ckpt_device_pin(gpu, p->base, p->bytes, err);

		if (r < 0) {
			unpin_parts(devices, gpu, p);
			return r;
		}
		*ret_bytes += p->bytes;
	}
	return 0;
}

/* If it fails, copies work, but are slower. */
static void pin_staging(struct ckpt_devices *devices, struct ckpt_device *gpu)
{
	const struct ckpt_devices_config *c = &devices->config;
	struct ckpt_error error = {.size = sizeof(error)};
	char node[32] = "";
	size_t bytes;

	if (!c->staging)
		return;
	place_staging(devices, gpu);
	uint64_t before_ns = ckpt_env_now(c->env);
	if (pin_parts(devices, gpu, &bytes, &error) < 0) {
		ckpt_log(c->log, CKPT_LOG_WARN,
			"the staging memory cannot be pinned (%s): copies from the GPU are slower, "
			"and the loop may wait for them",
			error.message);
		/* The kernels could not read their tables: a save without samples is better than none. */
		gpu->samples = false;
		return;
	}
	atomic_fetch_or(&devices->pinned, UINT64_C(1) << gpu->number);
	if (devices->placed && devices->node >= 0)
		(void)snprintf(node, sizeof(node), " on NUMA node %d", devices->node);
	ckpt_log(c->log, CKPT_LOG_INFO,
		"pinned %zu MiB of staging in %s%s for GPU %u, which took %.3f s", bytes >> 20,
		c->staging_huge ? "huge pages" : "pages of 4 KiB", node, gpu->number - 1,
		(double)(ckpt_env_now(c->env) - before_ns) / 1e9);
}

static int open_gpu(struct ckpt_devices *devices, uint32_t number, struct ckpt_error *err)
{
	struct ckpt_device *gpu;
	int r = ckpt_device_cuda_open(
		devices->config.env, (int)number - 1, devices->config.cuda_major, err, &gpu);

	if (r < 0)
		return r;
	gpu->number = number;
	devices->order[devices->gpus++] = number;
	devices->at[number] = gpu;
	if (gpu->no_samples)
		ckpt_log(devices->config.log, CKPT_LOG_WARN,
			"GPU %u cannot run the kernels of libckpt (%s): changes of its tensors "
			"during a save are not detected, and small ones are copied one by one",
			number - 1, gpu->no_samples);
	pin_staging(devices, gpu);
	atomic_fetch_or(&devices->open, UINT64_C(1) << number);
	return 0;
}

int ckpt_devices_need(struct ckpt_devices *devices, uint64_t mask, struct ckpt_error *err)
{
	int r = 0;

	/* The lock may be held for as long as it takes to open a GPU. */
	if ((mask & ~atomic_load(&devices->open)) == 0)
		return 0;
	(void)pthread_mutex_lock(&devices->lock);
	for (uint32_t i = 0; i < CKPT_DEVICES_MAX && r == 0; i++)
		if ((mask >> i & 1) && !devices->at[i])
			r = open_gpu(devices, i, err);
	(void)pthread_mutex_unlock(&devices->lock);
	return r;
}

int ckpt_devices_env(
	struct ckpt_devices *devices, struct ckpt_error *err, struct ckpt_env **ret_env)
{
	struct ckpt_env *env = devices->config.env;
	int r = 0;

	if (devices->config.staging && !devices->worker)
		r = ckpt_env_os_open(1, env->inbox, &devices->worker);
	if (r < 0)
		return ckpt_fail(
			err, r, "the thread that pins it cannot be started: %s", ckpt_code_text(r));
	if (devices->worker)
		ckpt_env_os_name(devices->worker, "ckpt-pin");
	*ret_env = devices->worker ? ckpt_env_os_env(devices->worker) : env;
	return 0;
}

void ckpt_devices_place(struct ckpt_devices *devices, void *base, size_t bytes)
{
	(void)pthread_mutex_lock(&devices->lock);
	/* A failure was reported when the rest was placed. */
	if (devices->placed && devices->node >= 0)
		(void)ckpt_numa_prefer(devices->config.numa, base, bytes, devices->node);
	(void)pthread_mutex_unlock(&devices->lock);
}

bool ckpt_devices_pinned(const struct ckpt_devices *devices)
{
	return atomic_load(&devices->pinned) != 0;
}

/* Unpins it for the first `count` opened GPUs, in reverse order. */
static void unpin_part(
	struct ckpt_devices *devices, const struct ckpt_devices_part *part, unsigned count)
{
	while (count-- > 0) {
		struct ckpt_device *gpu = devices->at[devices->order[count]];
		int r = 0;

		if (devices->pinned >> gpu->number & 1)
			r = ckpt_device_unpin(gpu, part->base, part->bytes);
		if (r < 0)
			ckpt_log(devices->config.log, CKPT_LOG_WARN,
				"%zu MiB of staging memory cannot be unpinned for GPU %u (%s): "
				"they stay in use until the engine is closed, and staging does "
				"not grow into their place again",
				part->bytes >> 20, gpu->number - 1, ckpt_code_text(r));
	}
}

/*
 * The next GPU that has pinned the rest, from *index on. NULL: there are no more, and the part is in the list, so that
 * GPUs opened later pin it with the rest. A GPU pins the rest when it is opened, or never.
 */
static struct ckpt_device *next_to_pin(
	struct ckpt_devices *devices, struct ckpt_devices_part *part, unsigned *index)
{
	struct ckpt_device *gpu = NULL;

	(void)pthread_mutex_lock(&devices->lock);
	while (*index < devices->gpus && !(devices->pinned >> devices->order[*index] & 1))
		++*index;
	if (*index < devices->gpus) {
		gpu = devices->at[devices->order[*index]];
	} else {
		devices->last->next = part;
		devices->last = part;
	}
	(void)pthread_mutex_unlock(&devices->lock);
	return gpu;
}

/* Pins it for all GPUs that have pinned the rest, or for none. Without the lock, because a driver may take long. */
static int pin_part(
	struct ckpt_devices *devices, struct ckpt_devices_part *part, struct ckpt_error *err)
{
	struct ckpt_device *gpu;

	for (unsigned i = 0; (gpu = next_to_pin(devices, part, &i)); i++) {
		int r = ckpt_device_pin(gpu, part->base, part->bytes, err);

		if (r < 0) {
			unpin_part(devices, part, i);
			return r;
		}
	}
	return 0;
}

/* While no GPU has pinned anything, adjacent parts are joined. */
static bool joins_last(struct ckpt_devices *devices, const char *base, size_t bytes)
{
	struct ckpt_devices_part *last = devices->last;
	bool joins;

	(void)pthread_mutex_lock(&devices->lock);
	joins = !devices->pinned && last != &devices->first && last->base + last->bytes == base;
	if (joins)
		last->bytes += bytes;
	(void)pthread_mutex_unlock(&devices->lock);
	return joins;
}

int ckpt_devices_add(struct ckpt_devices *devices, void *base, size_t bytes, struct ckpt_error *err)
{
	struct ckpt_devices_part *part;
	int r;

	/* Tests may have devices without staging: then nothing is pinned. */
	if (!devices->config.staging || joins_last(devices, base, bytes))
		return 0;
	part = ckpt_alloc(sizeof(*part));
	if (!part)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	*part = (struct ckpt_devices_part){.base = base, .bytes = bytes};
	r = pin_part(devices, part, err);
	if (r < 0)
		ckpt_free(part);
	return r;
}

size_t ckpt_devices_tail(struct ckpt_devices *devices)
{
	size_t bytes;

	(void)pthread_mutex_lock(&devices->lock);
	bytes = devices->pinned ? devices->last->bytes : 0;
	(void)pthread_mutex_unlock(&devices->lock);
	return bytes;
}

/* Removes the last part from the list. */
static struct ckpt_devices_part *take_last(struct ckpt_devices *devices)
{
	struct ckpt_devices_part *last = devices->last;
	struct ckpt_devices_part *before = &devices->first;

	while (before->next != last)
		before = before->next;
	before->next = NULL;
	devices->last = before;
	return last;
}

bool ckpt_devices_trim(struct ckpt_devices *devices, size_t bytes)
{
	struct ckpt_devices_part *part = NULL;
	unsigned gpus;
	bool whole;
	bool pinned;
	bool can;

	/* Tests may have devices without staging. */
	if (!devices->config.staging)
		return true;
	(void)pthread_mutex_lock(&devices->lock);
	gpus = devices->gpus;
	pinned = devices->pinned != 0;
	whole = bytes == devices->last->bytes;
	can = devices->last != &devices->first &&
	      (whole || (!pinned && bytes < devices->last->bytes));
	if (can && whole)
		part = take_last(devices);
	else if (can)
		devices->last->bytes -= bytes;
	(void)pthread_mutex_unlock(&devices->lock);
	/* Without the lock, because a driver may take long. A GPU opened from now on does not know the part. */
	if (part && pinned)
		unpin_part(devices, part, gpus);
	ckpt_free(part);
	return can;
}

struct ckpt_device *ckpt_devices_get(const struct ckpt_devices *devices, uint32_t number)
{
	CKPT_ASSERT(number < CKPT_DEVICES_MAX && devices->at[number]);
	return devices->at[number];
}
