/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that move together, each by the device that its memory is on. The core's thread. */
#ifndef CKPT_ENGINE_CORE_COPY_BATCH_H
#define CKPT_ENGINE_CORE_COPY_BATCH_H

#include "device/devices.h"

struct ckpt_copy_batch;

struct ckpt_copy_batch_part {
	struct ckpt_copy_batch *batch;
	struct ckpt_copy copy;
};

/* Zero is empty. It may be started again when it is done. */
struct ckpt_copy_batch {
	struct ckpt_copy_batch_part *parts;
	struct ckpt_error *errors; /* of each part; NULL: there was no room made for GPUs */
	size_t room;
	size_t left; /* parts under way */
	/*
	 * Fed: what is of the CPU is copied, and the rest is with its devices, in the order of the batches. NULL, or
	 * called before `done`, perhaps by ckpt_copy_batch_start().
	 */
	void (*fed)(struct ckpt_copy_batch *batch);
	void (*done)(struct ckpt_copy_batch *batch);
	int code;                       /* of the first part that has failed */
	const struct ckpt_error *error; /* its words; NULL: it has none */
	int64_t torn;                   /* the first segment found to differ; -1: none */
};

/* The devices that the segments are on, as a mask. */
uint64_t ckpt_copy_batch_devices(const struct ckpt_segment *segments, size_t count);
/* Room for a part on each device of the mask; kept. -ENOMEM. */
int ckpt_copy_batch_reserve(struct ckpt_copy_batch *batch, uint64_t devices);
/*
 * `fed` and `done` are set. `like` says what each device does with its segments; only what its submitter sets
 * counts. `sampled` is left out for a device that cannot take samples.
 */
void ckpt_copy_batch_start(struct ckpt_copy_batch *batch, const struct ckpt_devices *devices,
	uint64_t mask, const struct ckpt_copy *like);
/* Done, or never started. */
void ckpt_copy_batch_clear(struct ckpt_copy_batch *batch);

#endif
