/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tombstones that an engine has seen in a store: which one it was, since when, and who has put it there. A step
 * is removed only under a tombstone that has not changed for a whole grace, and was put there by who removes it.
 */
#ifndef CKPT_ENGINE_GRAVES_H
#define CKPT_ENGINE_GRAVES_H

#include "base/digest.h"

struct ckpt_grave {
	uint64_t generation;
	uint64_t step;
	struct ckpt_digest stone; /* of its bytes: no two are alike */
	uint64_t since_ns;        /* when this engine has put it there, or seen it first */
	bool mine;
	bool taken; /* over from somebody else, who may be at work still */
	bool doubtful; /* a request to remove a file under it has failed, or was made again, and may be carried out yet */
};

struct ckpt_graves {
	struct ckpt_grave *items;
	size_t count;
};

/* NULL: none is known. Valid until the next change. */
struct ckpt_grave *ckpt_graves_find(
	const struct ckpt_graves *graves, uint64_t generation, uint64_t step);
/* The tombstone of a step is this one. One that is known as such already stays as it is. -ENOMEM. */
int ckpt_graves_note(struct ckpt_graves *graves, const struct ckpt_grave *grave);
void ckpt_graves_drop(struct ckpt_graves *graves, uint64_t generation, uint64_t step);
void ckpt_graves_clear(struct ckpt_graves *graves);

#endif
