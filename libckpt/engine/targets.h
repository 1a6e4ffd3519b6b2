/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a restore's bytes go: targets checked against the index, in the order of the shard, and cut
 * into segments block by block. Any number of targets may share bytes of a tensor.
 */
#ifndef CKPT_ENGINE_TARGETS_H
#define CKPT_ENGINE_TARGETS_H

#include <ckpt/restore.h>
#include "device/device.h"
#include "engine/blocks.h"

/* A target, as a range of the shard. */
struct ckpt_bound {
	uint64_t lo;
	uint64_t hi;
	char *data;
	uint32_t item;
	uint32_t ndim;
	size_t dims;  /* where its shape and strides are in targets->dims; unused when contiguous */
	int64_t flat; /* contiguous: bytes; -1: not */
};

/* Zero is empty. */
struct ckpt_targets {
	struct ckpt_bound *items; /* sealed: by `lo` */
	size_t count;
	size_t room;
	int64_t *dims;
	size_t dims_count;
	size_t dims_room;

	/* The sweep: targets below `next` have begun; those of them that have not ended are active. */
	bool sealed;
	size_t next;
	size_t *active;
	size_t active_count;
};

struct ckpt_segment_list {
	struct ckpt_segment *items;
	size_t count;
	size_t room;
};

/*
 * Checks and adds targets, all or none; empty ones are checked only. CKPT_EMISMATCH, CKPT_EUNSUPPORTED
 * (a device that this build has not), -EINVAL, -ENOMEM, worded into `err`.
 */
int ckpt_targets_add(struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_target *add, size_t count, struct ckpt_error *err);
/* Sorts. Nothing can be added any more. -ENOMEM. */
int ckpt_targets_seal(struct ckpt_targets *targets);
void ckpt_targets_clear(struct ckpt_targets *targets);

/*
 * Marks in `wanted`, one bit for each chunk, the chunks that hold a byte of a target. Sealed.
 * Returns the sum of their lengths.
 */
uint64_t ckpt_targets_want(
	const struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t *wanted);

/*
 * Fills `list` with the segments of all targets in bytes [lo, hi) of the shard, which lie in block
 * `block` and its predecessor. Sealed. Calls must come in ascending order, without overlaps. -ENOMEM.
 */
struct ckpt_cut {
	uint64_t lo;
	uint64_t hi;
	uint64_t block_offset;
	uint32_t block_bytes;
	char *before;
	char *here;
};
int ckpt_targets_cut(
	struct ckpt_targets *targets, const struct ckpt_cut *cut, struct ckpt_segment_list *list);

#endif
