/* SPDX-License-Identifier: Apache-2.0 */
/* What a run is about, and which kinds of trouble it has. */
#include "sim_memory.h"
#include "world.h"

/* Which sixteenth of the seeds has repairs. */
#define REPAIRS 7

/* In how many of 10,000 runs a kind is present, and how often it then happens at most. */
static const struct {
	enum sim_fault kind;
	unsigned runs;
	unsigned most;
} swarm[] = {
	{SIM_EIO_WRITE, 1500, 300},
	{SIM_EIO_READ, 1000, 200},
	{SIM_EIO_SYNC, 2000, 1500},
	{SIM_EIO_DIR, 2000, 1500},
	{SIM_EIO_OTHER, 1500, 300},
	{SIM_SHORT_IO, 3000, 3000},
	{SIM_STUCK, 1000, 60},
	{SIM_SLOW, 3000, 1500},
	{SIM_HANG, 1000, 30},
	{SIM_JOB_SLOW, 3000, 2000},
	{SIM_DEVICE_FAIL, 800, 150},
	{SIM_NO_MEMORY, 1500, 80},
	{SIM_KILL, 7000, 30},
	{SIM_CUT, 7000, 30},
	{SIM_JUMP, 1500, 10},
	{SIM_FREEZE, 2500, 60},
	{SIM_EARLY, 2500, 4000},
	{SIM_CANCEL, 2500, 3000},
	{SIM_FULL, 1500, 20},
	{SIM_ROT, 2000, 7000},
	{SIM_LOST_WRITE, 1000, 200},
	{SIM_ASTRAY, 1000, 200},
	{SIM_STALE_READ, 800, 100},
};

/*
 * Every run has a few kinds of trouble only: where everything fails all the time, nothing gets far
 * enough to go wrong in an interesting way.
 */
static void pick_mix(struct sim *sim)
{
	for (size_t i = 0; i < CKPT_COUNT(swarm); i++)
		if (sim_chance(sim, swarm[i].runs))
			sim->mix[swarm[i].kind] = (unsigned)sim_between(sim, 1, swarm[i].most);
	/* From another stream than all else: runs without it are what they were before there was any. */
	uint64_t aside = sim_mix64(sim->seed);
	if (aside % 10000 < 1200)
		sim->mix[SIM_EIO_FILE] = 1 + (unsigned)(sim_mix64(aside) % 400);
	aside = sim_mix64(aside + 1);
	if (aside % 10000 < 1500)
		sim->mix[SIM_GPU_STILL] = 1 + (unsigned)(sim_mix64(aside) % 100);
	sim->mix[SIM_READERS] = 2500;
	sim->mix[SIM_RIVALS] = 2000;
	sim->mix[SIM_ZOMBIES] = 3000;
	sim->mix[SIM_SISTERS] = 1500;
	if (sim_chance(sim, 1500))
		sim->mix[SIM_RACES] = 5000;
}

static void told_of_hit(void *user, const char *path, bool passing)
{
	struct sim_rank *rank = user;

	rank->world->counts.lies++;
	oracle_damaged(&rank->oracle, path, passing);
}

static void pick_ranks(struct world *world)
{
	struct sim *sim = &world->sim;
	unsigned more = (unsigned)sim_between(sim, 1, WORLD_RANKS - 1);

	world->rank_count = 1 + (sim_fault(sim, SIM_SISTERS) ? more : 0);
	for (unsigned i = 0; i < world->rank_count; i++) {
		struct sim_rank *rank = &world->ranks[i];
		*rank = (struct sim_rank){.world = world, .number = i, .lives = world->plan.lives};
		/* Two of them may be on one machine, and lose their power together. */
		rank->home = 1 + (unsigned)sim_below(sim, i + 1);
		rank->disk = sim_disk_new(sim);
		rank->spawn_ns = sim->now_ns;
		sim_disk_tell(rank->disk, told_of_hit, rank);
		oracle_start(&rank->oracle, sim);
		sim_shapes_pick(sim, rank->shapes);
		sim_shapes_place(rank->shapes, sim_mix64(sim->seed + (uint64_t)i * 77 + 7));
		for (unsigned k = 0; k < SIM_SHAPES; k++)
			rank->shapes[k].slow = world->plan.delta;
		rank->oracle.chains = world->plan.delta;
		sim_disk_set_space(rank->disk, world->plan.space);
	}
}

void world_pick(struct world *world)
{
	struct sim *sim = &world->sim;
	struct world_plan *plan = &world->plan;

	pick_mix(sim);
	plan->align = sim_chance(sim, 5000) ? 512 : 4096;
	plan->direct = sim_chance(sim, 7000);
	plan->refuse_direct = sim_chance(sim, 500);
	plan->refuse_allocate = sim_chance(sim, 500);
	plan->keep_last = sim_chance(sim, 4000) ? 0 : sim_between(sim, 1, 3);
	plan->keep_every = sim_chance(sim, 3000) ? sim_between(sim, 2, 6) : 0;
	plan->timeout_ms = 2000;
	plan->lives = (unsigned)sim_between(sim, 1, 6);
	plan->saves = (unsigned)sim_between(sim, 1, 8);
	plan->zombies = sim_fault(sim, SIM_ZOMBIES);
	plan->rivals = sim_fault(sim, SIM_RIVALS);
	plan->readers = sim_fault(sim, SIM_READERS);
	plan->calm = sim_chance(sim, 5000);
	/* By the number of the seed, so that the others draw what they have always drawn. */
	plan->repairs = sim->seed % 16 == REPAIRS || sim->seed / 1000000 == 79;
	plan->delta = sim->seed / 1000000 == 75;
	plan->encodes = sim->seed / 1000000 == 74 || plan->delta;
	sim_pool_keep(plan->delta);
	/* Of a state that changes little the few bytes that are sampled may be the same. */
	if (plan->delta)
		sim->mix[SIM_EARLY] = 0;
	plan->space = UINT64_MAX;
	plan->events = (unsigned)sim_between(sim, 500, 6000);
	if (plan->zombies && !sim->mix[SIM_FREEZE])
		sim->mix[SIM_FREEZE] = 30;
	/* Who removes while somebody on another machine opens is told apart by locks only. */
	if (sim->mix[SIM_RACES])
		plan->keep_last = 0;
	uint64_t space = sim_between(sim, 20000, 300000);
	if (sim->mix[SIM_FULL] && !(sim->without >> SIM_FULL & 1)) {
		plan->space = space;
		sim->fired[SIM_FULL]++;
	}
	pick_ranks(world);
}
