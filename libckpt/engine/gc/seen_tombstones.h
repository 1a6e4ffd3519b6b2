/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tombstones that an engine has seen in a store: which one, since when, and whose. A step is deleted only under a
 * tombstone that has not changed for a whole grace period and was written by the process that deletes.
 */
#ifndef CKPT_ENGINE_GC_SEEN_TOMBSTONES_H
#define CKPT_ENGINE_GC_SEEN_TOMBSTONES_H

#include "base/digest.h"

struct ckpt_seen_tombstone {
	uint64_t generation;
	uint64_t step;
	struct ckpt_digest stone; /* digest of its bytes, which are unique */
	uint64_t since_ns;        /* when this engine wrote it or first saw it */
	bool mine;
	bool taken; /* taken over from another process, which may still be at work */
	/* A request to delete a file under it failed or was repeated, and may still be carried out. */
	bool doubtful;
};

struct ckpt_seen_tombstones {
	struct ckpt_seen_tombstone *items;
	size_t count;
};

/* NULL: none is known. Valid until the next change. */
struct ckpt_seen_tombstone *ckpt_seen_tombstones_find(
	const struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step);
/* Records the tombstone of a step. Leaves the entry as it is if it has the same digest. -ENOMEM. */
int ckpt_seen_tombstones_note(struct ckpt_seen_tombstones *seen_tombstones,
	const struct ckpt_seen_tombstone *seen_tombstone);
void ckpt_seen_tombstones_drop(
	struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step);
void ckpt_seen_tombstones_clear(struct ckpt_seen_tombstones *seen_tombstones);

#endif
