/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a power cut may leave of a simulated disk (sim_disk.h), as it stands: of each file every
 * content that some part of its unsynced sectors and sizes gives, of each directory every set of names.
 */
#ifndef CRASH_VARIANTS_H
#define CRASH_VARIANTS_H

#include "sim/sim_inode.h"

/* Of a file with more unsynced sectors than this, not all are tried, but so many of them by chance. */
#define VARIANTS_BITS   11
#define VARIANTS_CHANCE 2048
#define VARIANTS_NAMES  10 /* unsynced changes of one directory; a multiple of what there ever are */

struct variant {
	uint64_t hash;
	uint64_t size; /* file */
	char *data;
	struct sim_names names; /* directory */
};

struct variants_node {
	struct sim_inode *inode;
	struct variant *at;
	size_t count;
	size_t room;
	size_t pick;
};

struct variants {
	struct sim *sim;
	struct variants_node *nodes; /* by inode->number */
	size_t count;
	size_t room;
	bool sampled; /* there was a file with too many */
};

void variants_take(struct variants *variants, struct sim *sim, struct sim_disk *disk);
void variants_drop(struct variants *variants);
struct variants_node *variants_of(const struct variants *variants, const struct sim_inode *inode);
/* The node at a path, in the state that is picked; NULL: there is none. */
struct variants_node *variants_find(
	const struct variants *variants, const struct sim_inode *root, const char *path);
/* A disk that holds the state that is picked, all of it durable. */
struct sim_disk *variants_copy(
	const struct variants *variants, const struct sim_inode *root, struct sim *sim);

#endif
