/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of the simulated world: who lives, and what happens next. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim_memory.h"

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

/* A run that has not ended by then never will. */
#define TURNS_MAX 1000000
/* Undisturbed, everybody comes to an end by then: the last requests that were stuck included. */
#define CALM_NS   (120 * SECOND)

bool world_may_fail(const struct world *world, int code)
{
	const uint64_t *fired = world->sim.fired;

	if (world->phase == WORLD_HEALED)
		return false;
	switch (code) {
	case -EIO:
		return fired[SIM_EIO_WRITE] || fired[SIM_EIO_READ] || fired[SIM_EIO_SYNC] ||
		       fired[SIM_EIO_DIR] || fired[SIM_EIO_OTHER] || fired[SIM_EIO_FILE];
	case -ENOMEM:
		return fired[SIM_NO_MEMORY];
	case -ENOSPC:
		return fired[SIM_FULL];
	case -ETIMEDOUT:
		return fired[SIM_STUCK] || fired[SIM_SLOW] || fired[SIM_HANG] || fired[SIM_JUMP] ||
		       fired[SIM_FREEZE] || fired[SIM_JOB_SLOW] || fired[SIM_GPU_STILL];
	case -EBUSY:
		/* What was given up waiting for goes on. */
		return world->counts.abandoned > 0;
	case CKPT_EDEVICE:
		return fired[SIM_DEVICE_FAIL];
	case -EROFS:
		return fired[SIM_EIO_DIR];
	default:
		/* Who has a successor loses files and directories under its hands. */
		return (world->plan.zombies || fired[SIM_RACES]) &&
		       (code == -ENOENT || code == -EEXIST || code == CKPT_EFENCED ||
			       code == CKPT_EINUSE);
	}
}

struct sim_proc *world_other_writer(const struct sim_rank *rank, const struct sim_proc *proc)
{
	struct sim_proc *const *procs = &rank->world->procs[rank->number * WORLD_SEATS];

	for (unsigned i = 0; i < WORLD_SEATS; i++)
		if (procs[i] && procs[i] != proc && !procs[i]->user.config.reader)
			return procs[i];
	return NULL;
}

bool world_rivalled(const struct world *world)
{
	for (unsigned i = 0; i < world->rank_count; i++)
		if (world->ranks[i].rivalled)
			return true;
	return false;
}

void world_excite(struct world *world)
{
	world->exciting = 12;
}

unsigned world_crowd(const struct sim_rank *rank)
{
	struct sim_proc *const *procs = &rank->world->procs[rank->number * WORLD_SEATS];
	unsigned count = 0;

	for (unsigned i = 0; i < WORLD_SEATS; i++)
		count += procs[i] != NULL;
	return count;
}

static unsigned crowd_of_all(const struct world *world)
{
	unsigned count = 0;

	for (unsigned i = 0; i < world->rank_count; i++)
		count += world_crowd(&world->ranks[i]);
	return count;
}

/* What the newcomer may rely on, and what the others may rely on no more. */
static void introduce(struct sim_proc *fresh)
{
	struct sim_proc *const *procs = &fresh->world->procs[fresh->rank->number * WORLD_SEATS];

	for (unsigned i = 0; i < WORLD_SEATS; i++) {
		struct sim_proc *other = procs[i];
		if (!other || other == fresh)
			continue;
		other->user.used = true;
		if (other->node != fresh->node)
			other->user.view.locks = fresh->user.view.locks = false;
		if (!fresh->user.config.reader)
			other->user.view.alone = false;
		if (!other->user.config.reader && other->awaits != fresh->id)
			fresh->user.view.alone = false;
	}
}

struct sim_proc *world_spawn(struct sim_rank *rank, unsigned node, bool reader)
{
	struct world *world = rank->world;
	struct sim *sim = &world->sim;
	bool healed = world->phase == WORLD_HEALED;
	struct sim_user_config config = {.reader = reader, .careful = healed && !reader};

	config.saves = config.careful ? 2 : (unsigned)sim_between(sim, 1, world->plan.saves);
	config.anew = !reader && (rank->anew || sim_chance(sim, healed ? 0 : 150));
	struct sim_proc *proc = proc_start(rank, node, &config);
	if (proc)
		introduce(proc);
	return proc;
}

void world_schedule(struct sim_rank *rank)
{
	struct sim *sim = &rank->world->sim;

	rank->spawn_ns = sim->now_ns + sim_below(sim, 60 * MILLISECOND);
}

/* The job starts again: now and then twice, on two machines. */
static void respawn(struct sim_rank *rank)
{
	struct world *world = rank->world;
	struct sim *sim = &world->sim;

	rank->lives--;
	(void)world_spawn(rank, rank->home, false);
	if (world->phase != WORLD_WILD || rank->lives == 0 || world_crowd(rank) == WORLD_SEATS ||
		!sim_fault(sim, SIM_RACES))
		return;
	rank->lives--;
	(void)world_spawn(rank, world->next_id + 100, false);
}

static bool awaited(const struct world *world, unsigned id)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i] && world->procs[i]->id == id)
			return world->procs[i]->user.generation == 0;
	return false;
}

static void end_proc(struct sim_proc *proc)
{
	struct sim_rank *rank = proc->rank;

	if (proc->user.left_behind) {
		proc->world->counts.abandoned++;
		proc_kill(proc);
	} else {
		proc_reap(proc);
	}
	world_schedule(rank);
}

/* Who has frozen long enough goes on; who has closed is gone. */
static void look_after(struct world *world)
{
	for (unsigned i = 0; i < world->rank_count * WORLD_SEATS; i++) {
		struct sim_proc *proc = world->procs[i];
		if (!proc)
			continue;
		if (proc->frozen && proc->awaits && !awaited(world, proc->awaits)) {
			proc->awaits = 0;
			proc->thaw_ns = ckpt_min_u64(proc->thaw_ns, world->sim.now_ns);
		}
		if (proc->frozen && !proc->awaits && proc->thaw_ns <= world->sim.now_ns)
			world_thaw(proc);
		if (proc->user.left_behind || (proc->user.closed && !proc->inbox.head))
			end_proc(proc);
	}
}

/* One thing of all that could happen now. False: nothing can before the clock goes on. */
static bool do_something(struct world *world)
{
	struct sim *sim = &world->sim;
	unsigned ready[WORLD_PROCS] = {0};
	unsigned total = 0;

	for (unsigned i = 0; i < world->rank_count * WORLD_SEATS; i++) {
		ready[i] = world->procs[i] ? proc_ready(world->procs[i]) : 0;
		total += ready[i];
	}
	if (total == 0)
		return false;
	unsigned n = (unsigned)sim_below(sim, total);
	unsigned i = 0;
	for (; n >= ready[i]; i++)
		n -= ready[i];
	proc_do(world->procs[i], n);
	const char *what = sim->kept[(sim->events - 1) % SIM_KEPT].what;
	if (strcmp(what, "rename") == 0 || strcmp(what, "unlink") == 0)
		world->exciting = ckpt_max_u64(world->exciting, 3);
	sim->now_ns += sim_below(sim, 15 * MICROSECOND);
	return true;
}

/* A job that has nobody to do it starts again. */
static bool may_spawn(const struct sim_rank *rank)
{
	return rank->lives > 0 && !world_other_writer(rank, NULL) &&
	       world_crowd(rank) < WORLD_SEATS;
}

/* To the next moment at which something can happen. False: nothing ever will. */
static bool advance(struct world *world)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < world->rank_count; i++) {
		const struct sim_rank *rank = &world->ranks[i];
		next_ns = ckpt_min_u64(next_ns, sim_disk_land(rank->disk));
		if (may_spawn(rank))
			next_ns = ckpt_min_u64(next_ns, rank->spawn_ns);
	}
	for (unsigned i = 0; i < world->rank_count * WORLD_SEATS; i++)
		if (world->procs[i])
			next_ns = ckpt_min_u64(next_ns, proc_next_ns(world->procs[i]));
	if (next_ns == UINT64_MAX)
		return false;
	world->sim.now_ns = ckpt_max_u64(world->sim.now_ns, next_ns);
	return true;
}

static const char *what_it_waits_for(const struct sim_user *user)
{
	const char *what = user->wait.what;

	what = what ? what : user->save_wait.what;
	what = what ? what : user->reading.wait.what;
	return what ? what : "nothing that is known";
}

static void complain(struct world *world, const char *how)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			sim_violation(&world->sim, "p%u waits (%s) %s", world->procs[i]->id,
				what_it_waits_for(&world->procs[i]->user), how);
}

static void turn(struct world *world)
{
	struct sim *sim = &world->sim;

	look_after(world);
	for (unsigned i = 0; i < world->rank_count; i++) {
		struct sim_rank *rank = &world->ranks[i];
		(void)sim_disk_land(rank->disk);
		if (may_spawn(rank) && rank->spawn_ns <= sim->now_ns)
			respawn(rank);
	}
	if (world->phase == WORLD_WILD)
		world_trouble(world);
	if (do_something(world))
		return;
	/* Nothing, but perhaps for one that is to go on now. */
	look_after(world);
	if (!do_something(world) && !advance(world))
		complain(world, "for what will never come");
}

static void stop_trouble(struct world *world)
{
	memset(world->sim.mix, 0, sizeof(world->sim.mix));
	for (unsigned i = 0; i < world->rank_count; i++) {
		sim_disk_set_space(world->ranks[i].disk, UINT64_MAX);
		sim_disk_hang(world->ranks[i].disk, 0);
		world->ranks[i].lives = 0;
	}
}

/* Nothing goes wrong any more: whoever lives must come to an end by itself. */
static void calm(struct world *world)
{
	struct sim *sim = &world->sim;

	stop_trouble(world);
	world->phase = WORLD_CALM;
	world->calm_ns = sim->now_ns + CALM_NS;
	sim_tell(sim, 0, "calm", "", 0, 0, 0);
	for (unsigned i = 0; i < WORLD_PROCS; i++) {
		struct sim_proc *proc = world->procs[i];
		/* One that waits for its successor still does: that one relies on it. */
		if (proc && proc->frozen && !proc->awaits) {
			proc->thaw_ns = sim->now_ns;
			world_thaw(proc);
		}
	}
}

/* ... and one careful process of every rank looks at what is left. */
static void heal(struct world *world)
{
	struct sim *sim = &world->sim;

	for (unsigned i = 0; i < world->rank_count; i++)
		if (sim_chance(sim, 5000) || sim_disk_stopped(world->ranks[i].disk))
			world_cut(world, world->ranks[i].home);
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			proc_kill(world->procs[i]);
	/* A sync that they had under way may have stopped one more. */
	for (unsigned i = 0; i < world->rank_count; i++)
		if (sim_disk_stopped(world->ranks[i].disk))
			world_cut(world, world->ranks[i].home);
	stop_trouble(world);
	world->phase = WORLD_HEALED;
	sim_tell(sim, 0, "healed", "", 0, 0, 0);
	for (unsigned i = 0; i < world->rank_count; i++) {
		oracle_healed(&world->ranks[i].oracle);
		world->ranks[i].lives = 1;
		world->ranks[i].spawn_ns = sim->now_ns;
	}
}

static void clean_up(struct world *world)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			proc_kill(world->procs[i]);
	for (unsigned i = 0; i < world->rank_count; i++)
		sim_disk_free(world->ranks[i].disk);
	sim_memory_start(NULL);
	CKPT_ASSERT(sim_memory_empty());
}

static bool goes_on(struct world *world)
{
	bool more = crowd_of_all(world) > 0;

	if (++world->turns > TURNS_MAX)
		sim_violation(&world->sim, "the run does not end");
	if (world->phase == WORLD_CALM && world->sim.now_ns > world->calm_ns)
		complain(world, "though nothing has been in its way for minutes");
	for (unsigned i = 0; i < world->rank_count; i++)
		more |= world->ranks[i].lives > 0;
	return more && !world->sim.failed;
}

bool world_run(struct world *world, uint64_t seed, const struct sim_options *options)
{
	struct sim *sim = &world->sim;

	*world = (struct world){0};
	sim_start(sim, seed, options);
	sim_memory_start(sim);
	world_pick(world);
	while (sim->events < world->plan.events && goes_on(world))
		turn(world);
	if (!sim->failed && world->plan.calm)
		calm(world);
	while (world->phase == WORLD_CALM && goes_on(world))
		turn(world);
	if (!sim->failed)
		heal(world);
	while (goes_on(world))
		turn(world);
	clean_up(world);
	return !sim->failed;
}
