/* SPDX-License-Identifier: Apache-2.0 */
/* The fence of a save, on the user's thread, and the GPU streams that take part in it. */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "engine/save/save_state.h"

/* A few per GPU are normal; more would be a mistake. */
#define STREAMS_MAX 1024

static int number_of(const struct ckpt_stream *stream)
{
	return ckpt_devices_number(stream->device, stream->device_index);
}

int ckpt_save_put_streams(struct ckpt_save *save, const struct ckpt_stream *streams, size_t count,
	struct ckpt_error *err)
{
	struct ckpt_stream *copies = NULL;

	if (count > STREAMS_MAX)
		return ckpt_fail(
			err, -E2BIG, "%zu streams: at most %d are allowed", count, STREAMS_MAX);
	for (size_t i = 0; i < count; i++)
		if (number_of(&streams[i]) <= 0 || streams[i].reserved)
			return ckpt_fail(err, -EINVAL,
				"stream %zu: device kind %u, index %d, reserved %u is not a GPU", i,
				streams[i].device, streams[i].device_index, streams[i].reserved);
	if (count > 0) {
		copies = ckpt_memdup(streams, count * sizeof(*streams));
		if (!copies)
			return ckpt_fail(err, -ENOMEM, "out of memory");
	}
	ckpt_free(save->streams);
	save->streams = copies;
	save->stream_count = count;
	return 0;
}

/* NULL: nothing of the save is on it. */
static struct ckpt_device *device_of(const struct ckpt_save *save, const struct ckpt_stream *stream)
{
	uint32_t number = (uint32_t)number_of(stream);

	return save->devices >> number & 1 ? ckpt_devices_get(save->core->parts.devices, number)
					   : NULL;
}

int ckpt_save_follow(struct ckpt_save *save, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < save->stream_count && r == 0; i++) {
		struct ckpt_device *device = device_of(save, &save->streams[i]);
		if (device)
			r = ckpt_device_follow(device, save->streams[i].handle, err);
	}
	return r;
}

/* Whether a GPU has no stream here: then only the host can wait. */
static bool unstreamed(const struct ckpt_save *save)
{
	uint64_t left = save->devices & ~UINT64_C(1);

	for (size_t i = 0; i < save->stream_count; i++)
		left &= ~(UINT64_C(1) << number_of(&save->streams[i]));
	return left != 0;
}

uint32_t ckpt_save_copied_bit(const struct ckpt_save *save, bool eager)
{
	if (unstreamed(save))
		return CKPT_DONE_STAGED;
	return eager ? CKPT_DONE_EAGER : CKPT_DONE_FED;
}

int ckpt_save_hold(
	struct ckpt_save *save, enum ckpt_hold which, int timeout_ms, struct ckpt_error *err)
{
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	int r = 0;

	for (size_t i = 0; i < save->stream_count && r == 0; i++) {
		struct ckpt_device *device = device_of(save, &save->streams[i]);
		if (device)
			r = ckpt_device_hold(device, save->streams[i].handle, which,
				ckpt_deadline_left_ms(deadline_ns), err);
	}
	return r;
}

int ckpt_save_check(struct ckpt_save *save, int timeout_ms, struct ckpt_error *err)
{
	int r = ckpt_save_check_samples(save, err);

	if (r < 0 || !ckpt_save_looks(save))
		return r;
	r = ckpt_save_follow(save, err);
	if (r < 0)
		return r;
	ckpt_save_post_look(save);
	uint32_t bits = ckpt_latch_wait(&save->latch, CKPT_DONE_LOOKED | CKPT_DONE_END, timeout_ms);
	if (bits & (CKPT_DONE_LOOKED | CKPT_DONE_END))
		return 0;
	return ckpt_fail(err, -ETIMEDOUT, "the fence of step %llu could not be passed within %d ms",
		(unsigned long long)save->step, timeout_ms);
}
