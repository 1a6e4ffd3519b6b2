/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong with machines, disks and processes as a whole. */
#include "audit.h"
#include "format/naming.h"
#include "world.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

/* Of a successor elsewhere: a machine of its own each time. */
#define FOREIGN 100

static struct sim_rank *any_rank(struct world *world)
{
	return &world->ranks[world->rank_count > 1 ? sim_below(&world->sim, world->rank_count) : 0];
}

static void kill_one(struct world *world)
{
	struct sim_proc *victim =
		world->procs[sim_below(&world->sim, world->rank_count * WORLD_SEATS)];

	if (!victim)
		return;
	struct sim_rank *rank = victim->rank;
	proc_kill(victim);
	audit_visible(&world->sim, rank->disk, &rank->oracle);
	world_repair(rank);
	world_schedule(rank);
}

static void rot_some(struct sim_rank *rank)
{
	struct sim *sim = &rank->world->sim;
	const struct oracle *oracle = &rank->oracle;
	char below[CKPT_PATH_MAX];

	for (uint64_t n = sim_between(sim, 1, 3); n > 0 && oracle->record_count > 0; n--) {
		const struct oracle_record *r =
			&oracle->records[sim_below(sim, oracle->record_count)];
		ckpt_name_generation(below, r->generation);
		sim_disk_rot(rank->disk, below);
	}
}

static void cut_rank(struct sim_rank *rank)
{
	struct world *world = rank->world;
	struct sim *sim = &world->sim;
	struct sim_cut cut = sim_cut_pick(sim);

	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i] && world->procs[i]->rank == rank)
			proc_kill(world->procs[i]);
	sim_tell(sim, 0, "POWER CUT", "", cut.data, cut.names, cut.sizes);
	oracle_leave(&rank->oracle, UINT64_MAX);
	sim_disk_cut(rank->disk, &cut);
	audit_visible(sim, rank->disk, &rank->oracle);
	if (sim_fault(sim, SIM_ROT))
		rot_some(rank);
	world_repair(rank);
	world_schedule(rank);
}

void world_cut(struct world *world, unsigned node)
{
	for (unsigned i = 0; i < world->rank_count; i++)
		if (world->ranks[i].home == node)
			cut_rank(&world->ranks[i]);
	for (unsigned i = 0; i < WORLD_PROCS; i++) {
		struct sim_proc *proc = world->procs[i];
		if (!proc || proc->node != node)
			continue;
		struct sim_rank *rank = proc->rank;
		proc_kill(proc);
		world_schedule(rank);
	}
}

/* Of a machine that has a disk; or of one that only reaches it. */
static void cut_one(struct world *world)
{
	struct sim *sim = &world->sim;
	const struct sim_proc *proc = NULL;

	if (world->plan.zombies && sim_chance(sim, 3000))
		proc = world->procs[sim_below(sim, world->rank_count * WORLD_SEATS)];
	world_cut(world, proc ? proc->node : any_rank(world)->home);
}

static void jump(struct world *world)
{
	uint64_t ns = sim_below(&world->sim, 10 * SECOND);

	world->sim.now_ns += ns;
	sim_tell(&world->sim, 0, "jump", "", (int64_t)ns, 0, 0);
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			user_excuse(&world->procs[i]->user, ns);
}

void world_thaw(struct sim_proc *proc)
{
	const struct sim *sim = &proc->world->sim;

	proc->frozen = false;
	proc->awaits = 0;
	user_excuse(&proc->user, sim->now_ns - proc->thaw_ns + SECOND);
	sim_tell(&proc->world->sim, proc->id, "thaws", "", 0, 0, 0);
}

/*
 * A process stands still, as when its machine does; and while it does, somebody elsewhere may take
 * over. With retention it stays so until the successor has claimed: to take a file away from one who
 * has read the store and not claimed yet is a race that locks decide, and they do not reach so far.
 */
static void freeze_one(struct world *world)
{
	struct sim *sim = &world->sim;
	struct sim_proc *proc = world->procs[sim_below(sim, world->rank_count * WORLD_SEATS)];

	if (!proc || proc->frozen || proc->user.config.reader || !proc->user.generation ||
		proc->core.closing || proc->user.claiming)
		return;
	bool successor = world->plan.zombies && proc->rank->lives > 0 &&
			 !world_other_writer(proc->rank, proc) &&
			 world_crowd(proc->rank) < WORLD_SEATS;
	if (successor && world->plan.keep_last > 0 && proc->core.gc)
		return;
	proc->frozen = true;
	oracle_leave(&proc->rank->oracle, UINT64_MAX);
	proc->thaw_ns = sim->now_ns + sim_below(sim, 300 * MILLISECOND);
	sim_tell(sim, proc->id, "freezes", "", 0, 0, 0);
	user_excuse(&proc->user, proc->thaw_ns - sim->now_ns);
	if (!successor)
		return;
	proc->rank->lives--;
	if (world->plan.keep_last > 0)
		proc->awaits = world->next_id + 1;
	(void)world_spawn(proc->rank, FOREIGN + world->next_id, false);
}

/* The disk answers nothing for a while: shorter than any deadline, or longer than all. */
static void hang_one(struct world *world)
{
	struct sim *sim = &world->sim;
	uint64_t ns = sim_below(sim, sim_chance(sim, 5000) ? 3 * SECOND : 40 * SECOND);

	sim_tell(sim, 0, "HANGS", "", (int64_t)ns, 0, 0);
	sim_disk_hang(any_rank(world)->disk, sim->now_ns + ns);
}

static void fill(struct world *world)
{
	struct sim *sim = &world->sim;
	struct sim_disk *disk = any_rank(world)->disk;

	sim_disk_set_space(disk,
		sim_chance(sim, 5000) ? UINT64_MAX : sim_disk_used(disk) + sim_below(sim, 60000));
}

/* Somebody starts beside those who are there. */
static void add_company(struct world *world)
{
	struct sim *sim = &world->sim;
	struct sim_rank *rank = any_rank(world);
	unsigned crowd = world_crowd(rank);

	if (crowd == 0 || crowd == WORLD_SEATS)
		return;
	if (world->plan.readers && sim_chance(sim, 15)) {
		(void)world_spawn(rank, rank->home, true);
	} else if (world->plan.rivals && rank->lives > 0 && sim_chance(sim, 15)) {
		rank->lives--;
		(void)world_spawn(rank, rank->home, false);
	}
}

void world_trouble(struct world *world)
{
	struct sim *sim = &world->sim;
	unsigned more = world->exciting ? 15 : 1;

	if (world->exciting)
		world->exciting--;
	if (sim_fault_times(sim, SIM_KILL, more))
		kill_one(world);
	if (sim_fault_times(sim, SIM_CUT, more))
		cut_one(world);
	/* Somebody starts the machine again whose file system has stopped. */
	for (unsigned i = 0; i < world->rank_count; i++)
		if (sim_disk_stopped(world->ranks[i].disk) && sim_chance(sim, 300))
			world_cut(world, world->ranks[i].home);
	if (sim_fault(sim, SIM_JUMP))
		jump(world);
	if (sim_fault(sim, SIM_FREEZE))
		freeze_one(world);
	if (sim_fault(sim, SIM_HANG))
		hang_one(world);
	if (sim_fault(sim, SIM_FULL))
		fill(world);
	if (world->plan.readers || world->plan.rivals)
		add_company(world);
}
