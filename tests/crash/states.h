/* SPDX-License-Identifier: Apache-2.0 */
/* Every state that a power cut may leave of a disk now, once. */
#ifndef CRASH_STATES_H
#define CRASH_STATES_H

#include "variants.h"

#define STATES_DEPTH 128

struct states {
	struct sim *sim;
	struct variants variants;
	const struct sim_inode *root;
	/*
	 * How many contents of its files are tried with one set of names: all if there are no more, else so
	 * many by chance. Sets of names are all tried.
	 */
	uint64_t limit;
	uint64_t salt; /* a state is another one when something else must hold of it */
	/* One that was not seen before; its picks are set. */
	void (*found)(struct states *states);
	void *user;

	uint64_t moments;
	uint64_t sampled; /* of them, with more states than were tried */
	uint64_t tried;
	uint64_t distinct;

	/* Its own. */
	uint64_t *seen;
	uint64_t seen_room;
	bool chosen; /* by chance, of this moment */
	uint64_t hash;
	struct states_place {
		struct variants_node *node;
		uint64_t path;
	} dirs[STATES_DEPTH], files[STATES_DEPTH];
	size_t dir_count;
	size_t file_count;
};

void states_try_all(struct states *states, struct sim_disk *disk);
/* What was seen is new again. */
void states_forget(struct states *states);

#endif
