/* SPDX-License-Identifier: Apache-2.0 */
/* Runs seeds of the simulated world; see sim_main.c. */
#include <stdio.h>
#include <stdlib.h>

#include "sim_main.h"
#include "world.h"

static struct world *the_world;

static struct {
	struct world_counts counts;
	uint64_t rivalled;
	uint64_t ranks;
} sums;

static bool run(uint64_t seed, const struct sim_options *options)
{
	return world_run(the_world, seed, options);
}

static const struct sim *sim(void)
{
	return &the_world->sim;
}

static void count(void)
{
	const struct world_counts *counts = &the_world->counts;

	sums.rivalled += world_rivalled(the_world);
	sums.ranks += the_world->rank_count;
	sums.counts.acked += counts->acked;
	sums.counts.gpu += counts->gpu;
	sums.counts.based += counts->based;
	sums.counts.restored += counts->restored;
	sums.counts.refused += counts->refused;
	sums.counts.lies += counts->lies;
	sums.counts.repaired += counts->repaired;
	sums.counts.abandoned += counts->abandoned;
	sums.counts.races += counts->races;
	sums.counts.told += counts->told;
}

static void print(void)
{
	typedef unsigned long long ull;
	const struct world_counts *counts = &sums.counts;

	(void)printf(
		" acknowledged=%llu of_gpus=%llu differences=%llu restored=%llu two_writers=%llu "
		"claim_races=%llu told=%llu "
		"lies=%llu repaired=%llu refused=%llu given_up=%llu ranks=%llu",
		(ull)counts->acked, (ull)counts->gpu, (ull)counts->based, (ull)counts->restored,
		(ull)sums.rivalled, (ull)counts->races, (ull)counts->told, (ull)counts->lies,
		(ull)counts->repaired, (ull)counts->refused, (ull)counts->abandoned,
		(ull)sums.ranks);
}

int main(int argc, char **argv)
{
	static const struct sim_program program = {
		.run = run, .sim = sim, .count = count, .print = print};

	the_world = sim_alloc(sizeof(*the_world));
	int code = sim_main(argc, argv, &program);
	proc_end_all();
	free(the_world);
	return code;
}
