/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of a crowd are, and the disks that they write to: one that all share, or one of each node.
 */
#ifndef CROWD_NODES_H
#define CROWD_NODES_H

#include "sim_disk.h"

#define CROWD_NODES 4

struct crowd;

struct crowd_place {
	uint32_t first; /* its ranks */
	uint32_t count;
	struct sim_disk *disk;
};

/* Some seeds have nodes with a store each; `places` and what follows from them. Last of all that is drawn. */
void crowd_nodes_pick(struct crowd *crowd, uint64_t seed);
void crowd_nodes_free(struct crowd *crowd);
bool crowd_nodes_are_many(uint64_t seed);

/* Whatever the ranks share: without nodes all have one. */
unsigned crowd_place_number(const struct crowd *crowd, uint32_t rank);
const struct crowd_place *crowd_place(const struct crowd *crowd, uint32_t rank);
struct sim_disk *crowd_disk(const struct crowd *crowd, uint32_t rank);

/* Of all disks: whether one has stopped, when the next late write lands, until when none answers. */
bool crowd_disks_stopped(const struct crowd *crowd);
uint64_t crowd_disks_land(struct crowd *crowd);
void crowd_disks_heal(struct crowd *crowd);
/* Of those that may hang, one. */
struct sim_disk *crowd_disk_pick(struct crowd *crowd);

#endif
