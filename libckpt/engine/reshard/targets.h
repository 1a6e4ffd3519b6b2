/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of one shard go: ranges and boxes of it, each with its memory, sorted by offset, and cut into
 * segments block by block. They may overlap.
 */
#ifndef CKPT_ENGINE_RESHARD_TARGETS_H
#define CKPT_ENGINE_RESHARD_TARGETS_H

#include "device/devices.h"
#include "engine/reshard/blocks.h"
#include "engine/reshard/box.h"

/* One range or box of the shard, from `lo` to `hi`. */
struct ckpt_bound {
	uint64_t lo;
	uint64_t hi;
	uint64_t
		/* Origin of the segments' offsets: `lo`, or the start of the array around the box. */
		base;
	char *data;
	uint32_t item;
	uint32_t ndim;
	uint32_t device;
	size_t dims;  /* index of its shape and strides in targets->dims; unused if contiguous */
	int64_t flat; /* contiguous: its bytes; -1: not contiguous */
	/* A box that is not contiguous in the shard; the shape of the array around it follows its strides in dims. */
	bool boxed;
	bool shared; /* other ranks on this node want the same */
};

/* Zero is empty. */
struct ckpt_targets {
	struct ckpt_bound *items; /* sealed: sorted by `lo` */
	size_t count;
	size_t room;
	int64_t *dims;
	size_t dims_count;
	size_t dims_room;
	/* Number of items that ckpt_targets_keep() has confirmed. */
	size_t kept;
	size_t kept_dims;

	uint64_t *wanted; /* sealed: a bit for each chunk of the shard */
	uint64_t *shared; /* sealed: those that other ranks on this node want, or may want */
	/* The sweep: targets below `next` have begun; those that have not ended are active. */
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

/* The view's bytes are contiguous in the shard, from `lo` on. Not empty. -ENOMEM. */
int ckpt_targets_put(struct ckpt_targets *targets, uint64_t lo, const struct ckpt_view *view);
/* The view is box `in` of the row-major array of `shape` at byte `base` of the shard. Not empty. -ENOMEM. */
int ckpt_targets_put_box(struct ckpt_targets *targets, uint64_t base, const struct ckpt_view *view,
	const int64_t *shape, const struct ckpt_box *in);
/*
 * Copies the targets of another shard to this one, where the same tensor begins at `there` instead of `here`. -ENOMEM.
 */
int ckpt_targets_copy(struct ckpt_targets *targets, const struct ckpt_targets *from, size_t item,
	uint64_t here, uint64_t there);
/* Marks the last target as wanted by other ranks on this node, too. */
void ckpt_targets_share(struct ckpt_targets *targets);
/* Confirms all added targets, or removes those added since the last time. */
void ckpt_targets_keep(struct ckpt_targets *targets);
void ckpt_targets_forget(struct ckpt_targets *targets);
/*
 * Sorts, and marks the chunks that contain a byte of a target, and those that others want: shared ones, and those that
 * are wanted only in part. No target can be added afterwards. Sets the total length of the chunks. -ENOMEM.
 */
int ckpt_targets_seal(
	struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t *ret_bytes);
/* The result of ckpt_device_takes() for the first refused target; the message names the tensor. Sealed. */
int ckpt_targets_check(const struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_devices *devices, struct ckpt_error *err);
/* Sealed: they are cut from the beginning again, of another copy of the shard. */
void ckpt_targets_rewind(struct ckpt_targets *targets);
void ckpt_targets_clear(struct ckpt_targets *targets);

/*
 * Fills `list` with the segments of all targets in bytes [lo, hi) of the shard, which are in block `block` and its
 * predecessor. Sealed. Calls must be in ascending order without overlaps. -ENOMEM. No segment begins with bytes of an
 * unwanted chunk; they are left out or skipped.
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
