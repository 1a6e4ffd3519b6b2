/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of one shard go: ranges and boxes of it, each with its memory, in the order of the
 * shard, and cut into segments block by block. Any number of them may share bytes.
 */
#ifndef CKPT_ENGINE_RESHARD_TARGETS_H
#define CKPT_ENGINE_RESHARD_TARGETS_H

#include "device/devices.h"
#include "engine/reshard/blocks.h"
#include "engine/reshard/box.h"

/* What is to be had of the shard, from `lo` to `hi`. */
struct ckpt_bound {
	uint64_t lo;
	uint64_t hi;
	uint64_t
		base; /* of what the segments' offsets count from: `lo`, or the array around the box */
	char *data;
	uint32_t item;
	uint32_t ndim;
	uint32_t device;
	size_t dims;  /* where its shape and strides are in targets->dims; unused when contiguous */
	int64_t flat; /* contiguous: bytes; -1: not */
	bool boxed; /* its bytes do not lie together; what is around it follows its strides in dims */
	bool shared; /* other ranks on this node want the same */
};

/* Zero is empty. */
struct ckpt_targets {
	struct ckpt_bound *items; /* sealed: by `lo` */
	size_t count;
	size_t room;
	int64_t *dims;
	size_t dims_count;
	size_t dims_room;
	/* What a caller who puts all or nothing has kept. */
	size_t kept;
	size_t kept_dims;

	uint64_t *wanted; /* sealed: a bit for each chunk of the shard */
	uint64_t *
		shared; /* sealed: of those the ones that other ranks on this node want, or may want */
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

/* The view's bytes lie together in the shard, from `lo` on. Not empty. -ENOMEM. */
int ckpt_targets_put(struct ckpt_targets *targets, uint64_t lo, const struct ckpt_view *view);
/*
 * The view is box `in` of the row-major array of `shape` that begins at byte `base` of the shard.
 * Not empty. -ENOMEM.
 */
int ckpt_targets_put_box(struct ckpt_targets *targets, uint64_t base, const struct ckpt_view *view,
	const int64_t *shape, const struct ckpt_box *in);
/*
 * What was put to another shard is wanted of this one, where the same tensor begins at `there` instead of
 * `here`. -ENOMEM.
 */
int ckpt_targets_copy(struct ckpt_targets *targets, const struct ckpt_targets *from, size_t item,
	uint64_t here, uint64_t there);
/* What was put last is wanted by other ranks on this node, too. */
void ckpt_targets_share(struct ckpt_targets *targets);
/* Keeps what has been put, or forgets what was put since the last time. */
void ckpt_targets_keep(struct ckpt_targets *targets);
void ckpt_targets_forget(struct ckpt_targets *targets);
/*
 * Sorts, and marks the chunks that hold a byte of a target, and those of them that others want: what was put
 * so, and whatever is not wanted whole. Nothing can be put any more. Sets the sum of their lengths. -ENOMEM.
 */
int ckpt_targets_seal(
	struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t *ret_bytes);
/* What ckpt_device_takes() says of the first that is refused; the tensor is named as the layout has it. Sealed. */
int ckpt_targets_check(const struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_devices *devices, struct ckpt_error *err);
/* Sealed: they are cut from the beginning again, of another copy of the shard. */
void ckpt_targets_rewind(struct ckpt_targets *targets);
void ckpt_targets_clear(struct ckpt_targets *targets);

/*
 * Fills `list` with the segments of all targets in bytes [lo, hi) of the shard, which lie in block
 * `block` and its predecessor. Sealed. Calls must come in ascending order, without overlaps. -ENOMEM.
 * Bytes of chunks that are not wanted are in no segment, or are passed over by it; none begins with them.
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
