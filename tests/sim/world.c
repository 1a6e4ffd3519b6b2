/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of the simulated world: what there is, what happens next, and what goes wrong. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/naming.h"
#include "sim_memory.h"

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

/* A run that has not ended by then never will. */
#define TURNS_MAX 500000

/* One kind of trouble, present in some of the runs, more or less often. */
static unsigned maybe(struct sim *sim, unsigned runs_per_10000, unsigned most)
{
	return sim_chance(sim, runs_per_10000) ? (unsigned)sim_between(sim, 1, most) : 0;
}

/*
 * Every run has a few kinds of trouble only: where everything fails all the time, nothing gets far
 * enough to go wrong in an interesting way.
 */
static void pick_mix(struct sim *sim)
{
	sim->mix = (struct sim_mix){
		.eio_write = maybe(sim, 1500, 300),
		.eio_read = maybe(sim, 1000, 200),
		.eio_sync = maybe(sim, 2000, 1500),
		.eio_dir = maybe(sim, 2000, 1500),
		.eio_other = maybe(sim, 1500, 300),
		.short_io = maybe(sim, 3000, 3000),
		.stuck = maybe(sim, 1000, 60),
		.slow = maybe(sim, 3000, 1500),
		.job_slow = maybe(sim, 3000, 2000),
		.device_fail = maybe(sim, 800, 150),
		.no_memory = maybe(sim, 1500, 80),
		.kill = maybe(sim, 7000, 30),
		.cut = maybe(sim, 7000, 30),
		.jump = maybe(sim, 1500, 10),
		.freeze = maybe(sim, 2500, 60),
		.early = maybe(sim, 2500, 4000),
		.cancel = maybe(sim, 2500, 3000),
		.rot = maybe(sim, 2000, 7000),
		.space = UINT64_MAX,
	};
	if (sim_chance(sim, 1500))
		sim->mix.space = sim_between(sim, 20000, 300000);
}

static void pick_plan(struct world *world)
{
	struct sim *sim = &world->sim;
	struct world_plan *plan = &world->plan;

	plan->align = sim_chance(sim, 5000) ? 512 : 4096;
	plan->direct = sim_chance(sim, 7000);
	plan->refuse_direct = sim_chance(sim, 500);
	plan->refuse_allocate = sim_chance(sim, 500);
	plan->keep_last = sim_chance(sim, 4000) ? 0 : sim_between(sim, 1, 3);
	plan->keep_every = sim_chance(sim, 3000) ? sim_between(sim, 2, 6) : 0;
	plan->timeout_ms = 2000;
	plan->lives = (unsigned)sim_between(sim, 1, 6);
	plan->saves = (unsigned)sim_between(sim, 1, 8);
	plan->zombies = sim_chance(sim, 3000);
	plan->rivals = sim_chance(sim, 1500);
	plan->readers = sim_chance(sim, 2500);
	plan->events = (unsigned)sim_between(sim, 500, 6000);
	if (plan->zombies && !sim->mix.freeze)
		sim->mix.freeze = 30;
	world->lives = plan->lives;
}

bool world_may_fail(const struct world *world, int code)
{
	const struct sim_mix *mix = &world->sim.mix;

	if (world->healed)
		return false;
	switch (code) {
	case -EIO:
		return mix->eio_write || mix->eio_read || mix->eio_sync || mix->eio_dir ||
		       mix->eio_other;
	case -ENOMEM:
		return mix->no_memory;
	case -ENOSPC:
		return mix->space != UINT64_MAX;
	case -ETIMEDOUT:
		return mix->stuck || mix->slow || mix->jump || mix->freeze || mix->job_slow;
	case CKPT_EDEVICE:
		return mix->device_fail;
	case -EROFS:
		return mix->eio_dir;
	default:
		/* Who has a successor loses files and directories under its hands. */
		return world->plan.zombies && (code == -ENOENT || code == -EEXIST ||
						      code == CKPT_EFENCED || code == CKPT_EINUSE);
	}
}

struct sim_proc *world_other_writer(struct world *world, const struct sim_proc *proc)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++) {
		struct sim_proc *other = world->procs[i];
		if (other && other != proc && !other->user.config.reader)
			return other;
	}
	return NULL;
}

void world_excite(struct world *world)
{
	world->exciting = 12;
}

static unsigned count_procs(const struct world *world)
{
	unsigned count = 0;

	for (unsigned i = 0; i < WORLD_PROCS; i++)
		count += world->procs[i] != NULL;
	return count;
}

/* What the newcomer may rely on, and what the others may rely on no more. */
static void introduce(struct world *world, struct sim_proc *fresh)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++) {
		struct sim_proc *other = world->procs[i];
		if (!other || other == fresh)
			continue;
		if (other->domain != fresh->domain)
			other->user.view.locks = fresh->user.view.locks = false;
		if (!fresh->user.config.reader)
			other->user.view.alone = false;
		if (!other->user.config.reader && other->awaits != fresh->id)
			fresh->user.view.alone = false;
	}
}

static struct sim_proc *spawn(struct world *world, unsigned domain, bool reader)
{
	struct sim *sim = &world->sim;
	struct sim_user_config config = {.reader = reader, .careful = world->healed && !reader};

	config.saves = config.careful ? 2 : (unsigned)sim_between(sim, 1, world->plan.saves);
	config.anew = !reader && (world->anew || sim_chance(sim, world->healed ? 0 : 150));
	struct sim_proc *proc = proc_start(world, domain, &config);
	if (proc)
		introduce(world, proc);
	return proc;
}

static void schedule_spawn(struct world *world)
{
	world->spawn_ns = world->sim.now_ns + sim_below(&world->sim, 60 * MILLISECOND);
}

static void kill_one(struct world *world)
{
	struct sim_proc *victim = world->procs[sim_below(&world->sim, WORLD_PROCS)];

	if (!victim)
		return;
	proc_kill(victim);
	schedule_spawn(world);
}

static void rot_some(struct world *world)
{
	struct sim *sim = &world->sim;
	char below[CKPT_PATH_MAX];
	char path[256];

	for (uint64_t n = sim_between(sim, 1, 3); n > 0; n--) {
		const struct oracle *oracle = &world->oracle;
		if (oracle->record_count == 0)
			return;
		const struct oracle_record *r =
			&oracle->records[sim_below(sim, oracle->record_count)];
		ckpt_name_generation(below, r->generation);
		if (!sim_disk_rot(world->disk, below, path, sizeof(path)))
			continue;
		sim_note(sim, 0, "rot", path, 0, 0, 0);
		oracle_damaged(&world->oracle, path);
	}
}

static void cut_power(struct world *world)
{
	struct sim *sim = &world->sim;
	struct sim_cut cut = sim_cut_pick(sim);

	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			proc_kill(world->procs[i]);
	sim_note(sim, 0, "POWER CUT", "", cut.data, cut.names, cut.sizes);
	sim_disk_cut(world->disk, &cut);
	if (sim_chance(sim, sim->mix.rot))
		rot_some(world);
	schedule_spawn(world);
}

static void jump(struct world *world)
{
	uint64_t ns = sim_below(&world->sim, 10 * SECOND);

	world->sim.now_ns += ns;
	sim_note(&world->sim, 0, "jump", "", (int64_t)ns, 0, 0);
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			user_excuse(&world->procs[i]->user, ns);
}

static void thaw(struct sim_proc *proc)
{
	const struct sim *sim = &proc->world->sim;

	proc->frozen = false;
	proc->awaits = 0;
	user_excuse(&proc->user, sim->now_ns - proc->thaw_ns + SECOND);
	sim_note(&proc->world->sim, proc->id, "thaws", "", 0, 0, 0);
}

/*
 * A process stands still, as when its machine does; and while it does, somebody elsewhere may take
 * over. With retention it stays so until the successor has claimed: to take a file away from one who
 * has read the store and not claimed yet is a race that locks decide, and they do not reach so far.
 */
static void freeze_one(struct world *world)
{
	struct sim *sim = &world->sim;
	struct sim_proc *proc = world->procs[sim_below(sim, WORLD_PROCS)];

	if (!proc || proc->frozen || proc->user.config.reader || !proc->user.generation ||
		proc->core.closing || ckpt_task_active(&proc->user.claimer.command.task))
		return;
	bool successor = world->plan.zombies && world->lives > 0 &&
			 !world_other_writer(world, proc) && count_procs(world) < WORLD_PROCS;
	if (successor && world->plan.keep_last > 0 && proc->core.keeper)
		return;
	proc->frozen = true;
	proc->thaw_ns = sim->now_ns + sim_below(sim, 300 * MILLISECOND);
	sim_note(sim, proc->id, "freezes", "", 0, 0, 0);
	user_excuse(&proc->user, proc->thaw_ns - sim->now_ns);
	if (!successor)
		return;
	world->lives--;
	if (world->plan.keep_last > 0)
		proc->awaits = world->next_id + 1;
	(void)spawn(world, world->next_id + 100, false);
}

static bool awaited(const struct world *world, unsigned id)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i] && world->procs[i]->id == id)
			return world->procs[i]->user.generation == 0;
	return false;
}

/* Who has frozen long enough goes on; who has closed is gone. */
static void look_after(struct world *world)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++) {
		struct sim_proc *proc = world->procs[i];
		if (proc && proc->frozen && proc->awaits && !awaited(world, proc->awaits)) {
			proc->awaits = 0;
			proc->thaw_ns = ckpt_min_u64(proc->thaw_ns, world->sim.now_ns);
		}
		if (proc && proc->frozen && !proc->awaits && proc->thaw_ns <= world->sim.now_ns)
			thaw(proc);
		if (proc && proc->user.closed && !proc->inbox.head) {
			proc_reap(proc);
			schedule_spawn(world);
		}
	}
}

/* Somebody is there to be disturbed, and there is room for one more. */
static bool has_company(const struct world *world)
{
	return count_procs(world) > 0 && count_procs(world) < WORLD_PROCS;
}

static void make_trouble(struct world *world)
{
	struct sim *sim = &world->sim;
	unsigned more = world->exciting ? 15 : 1;

	if (world->exciting)
		world->exciting--;
	if (sim_chance(sim, sim->mix.kill * more))
		kill_one(world);
	/* Somebody starts the machine again whose file system has stopped. */
	if (sim_chance(sim, sim->mix.cut * more) ||
		(sim_disk_stopped(world->disk) && sim_chance(sim, 300)))
		cut_power(world);
	if (sim_chance(sim, sim->mix.jump))
		jump(world);
	if (sim_chance(sim, sim->mix.freeze))
		freeze_one(world);
	if (sim->mix.space != UINT64_MAX && sim_chance(sim, 20))
		sim_disk_set_space(world->disk,
			sim_chance(sim, 5000) ? UINT64_MAX
					      : sim_disk_used(world->disk) + sim_below(sim, 60000));
	if (has_company(world) && world->plan.readers && sim_chance(sim, 15))
		(void)spawn(world, 1, true);
	if (has_company(world) && world->plan.rivals && world->lives > 0 && sim_chance(sim, 15)) {
		world->lives--;
		(void)spawn(world, 1, false);
	}
}

/* One thing of all that could happen now. False: nothing can before the clock goes on. */
static bool do_something(struct world *world)
{
	struct sim *sim = &world->sim;
	unsigned ready[WORLD_PROCS] = {0};
	unsigned total = 0;

	for (unsigned i = 0; i < WORLD_PROCS; i++) {
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

static bool any_writer(const struct world *world)
{
	return world_other_writer((struct world *)world, NULL) != NULL;
}

/* A job that has nobody to do it starts again. */
static bool may_spawn(const struct world *world)
{
	return !any_writer(world) && world->lives > 0 && count_procs(world) < WORLD_PROCS;
}

/* To the next moment at which something can happen. False: nothing ever will. */
static bool advance(struct world *world)
{
	uint64_t next_ns = sim_disk_land(world->disk);

	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			next_ns = ckpt_min_u64(next_ns, proc_next_ns(world->procs[i]));
	if (may_spawn(world))
		next_ns = ckpt_min_u64(next_ns, world->spawn_ns);
	if (next_ns == UINT64_MAX)
		return false;
	world->sim.now_ns = ckpt_max_u64(world->sim.now_ns, next_ns);
	return true;
}

static void turn(struct world *world)
{
	struct sim *sim = &world->sim;

	look_after(world);
	(void)sim_disk_land(world->disk);
	if (may_spawn(world) && world->spawn_ns <= sim->now_ns) {
		world->lives--;
		(void)spawn(world, 1, false);
	}
	if (!world->healed)
		make_trouble(world);
	if (do_something(world))
		return;
	/* Nothing, but perhaps for one that is to go on now. */
	look_after(world);
	if (do_something(world) || advance(world) || count_procs(world) == 0)
		return;
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			sim_violation(sim, "p%u waits (%s) for what will never come",
				world->procs[i]->id,
				world->procs[i]->user.wait.what ? world->procs[i]->user.wait.what
								: "in a save or restore");
}

/* Nothing goes wrong any more, and one careful process looks at what is left. */
static void heal(struct world *world)
{
	struct sim *sim = &world->sim;
	bool cut = sim_chance(sim, 5000) || sim_disk_stopped(world->disk);

	if (cut)
		cut_power(world);
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			proc_kill(world->procs[i]);
	world->healed = true;
	sim->mix = (struct sim_mix){.space = UINT64_MAX};
	sim_disk_set_space(world->disk, UINT64_MAX);
	sim_note(sim, 0, "healed", "", 0, 0, 0);
	world->lives = 1;
	world->spawn_ns = sim->now_ns;
}

static void clean_up(struct world *world)
{
	for (unsigned i = 0; i < WORLD_PROCS; i++)
		if (world->procs[i])
			proc_kill(world->procs[i]);
	sim_disk_free(world->disk);
	sim_memory_start(NULL);
	CKPT_ASSERT(sim_memory_empty());
}

static bool goes_on(struct world *world)
{
	if (++world->turns > TURNS_MAX)
		sim_violation(&world->sim, "the run does not end");
	return !world->sim.failed && (count_procs(world) > 0 || world->lives > 0);
}

bool world_run(struct world *world, uint64_t seed, bool verbose)
{
	struct sim *sim = &world->sim;

	*world = (struct world){0};
	sim_start(sim, seed, verbose);
	sim_memory_start(sim);
	world->disk = sim_disk_new(sim);
	oracle_start(&world->oracle, sim);
	pick_mix(sim);
	pick_plan(world);
	sim_shapes_pick(sim, world->shapes);
	sim_disk_set_space(world->disk, sim->mix.space);
	world->spawn_ns = sim->now_ns;
	while (sim->events < world->plan.events && goes_on(world))
		turn(world);
	if (!sim->failed)
		heal(world);
	while (goes_on(world))
		turn(world);
	clean_up(world);
	return !sim->failed;
}
