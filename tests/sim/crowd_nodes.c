/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a crowd; see crowd_nodes.h. */
#include "crowd.h"

/* Neighbours in the numbering are on one node, as launchers do it; nodes need not have as many each. */
static void spread(struct crowd *crowd)
{
	struct sim *sim = &crowd->sim;
	unsigned most = crowd->world < CROWD_NODES ? crowd->world : CROWD_NODES;
	uint32_t next = 0;

	crowd->nodes = (unsigned)sim_between(sim, 2, most);
	for (unsigned i = 0; i < crowd->nodes; i++) {
		struct crowd_place *place = &crowd->places[i];
		uint32_t left = crowd->world - next;
		uint32_t others = crowd->nodes - i - 1;
		place->first = next;
		place->count = left / (others + 1);
		if (sim_chance(sim, 4000))
			place->count = (uint32_t)sim_between(sim, 1, left - others);
		if (others == 0)
			place->count = left;
		next += place->count;
	}
}

/* One in sixteen; and all of a million, for whoever looks for what only they find. */
static bool has_nodes(uint64_t seed)
{
	return seed % 16 == 5 || seed / 1000000 == 77;
}

bool crowd_nodes_are_many(uint64_t seed)
{
	return seed % 128 == 37;
}

void crowd_nodes_pick(struct crowd *crowd, uint64_t seed)
{
	struct sim *sim = &crowd->sim;

	crowd->stores = 1;
	crowd->places[0].count = crowd->world;
	crowd->places[0].disk = sim_disk_new(sim);
	if (!has_nodes(seed))
		return;
	spread(crowd);
	crowd->stores = crowd->nodes;
	crowd->apart = false;
	crowd->sharing = sim_chance(sim, 5000);
	/* The locks are on the disks: whoever comes while a node leader lives is turned away, and tries nothing else. */
	crowd->overlap = crowd->overlap && sim_chance(sim, 4000);
	crowd->keep_last = sim_chance(sim, 4000) ? 0 : sim_between(sim, 1, 3);
	crowd->deadly = sim_chance(sim, 2500);
	crowd->brittle = sim_chance(sim, 3000);
	for (unsigned i = 1; i < crowd->nodes; i++)
		crowd->places[i].disk = sim_disk_new(sim);
}

void crowd_nodes_free(struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		sim_disk_free(crowd->places[i].disk);
	crowd_boards_free(&crowd->boards);
}

unsigned crowd_place_number(const struct crowd *crowd, uint32_t rank)
{
	unsigned i = 0;

	while (i + 1 < crowd->stores && rank >= crowd->places[i + 1].first)
		i++;
	return i;
}

const struct crowd_place *crowd_place(const struct crowd *crowd, uint32_t rank)
{
	return &crowd->places[crowd_place_number(crowd, rank)];
}

struct sim_disk *crowd_disk(const struct crowd *crowd, uint32_t rank)
{
	return crowd_place(crowd, rank)->disk;
}

bool crowd_disks_stopped(const struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		if (sim_disk_stopped(crowd->places[i].disk))
			return true;
	return false;
}

uint64_t crowd_disks_land(struct crowd *crowd)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < crowd->stores; i++)
		next_ns = ckpt_min_u64(next_ns, sim_disk_land(crowd->places[i].disk));
	return next_ns;
}

void crowd_disks_heal(struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		sim_disk_hang(crowd->places[i].disk, 0);
}

struct sim_disk *crowd_disk_pick(struct crowd *crowd)
{
	unsigned i = crowd->nodes ? (unsigned)sim_below(&crowd->sim, crowd->nodes) : 0;

	return crowd->places[i].disk;
}
