/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/copy_batch.h"

#include <errno.h>

#include "base/alloc.h"

#define HOST UINT64_C(1)

uint64_t ckpt_copy_batch_devices(const struct ckpt_segment *segments, size_t count)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < count; i++)
		mask |= UINT64_C(1) << segments[i].view.device;
	return mask;
}

int ckpt_copy_batch_reserve(struct ckpt_copy_batch *batch, uint64_t devices)
{
	size_t need = (size_t)__builtin_popcountll(devices);
	bool gpus = (devices & ~HOST) != 0;

	CKPT_ASSERT(batch->left == 0);
	if (need <= batch->room && (!gpus || batch->errors))
		return 0;
	/* Words take far more room than a copy, and the CPU has none. */
	struct ckpt_copy_batch_part *parts = ckpt_alloc_array(need, sizeof(*parts));
	struct ckpt_error *errors = gpus ? ckpt_alloc_array(need, sizeof(*errors)) : NULL;
	if (!parts || (gpus && !errors)) {
		ckpt_free(errors);
		ckpt_free(parts);
		return -ENOMEM;
	}
	ckpt_copy_batch_clear(batch);
	batch->parts = parts;
	batch->errors = errors;
	batch->room = need;
	return 0;
}

static void say_fed(struct ckpt_copy_batch *batch)
{
	if (batch->fed)
		batch->fed(batch);
}

static void part_done(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);
	struct ckpt_copy_batch_part *part = CKPT_CONTAINER(copy, struct ckpt_copy_batch_part, copy);
	struct ckpt_copy_batch *batch = part->batch;

	if (copy->result < 0 && batch->code == 0) {
		batch->code = copy->result;
		batch->error = copy->error;
	} else if (copy->torn >= 0 && batch->torn < 0) {
		batch->torn = copy->torn;
	}
	CKPT_ASSERT(batch->left > 0);
	batch->left--;
	if (copy->device == 0)
		say_fed(batch);
	if (batch->left == 0)
		batch->done(batch);
}

/* What a device can do of it. */
static void begin_part(struct ckpt_copy_batch *batch, struct ckpt_copy_batch_part *part,
	struct ckpt_device *device, const struct ckpt_copy *like)
{
	part->batch = batch;
	part->copy = *like;
	part->copy.sampled = like->sampled && (device->number == 0 || device->samples);
	part->copy.job.urgent = true;
	part->copy.job.node.run = part_done;
	if (device->number == 0)
		return;
	part->copy.error = &batch->errors[part - batch->parts];
	*part->copy.error = (struct ckpt_error){.size = sizeof(*part->copy.error)};
}

void ckpt_copy_batch_start(struct ckpt_copy_batch *batch, const struct ckpt_devices *devices,
	uint64_t mask, const struct ckpt_copy *like)
{
	size_t count = (size_t)__builtin_popcountll(mask);
	bool host = mask & HOST;

	CKPT_ASSERT(batch->left == 0 && batch->done && count > 0 && count <= batch->room);
	batch->left = count;
	batch->code = 0;
	batch->error = NULL;
	batch->torn = -1;
	for (size_t i = 0; i < count; i++, mask &= mask - 1) {
		struct ckpt_device *device =
			ckpt_devices_get(devices, (uint32_t)__builtin_ctzll(mask));

		begin_part(batch, &batch->parts[i], device, like);
		/* Comes back through the inbox, and not before this thread looks there. */
		ckpt_device_copy(device, &batch->parts[i].copy);
	}
	if (!host)
		say_fed(batch);
}

void ckpt_copy_batch_clear(struct ckpt_copy_batch *batch)
{
	CKPT_ASSERT(batch->left == 0);
	ckpt_free(batch->parts);
	ckpt_free(batch->errors);
	*batch = (struct ckpt_copy_batch){0};
}
