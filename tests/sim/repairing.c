/* SPDX-License-Identifier: Apache-2.0 */
/* What a repair leaves of a durable step: the same files under names of another attempt. */
#include <stdlib.h>
#include <string.h>

#include "format/naming.h"
#include "world.h"

/* Names anew what the step has of rank 0, both files or one of them; durable at once. */
static bool name_anew(struct sim_rank *rank, const struct oracle_record *r)
{
	struct sim *sim = &rank->world->sim;
	char directory[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS];
	char fresh[CKPT_ATTEMPT_CHARS];
	enum ckpt_rank_file kind;
	uint32_t number;
	char *names;
	size_t bytes;
	size_t count;
	unsigned done = 0;

	ckpt_name_step(directory, r->generation, r->step);
	ckpt_name_attempt(fresh, sim_mix64(sim->seed + r->step + sim->now_ns));
	uint64_t which = sim_below(sim, 4); /* 0: the shard, 1: the index, else both */
	if (sim_disk_list(rank->disk, directory, &names, &bytes, &count) < 0)
		return false;
	for (const char *name = names; name < names + bytes; name += strlen(name) + 1) {
		char from[CKPT_PATH_MAX];
		char to[CKPT_PATH_MAX];
		if (!ckpt_parse_rank_file(name, &number, &kind, attempt))
			continue;
		if (which == (uint64_t)(kind == CKPT_RANK_ENCODED ? CKPT_RANK_SHARD : kind))
			continue;
		ckpt_name_rank_file(from, r->generation, r->step, number, kind, attempt);
		ckpt_name_rank_file(to, r->generation, r->step, number, kind, fresh);
		done += sim_disk_rename(rank->disk, from, to, false) == 0;
	}
	free(names);
	(void)sim_disk_sync_dir(rank->disk, directory, sim_disk_mark(rank->disk), false);
	return done > 0;
}

void world_repair(struct sim_rank *rank)
{
	struct world *world = rank->world;
	struct sim *sim = &world->sim;
	const struct oracle *oracle = &rank->oracle;

	if (!world->plan.repairs || world_crowd(rank) > 0 || sim_disk_stopped(rank->disk))
		return;
	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *r = &oracle->records[i];
		if (!r->acked_at || r->let_go || r->harm || !sim_chance(sim, 5000))
			continue;
		if (!name_anew(rank, r))
			continue;
		world->counts.repaired++;
		sim_tell(sim, 0, "repaired", "", (int64_t)r->generation, (int64_t)r->step, 0);
	}
}
