/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_device_ops. */
#include "device/device.h"

#include <ckpt/error.h>

void ckpt_device_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	CKPT_ASSERT(copy->job.node.run);
	CKPT_ASSERT(
		copy->direction >= CKPT_COPY_TO_STAGING && copy->direction <= CKPT_COPY_NOTHING);
	CKPT_ASSERT(copy->segments || copy->count == 0);
	CKPT_ASSERT(copy->direction != CKPT_COPY_NOTHING || copy->count == 0);
	CKPT_ASSERT(!copy->sampled || copy->direction == CKPT_COPY_TO_STAGING);
	copy->device = device->number;
	copy->torn = -1;
	copy->result = 0;
	/* The device owns the copy now, and it may be freed before the call returns. */
	device->ops->copy(device, copy);
}

int ckpt_device_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err)
{
	int r;

	CKPT_ASSERT(base && size > 0);
	if (!device->ops->pin)
		return 0;
	CKPT_ASSERT(device->ops->unpin);
	r = device->ops->pin(device, base, size, err);
	CKPT_ASSERT(r <= 0);
	return r;
}

int ckpt_device_unpin(struct ckpt_device *device, void *base, size_t size)
{
	int r;

	CKPT_ASSERT(base && size > 0);
	if (!device->ops->unpin)
		return 0;
	r = device->ops->unpin(device, base, size);
	CKPT_ASSERT(r <= 0);
	return r;
}

int ckpt_device_takes(
	struct ckpt_device *device, const struct ckpt_segment *segment, struct ckpt_error *err)
{
	int r;

	CKPT_ASSERT(segment->view.device == device->number);
	if (!device->ops->takes)
		return 0;
	r = device->ops->takes(device, segment, err);
	CKPT_ASSERT(r == 0 || r == CKPT_EUNSUPPORTED);
	return r;
}

int ckpt_device_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err)
{
	int r;

	if (!device->ops->follow)
		return 0;
	r = device->ops->follow(device, stream, err);
	CKPT_ASSERT(r <= 0);
	return r;
}

int ckpt_device_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err)
{
	int r;

	if (!device->ops->hold)
		return 0;
	CKPT_ASSERT(device->ops->follow);
	r = device->ops->hold(device, stream, which, timeout_ms, err);
	CKPT_ASSERT(r <= 0);
	return r;
}

void ckpt_device_close(struct ckpt_device *device)
{
	if (device)
		device->ops->close(device);
}
