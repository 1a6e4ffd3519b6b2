/* SPDX-License-Identifier: Apache-2.0 */
/* A training and its bucket: the scheduler, who lives, and what goes wrong; see remote.h. */
#include "remote.h"
#include "sim_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
#define TURNS_MAX   2000000
#define ROOT        (1 << 20) /* stands for the descriptor of the store's directory */
/* Requests of a machine that was lost have arrived by then, or never do. */
#define MOVE_NS     (61 * SECOND)

static struct ckpt_log *the_log;

/* Processes. */

static void tell_log(struct remote_proc *p)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_log_next(the_log, 0, &record) == 0)
		sim_note(&p->world->sim, p->id, "log", record.message, record.level, 0, 0);
}

static int open_core(struct remote_proc *p)
{
	const struct remote *world = p->world;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_core_parts parts = {.env = &p->env.env,
		.io = sim_io_of(p->io),
		.root = -1,
		.label = "s3://" REMOTE_BUCKET "/run",
		.devices = &p->device.devices,
		.pool = p->pool,
		.log = the_log};
	struct ckpt_core_config config = {.block_bytes = 4096,
		.chunk_bytes = 1024,
		.keep_last = world->keep_last,
		.keep_every = world->keep_every,
		.remote_keep_last = world->remote_keep_last,
		.remote_keep_every = world->remote_keep_every,
		.remote_grace_s = REMOTE_GRACE_S,
		.save_timeout_ms = 40000,
		.world = 1,
		.encoders = world->encodes && sim_mix64(world->sim.seed + p->id) % 3 == 0 ? 2 : 0,
		.remote_encoding =
			world->encodes ? sim_mix64(world->sim.seed + p->id + 1000) % 3 : 0,
		.read_only = p->kind != REMOTE_TRAIN};

	remote_ranks_config(p, &config);
	sim_memory_enter(p->id);
	bool joined = remote_net_join(p);
	CKPT_ASSERT(joined);
	if (p->kind == REMOTE_TRAIN) {
		parts.root = ROOT;
		parts.remote = (struct ckpt_core_place){.root = -1,
			.bucket = &p->client,
			.label = parts.label,
			.url = "s3://bucket/run"};
		parts.label = "/store";
	} else {
		parts.bucket = &p->client;
	}
	int r = ckpt_modules_open(&p->core, &parts, &config, &err);
	if (r == 0)
		remote_ranks_meet(p);
	sim_memory_enter(0);
	return r;
}

static struct sim_disk *disk_of(const struct remote_proc *p)
{
	return p->world->homes[p->home].disks[p->store];
}

static void free_proc(struct remote_proc *p)
{
	sim_state_free(&p->live);
	for (unsigned i = 0; i < REMOTE_RANKS; i++)
		sim_state_free(&p->into[i]);
	sim_env_die(&p->env);
	(void)ckpt_inbox_take(&p->inbox);
	ckpt_inbox_destroy(&p->inbox);
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (p->world->procs[i] == p)
			p->world->procs[i] = NULL;
	remote_job_stir(p);
	if (p->kind == REMOTE_TRAIN || p->kind == REMOTE_BRING)
		p->world->spawn_ns = ckpt_max_u64(p->world->spawn_ns,
			p->world->sim.now_ns + sim_below(&p->world->sim, 2 * SECOND));
	free(p);
}

static void kill_proc(struct remote_proc *p)
{
	sim_tell(&p->world->sim, p->id, "dies", "", p->kind, 0, 0);
	sim_memory_enter(0);
	remote_job_break(p);
	if (remote_is_rank(p))
		crowd_exchange_forget(p->core.exchange);
	bucket_http_die(&p->net);
	sim_io_die(p->io);
	sim_pool_sweep(p->pool);
	sim_memory_sweep(p->id);
	free_proc(p);
}

/* It has closed: nothing of it may be left. */
static void reap_proc(struct remote_proc *p)
{
	struct sim *sim = &p->world->sim;
	struct sim_disk *disk = disk_of(p);

	sim_tell(sim, p->id, "exits", "", p->kind, 0, p->failure);
	tell_log(p);
	if (!ckpt_core_idle(&p->core) || p->env.head || p->net.under_way > 0 ||
		ckpt_pool_free(p->pool) != ckpt_pool_slots(p->pool)) {
		sim_violation(sim, "p%u is closed, and something of it is under way", p->id);
		kill_proc(p);
		return;
	}
	sim_memory_enter(p->id);
	ckpt_modules_close(&p->core);
	remote_net_leave(p);
	sim_memory_enter(0);
	bucket_http_clear(&p->net);
	if (sim_disk_open_count(disk, p->id))
		sim_violation(sim, "p%u is closed with files open", p->id);
	if (sim_memory_blocks(p->id))
		sim_violation(sim, "p%u is closed with %u blocks of memory not freed", p->id,
			sim_memory_blocks(p->id));
	sim_pool_sweep(p->pool);
	sim_memory_sweep(p->id);
	if (sim_io_in_flight(p->io))
		sim_io_forget(p->io);
	else
		sim_io_free(p->io);
	sim_disk_drop(disk, p->id);
	free_proc(p);
}

/* `job` NULL: of no training; `rank` of that, or a store of the home. */
static void start_proc(
	struct remote *world, enum remote_kind kind, struct remote_job *job, uint32_t rank)
{
	struct remote_proc *p = sim_alloc(sizeof(*p));
	unsigned place = 0;

	while (place < REMOTE_PROCS && world->procs[place])
		place++;
	CKPT_ASSERT(place < REMOTE_PROCS);
	world->procs[place] = p;
	*p = (struct remote_proc){.world = world,
		.kind = kind,
		.home = world->home,
		.store = rank % world->homes[world->home].stores,
		.job = job,
		.rank = job ? rank : 0,
		.id = ++world->next_id,
		.born_at = ++world->time,
		.careful = world->healed,
		.saves = world->healed ? 2 : (unsigned)sim_between(&world->sim, 1, 6),
		.deadline_ns = UINT64_MAX};
	unsigned machine = remote_machine(world, p->home, p->store, p->rank);
	struct sim_io_config io = {.inbox = &p->inbox,
		.owner = p->id,
		.node = machine,
		.root = ROOT,
		.align = 512,
		.direct = true,
		.stuck_ns = 100 * SECOND};
	int r = ckpt_inbox_init(&p->inbox);
	CKPT_ASSERT(r == 0);
	if (job && job->saves)
		p->saves = job->saves;
	sim_env_init(&p->env, &world->sim, &p->inbox, p->id, machine);
	sim_device_init(&p->device, &p->env);
	p->io = sim_io_new(&world->sim, disk_of(p), &io);
	p->pool = sim_pool_open(8, 4096);
	sim_tell(&world->sim, p->id, "starts", "", kind, world->home, rank);
	remote_life_start(p);
	r = open_core(p);
	CKPT_ASSERT(r == 0);
}

static bool core_due(const struct remote_proc *p)
{
	return p->inbox.head || p->kicked || p->deadline_ns <= p->world->sim.now_ns;
}

static bool life_due(const struct remote_proc *p)
{
	return p->poked || p->wake_ns <= p->world->sim.now_ns;
}

static unsigned ready(const struct remote_proc *p)
{
	unsigned n = sim_io_ready(p->io);

	return p->frozen ? n : n + sim_env_ready(&p->env) + core_due(p) + life_due(p);
}

/* What is lent comes back at once: a save counts on it, and whoever borrows finds what was left. */
static void check_staging(struct remote_proc *p)
{
	const struct ckpt_save *save = p->core.save;

	if (p->core.upload_queue && p->core.upload_queue->misled > 0)
		sim_violation(&p->world->sim,
			"p%u has read what is no longer there out of its staging memory", p->id);
	if (save && save->lanes && !save->hold &&
		save->plan->block_count <= ckpt_pool_slots(p->pool))
		sim_violation(&p->world->sim,
			"a save of p%u has room for its shard, and streams it", p->id);
}

static void step_core(struct remote_proc *p)
{
	p->net.now_ns = p->world->sim.now_ns;
	p->kicked = false;
	uint64_t deadline_ns = ckpt_core_step(&p->core);

	p->deadline_ns = deadline_ns == UINT64_MAX ? deadline_ns : deadline_ns - p->env.ahead_ns;
	check_staging(p);
	remote_observe(p);
	p->poked = true;
	tell_log(p);
}

static void do_one(struct remote_proc *p, unsigned n)
{
	unsigned requests = sim_io_ready(p->io);
	unsigned jobs = p->frozen ? 0 : sim_env_ready(&p->env);

	sim_memory_enter(p->id);
	if (n < requests) {
		sim_io_finish(p->io, n);
	} else if (n < requests + jobs) {
		sim_env_finish(&p->env, n - requests);
	} else if (n == requests + jobs && core_due(p)) {
		step_core(p);
	} else {
		p->poked = false;
		ckpt_task_wake(&p->life);
		ckpt_sched_run(&p->sched);
	}
	sim_memory_enter(0);
	if (!p->frozen && !core_due(p) && p->world->sim.now_ns > p->late_ns)
		sim_violation(
			&p->world->sim, "%s of p%u has not ended by its deadline", p->waits, p->id);
}

static uint64_t next_ns(struct remote_proc *p)
{
	uint64_t ns = sim_io_next(p->io);

	if (p->frozen)
		return ckpt_min_u64(ns, p->thaw_ns);
	ns = ckpt_min_u64(ns, remote_ranks_land(p));
	ns = ckpt_min_u64(ns, sim_env_next(&p->env));
	return ckpt_min_u64(ns, ckpt_min_u64(p->deadline_ns, p->wake_ns));
}

/* Who starts what. */

static unsigned count_procs(const struct remote *world)
{
	unsigned n = 0;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		n += world->procs[i] != NULL;
	return n;
}

/* At the place where the training is now. */
static bool is_at_work(const struct remote *world)
{
	for (unsigned i = 0; i < REMOTE_PROCS; i++) {
		const struct remote_proc *p = world->procs[i];
		if (p && p->home == world->home &&
			(p->kind == REMOTE_TRAIN || p->kind == REMOTE_BRING))
			return true;
	}
	return false;
}

static unsigned most_ranks(const struct remote *world)
{
	return world->many ? REMOTE_RANKS : 1;
}

static bool may_start(const struct remote *world)
{
	if (is_at_work(world) || count_procs(world) + most_ranks(world) > world->room)
		return false;
	if (world->healed && world->saved_last)
		return !world->read_last && count_procs(world) == 0;
	return world->healed || world->lives > 0;
}

static void add_home(struct remote *world)
{
	struct remote_home *home = &world->homes[world->home_count];

	world->home = world->home_count++;
	*home = (struct remote_home){0};
	remote_ranks_spread(world);
	for (unsigned i = 0; i < home->stores; i++) {
		home->disks[i] = sim_disk_new(&world->sim);
		sim_disk_set_space(home->disks[i], UINT64_MAX);
	}
}

static bool are_ready(const struct remote_home *home)
{
	for (unsigned i = 0; i < home->stores; i++)
		if (!home->ready[i])
			return false;
	return true;
}

/*
 * Whether all stores have what the bucket had; else those that have not are about to. Of many all look again as long as
 * no job has gone on from there: the bucket may have something else by now.
 */
static bool bring(struct remote *world)
{
	struct remote_home *home = &world->homes[world->home];
	bool moved = world->home > 0 || world->lost_count > 0;
	bool again = world->many && moved && !home->claimed;

	if (are_ready(home) && !(again && home->tried)) {
		home->tried = true;
		return true;
	}
	if (again)
		memset(home->ready, 0, sizeof(home->ready));
	home->tried = false;
	for (unsigned i = 0; i < home->stores; i++)
		if (!home->ready[i])
			start_proc(world, REMOTE_BRING, NULL, i);
	return false;
}

static void start_next(struct remote *world)
{
	if (world->healed && world->saved_last) {
		start_proc(world, REMOTE_READ, NULL, 0);
		return;
	}
	world->lives -= world->lives > 0;
	if (!bring(world))
		return;
	struct remote_job *job = remote_job_begin(world);
	for (uint32_t rank = 0; rank < job->ranks; rank++)
		start_proc(world, REMOTE_TRAIN, job, rank);
}

/* What goes wrong. */

static void kill_store(struct remote *world, unsigned home, unsigned store)
{
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i] && world->procs[i]->home == home &&
			world->procs[i]->store == store)
			kill_proc(world->procs[i]);
}

/* Of one node, or of all. */
static void cut_power(struct remote *world)
{
	const struct remote_home *home = &world->homes[world->home];
	unsigned only = home->stores;

	if (home->stores > 1 && sim_chance(&world->sim, 6000))
		only = (unsigned)sim_below(&world->sim, home->stores);
	for (unsigned i = 0; i < home->stores; i++) {
		if (only < home->stores && only != i)
			continue;
		struct sim_cut cut = sim_cut_pick(&world->sim);
		kill_store(world, world->home, i);
		sim_tell(&world->sim, 0, "POWER CUT", "", cut.data, cut.names, cut.sizes);
		sim_disk_cut(home->disks[i], &cut);
	}
}

/* A process, or all of its job. */
static void kill_some(struct remote *world, struct remote_proc *p)
{
	const struct remote_job *job = p->job;

	if (!remote_is_rank(p) || !sim_chance(&world->sim, 2500)) {
		kill_proc(p);
		return;
	}
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i] && world->procs[i]->job == job)
			kill_proc(world->procs[i]);
}

static void freeze(struct remote *world, struct remote_proc *p, uint64_t ns)
{
	if (!p || p->frozen)
		return;
	p->frozen = true;
	p->thaw_ns = world->sim.now_ns + ns;
	if (p->late_ns != UINT64_MAX)
		p->late_ns += ns + SECOND;
	sim_tell(&world->sim, p->id, "freezes", "", 0, (int64_t)ns, 0);
}

/* It may live on where nobody sees it, if the bucket has its claim. */
static bool may_live_on(struct remote *world, const struct remote_proc *p)
{
	uint64_t generation = p->core.lineage->generation;

	return p->kind == REMOTE_TRAIN && generation > 0 && world->gens[generation].there &&
	       !p->core.lineage->claiming;
}

/* The machine is lost, and its disk with it; the training goes on from the bucket on another one. */
static void move(struct remote *world)
{
	struct sim *sim = &world->sim;

	if (world->home_count == REMOTE_HOMES || !remote_object(world, CKPT_NAME_MARKER))
		return;
	/* Of several ranks some, or all as one. */
	bool whole = world->many && sim_chance(sim, 5000);
	uint64_t whole_ns = whole ? sim_below(sim, 300 * SECOND) : 0;
	/* Nobody sees to what is left of them there. */
	world->jobs[world->home].lost = true;
	for (unsigned i = 0; i < REMOTE_PROCS; i++) {
		struct remote_proc *p = world->procs[i];
		if (!p || p->home != world->home)
			continue;
		/* It may stand still until its successor is there. */
		if (may_live_on(world, p) && (whole || sim_chance(sim, 6000))) {
			sim->fired[SIM_FREEZE]++;
			freeze(world, p, whole ? whole_ns : sim_below(sim, 300 * SECOND));
		} else {
			kill_proc(p);
		}
	}
	add_home(world);
	world->moved = true;
	world->spawn_ns = sim->now_ns + MOVE_NS + sim_below(sim, 60 * SECOND);
	sim_tell(sim, 0, "MOVE", "", world->home, 0, 0);
}

/*
 * A node of several is lost with its disk, an empty one takes its place, and the user says so. What the others have saved
 * since may be nowhere else: the training goes on from what the bucket has.
 */
static void lose_node(struct remote *world)
{
	struct remote_home *home = &world->homes[world->home];
	unsigned store = (unsigned)sim_below(&world->sim, home->stores);

	sim_tell(&world->sim, 0, "NODE LOST", "", world->home, store, 0);
	kill_store(world, world->home, store);
	world->lost_disks[world->lost_count++] = home->disks[store];
	home->disks[store] = sim_disk_new(&world->sim);
	sim_disk_set_space(home->disks[store], UINT64_MAX);
	memset(home->ready, 0, sizeof(home->ready));
	home->tried = home->claimed = false;
}

/* A place is left for the training, and there are not so many already. */
static bool may_join(const struct remote *world)
{
	unsigned others = 0;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		others += world->procs[i] && world->procs[i]->kind >= REMOTE_READ;
	return others < 3 && count_procs(world) + most_ranks(world) < world->room;
}

static void trouble(struct remote *world)
{
	struct sim *sim = &world->sim;
	/* Of more places nobody would be hit. */
	struct remote_proc *p = world->procs[sim_below(sim, world->many ? 8 : world->room)];

	/* What is half removed is what others may take for whole. */
	if (sim_fault_times(sim, SIM_KILL, p && p->removes ? 20 : 1) && p)
		kill_some(world, p);
	else if (sim_fault(sim, SIM_FREEZE))
		freeze(world, p, sim_below(sim, 60 * SECOND));
	if (sim_fault(sim, SIM_CUT))
		cut_power(world);
	if (sim_fault(sim, SIM_HOME_LOST)) {
		if (remote_may_lose_node(world) && sim_chance(sim, 6000))
			lose_node(world);
		else
			move(world);
	}
	if (sim_fault(sim, SIM_NET_DOWN)) {
		world->down = true;
		world->down_until_ns = sim->now_ns + sim_below(sim, 300 * SECOND);
		sim_tell(sim, 0, "DOWN", "", 0, 0, 0);
	}
	if (sim_fault(sim, SIM_PRUNE) && may_join(world))
		start_proc(world, REMOTE_PRUNE, NULL, 0);
	if (sim_fault(sim, SIM_READERS) && may_join(world))
		start_proc(world, REMOTE_READ, NULL, 0);
}

/* The scheduler. */

/* When all disks have done what was late; the next time. */
static uint64_t land_disks(struct remote *world)
{
	uint64_t ns = UINT64_MAX;

	for (unsigned i = 0; i < world->home_count; i++)
		for (unsigned k = 0; k < world->homes[i].stores; k++)
			ns = ckpt_min_u64(ns, sim_disk_land(world->homes[i].disks[k]));
	return ns;
}

static void look_after(struct remote *world)
{
	struct remote_proc *left;

	while ((left = remote_left_over(world)))
		kill_proc(left);
	remote_net_run(world);
	if (world->down && world->down_until_ns <= world->sim.now_ns)
		world->down = false;
	for (unsigned i = 0; i < REMOTE_PROCS; i++) {
		struct remote_proc *p = world->procs[i];
		if (!p)
			continue;
		if (p->frozen && p->thaw_ns <= world->sim.now_ns) {
			p->frozen = false;
			sim_tell(&world->sim, p->id, "thaws", "", 0, 0, 0);
		}
		if (!p->frozen)
			(void)remote_ranks_land(p);
		if (p->left_behind)
			kill_proc(p);
		else if (p->closed && !p->inbox.head)
			reap_proc(p);
	}
	(void)land_disks(world);
}

static bool do_something(struct remote *world)
{
	unsigned total = 0;
	unsigned n;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		total += world->procs[i] ? ready(world->procs[i]) : 0;
	if (total == 0)
		return false;
	n = (unsigned)sim_below(&world->sim, total);
	for (unsigned i = 0; i < REMOTE_PROCS; i++) {
		unsigned mine = world->procs[i] ? ready(world->procs[i]) : 0;
		if (n < mine) {
			do_one(world->procs[i], n);
			break;
		}
		n -= mine;
	}
	world->sim.now_ns += sim_below(&world->sim, 15000);
	return true;
}

static bool advance(struct remote *world)
{
	uint64_t ns = ckpt_min_u64(remote_net_next(world), remote_launcher_ns(world));

	ns = ckpt_min_u64(ns, land_disks(world));
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i])
			ns = ckpt_min_u64(ns, next_ns(world->procs[i]));
	if (may_start(world))
		ns = ckpt_min_u64(ns, world->spawn_ns);
	if (ns == UINT64_MAX)
		return false;
	world->sim.now_ns = ckpt_max_u64(world->sim.now_ns, ns);
	return true;
}

static bool goes_on(struct remote *world)
{
	if (++world->turns > TURNS_MAX)
		sim_violation(&world->sim, "the run does not end");
	return !world->sim.failed && (may_start(world) || count_procs(world) > 0);
}

static void turn(struct remote *world)
{
	look_after(world);
	if (may_start(world) && world->spawn_ns <= world->sim.now_ns)
		start_next(world);
	if (!world->healed)
		trouble(world);
	if (!do_something(world) && !advance(world) && (may_start(world) || count_procs(world) > 0))
		sim_violation(&world->sim, "processes wait for what will never come");
}

static void heal(struct remote *world)
{
	memset(world->sim.mix, 0, sizeof(world->sim.mix));
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i])
			kill_proc(world->procs[i]);
	if (sim_chance(&world->sim, 3000))
		cut_power(world);
	world->down = false;
	/* What was brought there a while ago is not what the next start brings. */
	world->homes[world->home].tried = true;
	world->healed = true;
	world->spawn_ns = world->sim.now_ns + MOVE_NS;
	sim_tell(&world->sim, 0, "healed", "", 0, 0, 0);
}

static void pick(struct remote *world)
{
	static const struct {
		enum sim_fault kind;
		unsigned runs, most;
	} swarm[] = {{SIM_SLOW, 2000, 500}, {SIM_JOB_SLOW, 1000, 500}, {SIM_KILL, 7000, 30},
		{SIM_CUT, 4000, 15}, {SIM_FREEZE, 2000, 15}, {SIM_NET_DROP, 4000, 1500},
		{SIM_NET_REPLY, 5000, 1500}, {SIM_NET_LATE, 4000, 1000},
		{SIM_NET_TWICE, 3000, 1000}, {SIM_NET_ERROR, 3000, 1500},
		{SIM_NET_STALL, 2000, 200}, {SIM_NET_DOWN, 2500, 5}, {SIM_HOME_LOST, 4000, 10},
		{SIM_PRUNE, 4500, 30}, {SIM_READERS, 2000, 10}};
	struct sim *sim = &world->sim;

	for (size_t i = 0; i < CKPT_COUNT(swarm); i++)
		if (sim_chance(sim, swarm[i].runs))
			sim->mix[swarm[i].kind] = (unsigned)sim_between(sim, 1, swarm[i].most);
	world->lives = (unsigned)sim_between(sim, 1, 8);
	world->keep_last = sim_chance(sim, 4000) ? 0 : sim_between(sim, 1, 3);
	world->keep_every = sim_chance(sim, 2000) ? sim_between(sim, 2, 6) : 0;
	/* In every third, whatever else is drawn. */
	if (sim_mix64(sim->seed + 29) % 3 == 0) {
		world->remote_keep_last = 1 + sim_mix64(sim->seed + 31) % 3;
		world->remote_keep_every = sim_mix64(sim->seed + 37) % 3 ? 0 : 4;
	}
	world->latency_ns = sim_chance(sim, 2000) ? 2 * SECOND : 40 * MILLISECOND;
	world->encodes = sim->seed / 1000000 == 75;
	sim_shapes_pick(sim, world->shapes);
	remote_ranks_pick(world);
	add_home(world);
	for (unsigned i = 0; i < REMOTE_RANKS; i++)
		world->homes[0].ready[i] = true;
	world->spawn_ns = sim->now_ns;
}

static bool remote_run(struct remote *world, uint64_t seed, const struct sim_options *options)
{
	*world = (struct remote){0};
	sim_start(&world->sim, seed, options);
	sim_memory_start(&world->sim);
	pick(world);
	remote_net_begin(world);
	uint64_t events = sim_between(&world->sim, 500, 8000);
	/* Most of what several do is what they tell each other. */
	events *= world->many ? 3 : 1;
	while (world->sim.events < events && goes_on(world))
		turn(world);
	if (!world->sim.failed)
		heal(world);
	while (goes_on(world))
		turn(world);
	if (!world->sim.failed)
		remote_check_all(world);
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i])
			kill_proc(world->procs[i]);
	remote_net_end(world);
	for (unsigned i = 0; i < world->home_count; i++)
		for (unsigned k = 0; k < world->homes[i].stores; k++)
			sim_disk_free(world->homes[i].disks[k]);
	for (unsigned i = 0; i < world->lost_count; i++)
		sim_disk_free(world->lost_disks[i]);
	crowd_boards_free(&world->boards);
	sim_memory_start(NULL);
	CKPT_ASSERT(sim_memory_empty());
	return !world->sim.failed;
}

static struct remote *the_world;
static struct {
	uint64_t committed, confirmed, restored, imported, pruned, resumed, moved, lost,
		passed_over;
} sums;

static bool run(uint64_t seed, const struct sim_options *options)
{
	return remote_run(the_world, seed, options);
}

static const struct sim *sim(void)
{
	return &the_world->sim;
}

static void count(void)
{
	sums.committed += the_world->committed;
	sums.confirmed += the_world->confirmed;
	sums.restored += the_world->restored;
	sums.imported += the_world->imported;
	sums.pruned += the_world->pruned;
	sums.resumed += the_world->resumed;
	sums.moved += the_world->moved;
	sums.lost += the_world->lost_count;
	sums.passed_over += the_world->passed_over;
}

static void print(void)
{
	typedef unsigned long long ull;

	(void)printf(" committed=%llu confirmed=%llu restored=%llu brought=%llu removed=%llu "
		     "resumed=%llu "
		     "moved=%llu nodes_lost=%llu passed_over=%llu",
		(ull)sums.committed, (ull)sums.confirmed, (ull)sums.restored, (ull)sums.imported,
		(ull)sums.pruned, (ull)sums.resumed, (ull)sums.moved, (ull)sums.lost,
		(ull)sums.passed_over);
}

int main(int argc, char **argv)
{
	static const struct sim_program program = {
		.run = run, .sim = sim, .count = count, .print = print};

	the_world = sim_alloc(sizeof(*the_world));
	int r = ckpt_log_open(CKPT_LOG_DEBUG, &the_log);
	CKPT_ASSERT(r == 0);
	remote_net_open();
	sim_pool_keep(true);
	int code = sim_main(argc, argv, &program);
	remote_net_close();
	ckpt_log_close(the_log);
	sim_pool_close_all();
	free(the_world);
	return code;
}
