/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_gpu.h"

#include <stdlib.h>
#include <ckpt/error.h>

#include "base/error.h"

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

/* A copy, or else a kernel. */
struct sim_gpu_work {
	struct sim_gpu_work *next;
	uint64_t after; /* so many of the other stream's come first */
	uint64_t ready_ns;
	struct ckpt_copy *copy;
	bool fails;
	struct sim_state *state;
	unsigned parts;
	uint64_t version;
};

static struct sim_gpu *gpu_of(struct ckpt_device *device)
{
	return CKPT_CONTAINER(device, struct sim_gpu, device);
}

static struct sim_gpu_work *give(
	struct sim_gpu *gpu, struct sim_gpu_work **queue, uint64_t after, uint64_t most_ns)
{
	struct sim *sim = gpu->env->sim;
	struct sim_gpu_work *work = sim_alloc(sizeof(*work));
	bool slow = sim_fault(sim, SIM_JOB_SLOW);

	while (*queue)
		queue = &(*queue)->next;
	*queue = work;
	work->after = after;
	work->ready_ns = sim->now_ns + (slow ? sim_between(sim, MILLISECOND, 40 * MILLISECOND)
					     : sim_below(sim, most_ns));
	return work;
}

static void gpu_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	struct sim_gpu *gpu = gpu_of(device);
	struct sim *sim = gpu->env->sim;

	/* What it is given is in its queue. */
	if (copy->direction == CKPT_COPY_NOTHING) {
		ckpt_inbox_push(gpu->env->env.inbox, &copy->job.node);
		return;
	}
	struct sim_gpu_work *work = give(gpu, &gpu->copies, gpu->followed,
		sim_chance(sim, 3000) ? MILLISECOND : 50 * MICROSECOND);

	CKPT_ASSERT(copy->error);
	work->copy = copy;
	work->fails = sim_fault(sim, SIM_DEVICE_FAIL);
	gpu->copies_given++;
	if (copy->eager)
		gpu->eager = gpu->copies_given;
	if (!sim_fault(sim, SIM_GPU_STILL))
		return;
	gpu->still_ns = sim->now_ns + sim_between(sim, SECOND, 9 * SECOND);
	sim_tell(sim, gpu->env->owner, "GPU stops", "", (int64_t)(gpu->still_ns - sim->now_ns), 0,
		0);
}

static int refuses(struct sim_gpu *gpu, uintptr_t stream, struct ckpt_error *err)
{
	CKPT_ASSERT(stream == SIM_GPU_STREAM);
	if (!sim_fault(gpu->env->sim, SIM_DEVICE_FAIL))
		return 0;
	return ckpt_fail(err, CKPT_EDEVICE, "the simulated GPU refuses a wait");
}

static int gpu_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err)
{
	struct sim_gpu *gpu = gpu_of(device);
	int r = refuses(gpu, stream, err);

	if (r == 0)
		gpu->followed = gpu->kernels_given;
	return r;
}

static int gpu_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err)
{
	struct sim_gpu *gpu = gpu_of(device);
	int r = refuses(gpu, stream, err);

	(void)timeout_ms;
	if (r == 0)
		gpu->held = ckpt_max_u64(
			gpu->held, which == CKPT_HOLD_EAGER ? gpu->eager : gpu->copies_given);
	return r;
}

static void gpu_close(struct ckpt_device *device)
{
	(void)device;
}

static const struct ckpt_device_ops sim_gpu_ops = {
	.name = "sim-gpu",
	.copy = gpu_copy,
	.follow = gpu_follow,
	.hold = gpu_hold,
	.close = gpu_close,
};

void sim_gpu_init(struct sim_gpu *gpu, struct sim_env *env)
{
	*gpu = (struct sim_gpu){.device = {.ops = &sim_gpu_ops,
					.env = &env->env,
					.number = SIM_GPU_NUMBER,
					.samples = true},
		.env = env};
}

void sim_gpu_launch(struct sim_gpu *gpu, struct sim_state *state, unsigned parts, uint64_t version)
{
	struct sim_gpu_work *work = give(gpu, &gpu->kernels, gpu->held, 500 * MICROSECOND);

	work->state = state;
	work->parts = parts;
	work->version = version;
	gpu->kernels_given++;
}

bool sim_gpu_computed(const struct sim_gpu *gpu)
{
	return !gpu->kernels;
}

bool sim_gpu_copied(const struct sim_gpu *gpu)
{
	return !gpu->copies;
}

uint64_t sim_gpu_rests_ns(const struct sim_gpu *gpu)
{
	uint64_t now_ns = gpu->env->sim->now_ns;

	return gpu->still_ns > now_ns ? gpu->still_ns - now_ns : 0;
}

/* When the first of a stream can be done; UINT64_MAX: not before something of the other one is. */
static uint64_t due_ns(const struct sim_gpu *gpu, const struct sim_gpu_work *work, uint64_t others)
{
	if (!work || work->after > others)
		return UINT64_MAX;
	return ckpt_max_u64(work->ready_ns, gpu->still_ns);
}

static uint64_t copy_due_ns(const struct sim_gpu *gpu)
{
	return due_ns(gpu, gpu->copies, gpu->kernels_done);
}

static uint64_t kernel_due_ns(const struct sim_gpu *gpu)
{
	return due_ns(gpu, gpu->kernels, gpu->copies_done);
}

unsigned sim_gpu_ready(const struct sim_gpu *gpu)
{
	uint64_t now_ns = gpu->env->sim->now_ns;

	return (copy_due_ns(gpu) <= now_ns) + (kernel_due_ns(gpu) <= now_ns);
}

uint64_t sim_gpu_next(const struct sim_gpu *gpu)
{
	return ckpt_min_u64(copy_due_ns(gpu), kernel_due_ns(gpu));
}

/* Takes the samples, or compares them. */
static void look(struct ckpt_copy *copy)
{
	for (size_t i = 0; i < copy->count; i++) {
		struct ckpt_segment *segment = &copy->segments[i];

		if (segment->view.device != copy->device)
			continue;
		uint64_t sample = ckpt_segment_sample(segment, copy->seed, false);
		if (copy->direction == CKPT_COPY_SAMPLE)
			segment->sample = sample;
		else if (!segment->eager && sample != segment->sample && copy->torn < 0)
			copy->torn = (int64_t)i;
	}
}

static void do_copy(struct sim_gpu *gpu, struct ckpt_copy *copy, bool fails)
{
	sim_note(gpu->env->sim, gpu->env->owner, "GPU copy", "", copy->direction, copy->eager,
		fails);
	if (fails)
		copy->result = ckpt_fail(copy->error, CKPT_EDEVICE, "the simulated GPU fails");
	else if (copy->direction == CKPT_COPY_SAMPLE || copy->direction == CKPT_COPY_COMPARE)
		look(copy);
	else
		ckpt_host_copy_work(&copy->job);
	ckpt_inbox_push(gpu->env->env.inbox, &copy->job.node);
}

void sim_gpu_finish(struct sim_gpu *gpu, unsigned n)
{
	bool copies = n == 0 && copy_due_ns(gpu) <= gpu->env->sim->now_ns;
	struct sim_gpu_work **queue = copies ? &gpu->copies : &gpu->kernels;
	struct sim_gpu_work *work = *queue;

	CKPT_ASSERT(n < sim_gpu_ready(gpu) && work);
	*queue = work->next;
	if (copies) {
		gpu->copies_done++;
		do_copy(gpu, work->copy, work->fails);
	} else {
		gpu->kernels_done++;
		sim_note(gpu->env->sim, gpu->env->owner, "kernel", "", work->parts, 0, 0);
		sim_state_fill_parts(work->state, work->parts, work->version);
	}
	free(work);
}

static void forget(struct sim_gpu_work **queue)
{
	while (*queue) {
		struct sim_gpu_work *work = *queue;
		*queue = work->next;
		free(work);
	}
}

void sim_gpu_die(struct sim_gpu *gpu)
{
	forget(&gpu->copies);
	forget(&gpu->kernels);
}
