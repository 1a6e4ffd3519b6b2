/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tombstones that an engine has seen in a store: which one it was, since when, and who has put it there. A step
 * is removed only under a tombstone that has not changed for a whole grace, and was put there by who removes it.
 */
#ifndef CKPT_ENGINE_GC_SEEN_TOMBSTONES_H
#define CKPT_ENGINE_GC_SEEN_TOMBSTONES_H

#include "base/digest.h"

struct ckpt_seen_tombstone {
	uint64_t generation;
	uint64_t step;
	struct ckpt_digest stone; /* of its bytes: no two are alike */
	uint64_t since_ns;        /* when this engine has put it there, or seen it first */
	bool mine;
	bool taken; /* over from somebody else, who may be at work still */
	bool doubtful; /* a request to remove a file under it has failed, or was made again, and may be carried out yet */
};

struct ckpt_seen_tombstones {
	struct ckpt_seen_tombstone *items;
	size_t count;
};

/* NULL: none is known. Valid until the next change. */
struct ckpt_seen_tombstone *ckpt_seen_tombstones_find(
	const struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step);
/* The tombstone of a step is this one. One that is known as such already stays as it is. -ENOMEM. */
int ckpt_seen_tombstones_note(struct ckpt_seen_tombstones *seen_tombstones,
	const struct ckpt_seen_tombstone *seen_tombstone);
void ckpt_seen_tombstones_drop(
	struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step);
void ckpt_seen_tombstones_clear(struct ckpt_seen_tombstones *seen_tombstones);

#endif
