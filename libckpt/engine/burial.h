/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing a step from a store that others read and write without a lock that both see: a bucket, a directory that
 * several hosts have. Each act is a command of its own; between MARK and REMOVE the caller lets time pass, and looks
 * again.
 *
 * MARK: nobody holds the store -> the tombstone.
 * REMOVE: is it marked, and does nobody read it here? -> manifest -> sync -> indexes -> sync -> all else -> rmdir ->
 * what was only begun -> the tombstone. An upload takes an index for its shard, and looks for the tombstone before it believes one: so
 * wherever this ends, and whatever comes after, no manifest is published again over shards that are going.
 * UNMARK: it stays after all.
 */
#ifndef CKPT_ENGINE_BURIAL_H
#define CKPT_ENGINE_BURIAL_H

#include "engine/core.h"

enum ckpt_burial_act { CKPT_BURIAL_MARK, CKPT_BURIAL_REMOVE, CKPT_BURIAL_UNMARK };

struct ckpt_burial {
	struct ckpt_command command;
	enum ckpt_burial_act act;
	uint64_t generation;
	uint64_t step;

	/* Its own. */
	struct ckpt_task work;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
};

/* NULL: out of memory. Fill act, generation and step, and post with ckpt_burial_body. */
struct ckpt_command *ckpt_burial_new(struct ckpt_core *core);
/*
 * CKPT_EINUSE: a live process of this machine holds the store. -EBUSY: the step is read just now, or is not marked
 * (any more). Else what the storage says. The same act again goes on where it ended.
 */
int ckpt_burial_body(struct ckpt_task *task);

#endif
