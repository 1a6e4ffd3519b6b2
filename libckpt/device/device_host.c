/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in CPU memory: a copy is a job for a worker of the environment. */
#include "device/device.h"

#include <errno.h>

#include "base/alloc.h"

static void copy_segment(const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	if (segment->around)
		ckpt_view_scatter_box(&segment->view, segment->around, segment->offset,
			segment->length, segment->staged);
	else if (copy->direction == CKPT_COPY_TO_STAGING)
		ckpt_view_gather(&segment->view, segment->offset, segment->length, segment->staged);
	else
		ckpt_view_scatter(
			&segment->view, segment->offset, segment->length, segment->staged);
}

void ckpt_host_copy_work(struct ckpt_job *job)
{
	struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);

	copy->torn = -1;
	copy->result = 0;
	for (size_t i = 0; i < copy->count; i++) {
		const struct ckpt_segment *segment = &copy->segments[i];

		if (segment->view.device != copy->device)
			continue;
		copy_segment(copy, segment);
		if (copy->sampled && copy->torn < 0 &&
			ckpt_segment_sample(segment, copy->seed, true) != segment->sample)
			copy->torn = (int64_t)i;
	}
}

static void host_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	/* The CPU can read this memory, so the engine samples it itself. */
	CKPT_ASSERT(copy->direction == CKPT_COPY_TO_STAGING ||
		    copy->direction == CKPT_COPY_FROM_STAGING);
	copy->job.work = ckpt_host_copy_work;
	ckpt_env_run(device->env, &copy->job);
}

static void host_close(struct ckpt_device *device)
{
	ckpt_free(device);
}

static const struct ckpt_device_ops host_ops = {
	.name = "host",
	.copy = host_copy,
	.close = host_close,
};

int ckpt_device_host_open(struct ckpt_env *env, struct ckpt_device **ret_device)
{
	struct ckpt_device *device = ckpt_alloc(sizeof(*device));

	if (!device)
		return -ENOMEM;
	device->ops = &host_ops;
	device->env = env;
	*ret_device = device;
	return 0;
}
