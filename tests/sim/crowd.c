/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of two to sixteen ranks: their scheduler, their launcher, and what goes wrong; see crowd.h. */
#include "crowd.h"
#include "sim_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/restore_messages.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
#define TURNS_MAX   2000000
#define ROOT        9 /* stands for the descriptor of the store's directory */

static struct ckpt_log *the_log;

/* Members. */

/* No directory is seen by all nodes: their ranks talk through a service. */
static void use_board(struct crowd_member *m)
{
	struct crowd *crowd = m->crowd;
	struct ckpt_core *core = &m->core;

	ckpt_exchange_close(core->exchange);
	core->exchange = crowd_board_open(
		&crowd->sim, &core->sched, crowd_board_get(&crowd->boards, core->config.session));
}

static void tell_log(struct crowd_member *m)
{
	struct ckpt_log_record record = {.size = sizeof(record)};

	while (ckpt_log_next(the_log, 0, &record) == 0)
		sim_note(&m->crowd->sim, m->id, "log", record.message, record.level, 0, 0);
}

static int open_core(struct crowd_member *m)
{
	struct crowd *crowd = m->crowd;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_core_parts parts = {.env = &m->env.env,
		.io = sim_io_of(m->io),
		.root = ROOT,
		.label = "/store",
		.devices = &m->device.devices,
		.pool = m->pool,
		.log = the_log};
	struct ckpt_core_config config = {.block_bytes = 4096,
		.chunk_bytes = 1024,
		.keep_last = crowd->keep_last,
		.save_timeout_ms = crowd->timeout_ms,
		.rank = m->rank,
		.world = crowd->world,
		.sharing = crowd->sharing,
		.many = crowd->many ? 1 : 0,
		.agree_bytes = crowd->large ? 1 : 0};

	(void)snprintf(config.session, sizeof(config.session), "start-%u",
		m->job->number - m->job->reused);
	(void)snprintf(config.node, sizeof(config.node), "node-%u",
		crowd->nodes ? crowd_place_number(crowd, m->rank) : m->rank);
	config.node_store = crowd->nodes > 0;
	config.node_leader = crowd_place(crowd, m->rank)->first;
	sim_memory_enter(m->id);
	int r = ckpt_modules_open(&m->core, &parts, &config, &err);
	if (r == 0 && crowd->nodes)
		use_board(m);
	sim_memory_enter(0);
	if (r == 0)
		m->core.exchange =
			crowd_exchange_new(&crowd->sim, &crowd->weather, m->core.exchange);
	return r;
}

static void free_member(struct crowd_member *m)
{
	sim_state_free(&m->live);
	sim_state_free(&m->into);
	sim_env_die(&m->env);
	(void)ckpt_inbox_take(&m->inbox);
	ckpt_inbox_destroy(&m->inbox);
	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (m->crowd->members[i] == m)
			m->crowd->members[i] = NULL;
	m->job->ending = true;
	crowd_stir(m->job, m->crowd);
	free(m);
}

static void kill_member(struct crowd_member *m)
{
	sim_tell(&m->crowd->sim, m->id, "dies", "", m->rank, 0, 0);
	sim_memory_enter(0);
	crowd_exchange_forget(m->core.exchange);
	sim_io_die(m->io);
	sim_pool_sweep(m->pool);
	sim_memory_sweep(m->id);
	free_member(m);
}

/* It has closed: nothing of it may be left. */
static void reap_member(struct crowd_member *m)
{
	struct sim *sim = &m->crowd->sim;

	sim_tell(sim, m->id, "exits", "", m->rank, 0, 0);
	tell_log(m);
	if (!ckpt_core_idle(&m->core) || m->env.head ||
		ckpt_pool_free(m->pool) != ckpt_pool_slots(m->pool)) {
		sim_violation(sim, "p%u is closed, and something of it is under way", m->id);
		kill_member(m);
		return;
	}
	sim_memory_enter(m->id);
	ckpt_modules_close(&m->core);
	sim_memory_enter(0);
	if (sim_disk_open_count(crowd_disk(m->crowd, m->rank), m->id))
		sim_violation(sim, "p%u is closed with files open", m->id);
	if (sim_memory_blocks(m->id))
		sim_violation(sim, "p%u is closed with %u blocks of memory not freed", m->id,
			sim_memory_blocks(m->id));
	sim_pool_sweep(m->pool);
	sim_memory_sweep(m->id);
	if (sim_io_in_flight(m->io))
		sim_io_forget(m->io);
	else
		sim_io_free(m->io);
	sim_disk_drop(crowd_disk(m->crowd, m->rank), m->id);
	free_member(m);
}

static void start_member(struct crowd *crowd, struct crowd_job *job, uint32_t rank)
{
	struct crowd_member *m = sim_alloc(sizeof(*m));
	unsigned place = 0;
	unsigned node = crowd->apart ? 1 + rank : 1 + crowd_place_number(crowd, rank);

	while (crowd->members[place])
		place++;
	CKPT_ASSERT(place < CROWD_MEMBERS);
	crowd->members[place] = m;
	/* What is left of an earlier start is on other machines, unless these have the disks: locks do not
	 * reach there. */
	if (crowd->overlap && !crowd->nodes)
		node += 100 * job->number;
	*m = (struct crowd_member){.crowd = crowd,
		.job = job,
		.rank = rank,
		.id = ++crowd->next_id,
		.deadline_ns = UINT64_MAX};
	struct sim_io_config io = {.inbox = &m->inbox,
		.owner = m->id,
		.node = node,
		.root = ROOT,
		.align = 512,
		.direct = true,
		.stuck_ns = (uint64_t)crowd->timeout_ms * 3 * MILLISECOND};
	int r = ckpt_inbox_init(&m->inbox);
	CKPT_ASSERT(r == 0);
	sim_env_init(&m->env, &crowd->sim, &m->inbox, m->id, node);
	sim_device_init(&m->device, &m->env);
	m->io = sim_io_new(&crowd->sim, crowd_disk(crowd, rank), &io);
	m->pool = sim_pool_open(8, 4096);
	sim_tell(&crowd->sim, m->id, "starts", "", node, rank, job->number);
	crowd_life_start(m);
	if (open_core(m) < 0)
		kill_member(m);
}

static bool core_due(const struct crowd_member *m)
{
	return m->inbox.head || m->kicked || m->deadline_ns <= m->crowd->sim.now_ns;
}

static bool life_due(const struct crowd_member *m)
{
	return m->poked || m->wake_ns <= m->crowd->sim.now_ns;
}

static unsigned ready(const struct crowd_member *m)
{
	unsigned n = sim_io_ready(m->io);

	return m->frozen ? n : n + sim_env_ready(&m->env) + core_due(m) + life_due(m);
}

static void step_core(struct crowd_member *m)
{
	m->kicked = false;
	uint64_t deadline_ns = ckpt_core_step(&m->core);

	m->deadline_ns = deadline_ns == UINT64_MAX ? deadline_ns : deadline_ns - m->env.ahead_ns;
	if (m->core.gc && m->rank != crowd_place(m->crowd, m->rank)->first)
		sim_violation(&m->crowd->sim, "rank %u keeps the store", m->rank);
	crowd_observe(m);
	m->poked = true;
	tell_log(m);
}

static void do_one(struct crowd_member *m, unsigned n)
{
	unsigned requests = sim_io_ready(m->io);
	unsigned jobs = m->frozen ? 0 : sim_env_ready(&m->env);

	sim_memory_enter(m->id);
	if (n < requests) {
		sim_io_finish(m->io, n);
	} else if (n < requests + jobs) {
		sim_env_finish(&m->env, n - requests);
	} else if (n == requests + jobs && core_due(m)) {
		step_core(m);
	} else {
		m->poked = false;
		ckpt_task_wake(&m->life);
		ckpt_sched_run(&m->sched);
	}
	sim_memory_enter(0);
	if (!m->frozen && !core_due(m))
		crowd_hurry(m);
	if (!m->frozen && !core_due(m) && m->crowd->sim.now_ns > m->late_ns)
		sim_violation(&m->crowd->sim, "%s of rank %u (p%u) has not ended by its deadline",
			m->waits, m->rank, m->id);
}

static uint64_t next_ns(struct crowd_member *m)
{
	uint64_t ns = sim_io_next(m->io);

	if (m->frozen)
		return ckpt_min_u64(ns, m->thaw_ns);
	ns = ckpt_min_u64(ns, crowd_exchange_land(m->core.exchange, &m->kicked));
	ns = ckpt_min_u64(ns, sim_env_next(&m->env));
	return ckpt_min_u64(ns, ckpt_min_u64(m->deadline_ns, m->wake_ns));
}

/* The launcher. */

static unsigned count_members(const struct crowd *crowd, const struct crowd_job *job)
{
	unsigned n = 0;

	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		n += crowd->members[i] && (!job || crowd->members[i]->job == job);
	return n;
}

static struct crowd_job *newest_job(struct crowd *crowd)
{
	struct crowd_job *newest = NULL;

	for (unsigned i = 0; i < CROWD_STARTS; i++)
		if (crowd->job[i].used && (!newest || crowd->job[i].number > newest->number))
			newest = &crowd->job[i];
	return newest;
}

/* The last start is over, and all its ranks have said a word. */
static bool may_reuse(struct crowd *crowd, const struct crowd_job *job)
{
	char path[CKPT_PATH_MAX];
	char session[CKPT_SESSION_MAX];
	char key[CKPT_EXCHANGE_KEY_MAX];

	(void)snprintf(session, sizeof(session), "start-%u", job->number - 1);
	for (uint32_t rank = 0; rank < crowd->world; rank++) {
		ckpt_key_hello(key, rank);
		(void)snprintf(path, sizeof(path), "exchange/%s/%s", session, key);
		if (crowd->nodes ? !crowd_board_holds(&crowd->boards, session, key)
				 : !sim_disk_exists(crowd_disk(crowd, 0), path))
			return false;
	}
	return !crowd->healed && count_members(crowd, NULL) == 0;
}

static void start_job(struct crowd *crowd)
{
	struct crowd_job *job = crowd->job;

	while (job->used)
		job++;
	crowd->starts--;
	/* It comes with a server of its own; that of the last one may have ended with its launcher. */
	if (crowd->nodes && (crowd->weather.dead || sim_chance(&crowd->sim, 5000))) {
		crowd->stormed = crowd->stormed || count_members(crowd, NULL) > 0;
		crowd_boards_end(crowd->boards);
	}
	crowd->weather.dead = crowd->weather.silent = false;
	*job = (struct crowd_job){.used = true,
		.number = ++crowd->jobs,
		.careful = crowd->healed,
		.blind_rank = CROWD_RANKS,
		.saves = (unsigned)sim_between(&crowd->sim, 1, 5)};
	if (crowd->healed)
		job->saves = 2;
	if (crowd->skips)
		job->saves = crowd->healed ? 100 : 10 * job->saves;
	if (!crowd->healed && sim_chance(&crowd->sim, 2000)) {
		job->blind_rank = (uint32_t)sim_below(&crowd->sim, crowd->world);
		job->blind_round = (unsigned)sim_below(&crowd->sim, 2);
		job->blind_index = sim_chance(&crowd->sim, 5000);
	}
	job->reused = may_reuse(crowd, job) && sim_chance(&crowd->sim, 400);
	for (uint32_t rank = 0; rank < crowd->world; rank++)
		start_member(crowd, job, rank);
}

static bool may_start(struct crowd *crowd)
{
	const struct crowd_job *newest = newest_job(crowd);
	unsigned used = 0;

	for (unsigned i = 0; i < CROWD_STARTS; i++)
		used += crowd->job[i].used;
	return crowd->starts > 0 && used < CROWD_STARTS &&
	       (!newest || (crowd->overlap && newest->ending && !crowd->healed));
}

/* It has not come to an end: its storage hangs, or its exchange. */
static void leave_behind(struct crowd_member *m)
{
	if (!crowd_hung(m->crowd))
		sim_violation(&m->crowd->sim, "rank %u (p%u) does not close", m->rank, m->id);
	kill_member(m);
}

static void look_after(struct crowd *crowd)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		struct crowd_member *m = crowd->members[i];
		if (!m)
			continue;
		if (m->frozen && m->thaw_ns <= crowd->sim.now_ns) {
			m->frozen = false;
			sim_tell(&crowd->sim, m->id, "thaws", "", m->rank, 0, 0);
		}
		if (!m->frozen)
			(void)crowd_exchange_land(m->core.exchange, &m->kicked);
		if (m->left_behind)
			leave_behind(m);
		else if (m->closed && !m->inbox.head)
			reap_member(m);
	}
	for (unsigned i = 0; i < CROWD_STARTS; i++) {
		struct crowd_job *job = &crowd->job[i];
		if (job->used && count_members(crowd, job) == 0) {
			job->used = false;
			crowd->spawn_ns =
				crowd->sim.now_ns + sim_below(&crowd->sim, 50 * MILLISECOND);
		}
	}
}

static struct crowd_member *any_member(struct crowd *crowd)
{
	/* As many places as members may be at once: in more of them nobody would be hit. */
	unsigned most = crowd->world <= 6 ? 6 : CROWD_RANKS;

	return crowd->members[sim_below(&crowd->sim, (uint64_t)most * CROWD_STARTS)];
}

/* All that run where this store is; `job` NULL: of all starts. */
static void kill_place(struct crowd *crowd, unsigned store, const struct crowd_job *job)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		struct crowd_member *m = crowd->members[i];
		if (m && crowd_place_number(crowd, m->rank) == store && (!job || m->job == job))
			kill_member(m);
	}
}

static void cut_place(struct crowd *crowd, unsigned store)
{
	struct sim_cut cut = sim_cut_pick(&crowd->sim);

	kill_place(crowd, store, NULL);
	sim_tell(&crowd->sim, 0, "POWER CUT", "", cut.data, cut.names, cut.sizes);
	sim_disk_cut(crowd->places[store].disk, &cut);
	if (crowd->nodes)
		crowd_check_left(crowd, store);
}

static void cut_power(struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		cut_place(crowd, i);
}

/* Of one node, mostly; of one whose disk has stopped, if there is any. */
static void cut_some_power(struct crowd *crowd)
{
	struct sim *sim = &crowd->sim;
	unsigned store;

	if (!crowd->nodes || sim_chance(sim, 2500)) {
		cut_power(crowd);
		return;
	}
	store = (unsigned)sim_below(sim, crowd->nodes);
	for (unsigned i = 0; i < crowd->nodes; i++)
		if (sim_disk_stopped(crowd->places[i].disk))
			store = i;
	cut_place(crowd, store);
}

/* A process, all that a job has on a node, or all of it. */
static void kill_some(struct crowd *crowd, struct crowd_member *m)
{
	struct sim *sim = &crowd->sim;
	struct crowd_job *job = m->job;

	if (crowd->nodes && sim_chance(sim, 2500))
		kill_place(crowd, crowd_place_number(crowd, m->rank), job);
	else if (crowd->nodes && sim_chance(sim, 1000))
		for (unsigned i = 0; i < crowd->nodes; i++)
			kill_place(crowd, i, job);
	else
		kill_member(m);
}

static void freeze(struct crowd *crowd)
{
	struct crowd_member *m = any_member(crowd);
	uint64_t ns = sim_below(&crowd->sim, 4 * SECOND);

	if (!m || m->frozen)
		return;
	m->frozen = true;
	m->thaw_ns = crowd->sim.now_ns + ns;
	if (m->late_ns != UINT64_MAX)
		m->late_ns += ns + SECOND;
	sim_tell(&crowd->sim, m->id, "freezes", "", m->rank, (int64_t)ns, 0);
}

/* While it publishes, or has not told that it did: most is owed to the others, and they cannot know it. */
static void kill_publisher(struct crowd *crowd)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		struct crowd_member *m = crowd->members[i];
		const struct ckpt_save *save = m && m->rank == 0 ? m->core.save : NULL;
		if (save && (save->publishing || save->committed) && sim_chance(&crowd->sim, 200))
			kill_member(m);
	}
}

/* Some nodes have a step, and others do not yet. */
static void break_node(struct crowd *crowd)
{
	struct sim *sim = &crowd->sim;
	const struct crowd_member *m = any_member(crowd);
	const struct ckpt_save *save = m ? m->core.save : NULL;

	if (!save || !(save->publishing || save->committed) || !sim_chance(sim, 300) ||
		sim->without >> SIM_KILL & 1)
		return;
	sim->fired[SIM_KILL]++;
	if (sim_chance(sim, 5000))
		cut_place(crowd, crowd_place_number(crowd, m->rank));
	else
		kill_place(crowd, crowd_place_number(crowd, m->rank), NULL);
}

static void trouble(struct crowd *crowd)
{
	struct sim *sim = &crowd->sim;
	struct crowd_member *m;

	if (crowd->deadly)
		kill_publisher(crowd);
	if (crowd->brittle)
		break_node(crowd);
	if (sim_fault(sim, SIM_KILL) && (m = any_member(crowd)))
		kill_some(crowd, m);
	if (sim_fault(sim, SIM_CUT) || (crowd_disks_stopped(crowd) && sim_chance(sim, 300)))
		cut_some_power(crowd);
	if (sim_fault(sim, SIM_FREEZE))
		freeze(crowd);
	if (sim_fault(sim, SIM_HANG)) {
		uint64_t ns = sim_below(sim, 4 * SECOND);
		sim_tell(sim, 0, "HANGS", "", (int64_t)ns, 0, 0);
		sim_disk_hang(crowd_disk_pick(crowd), sim->now_ns + ns);
	}
	if (crowd->storms && sim_chance(sim, crowd->storms)) {
		crowd->stormed = true;
		crowd->weather.dead = sim_chance(sim, 5000);
		crowd->weather.silent = !crowd->weather.dead && sim_chance(sim, 5000);
		sim_tell(sim, 0, "storm", "", crowd->weather.dead, crowd->weather.silent, 0);
		if (crowd->nodes && crowd->weather.dead && sim_chance(sim, 5000))
			crowd_boards_end(crowd->boards);
	}
	/* The launcher ends a start of which somebody has ended: soon, or after a while. */
	m = any_member(crowd);
	if (m && m->job->ending && sim_chance(sim, crowd->deadly ? 3 : 20))
		kill_member(m);
}

static void end_waiting(struct crowd *crowd)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (crowd->members[i] && crowd->members[i]->job->ending)
			kill_member(crowd->members[i]);
}

static bool do_something(struct crowd *crowd)
{
	unsigned total = 0;
	unsigned n;

	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		total += crowd->members[i] ? ready(crowd->members[i]) : 0;
	if (total == 0)
		return false;
	n = (unsigned)sim_below(&crowd->sim, total);
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		unsigned mine = crowd->members[i] ? ready(crowd->members[i]) : 0;
		if (n < mine) {
			do_one(crowd->members[i], n);
			break;
		}
		n -= mine;
	}
	crowd->sim.now_ns += sim_below(&crowd->sim, 15000);
	return true;
}

static bool advance(struct crowd *crowd)
{
	uint64_t ns = crowd_disks_land(crowd);

	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (crowd->members[i])
			ns = ckpt_min_u64(ns, next_ns(crowd->members[i]));
	if (may_start(crowd))
		ns = ckpt_min_u64(ns, crowd->spawn_ns);
	if (ns == UINT64_MAX)
		return false;
	crowd->sim.now_ns = ckpt_max_u64(crowd->sim.now_ns, ns);
	return true;
}

static void turn(struct crowd *crowd)
{
	look_after(crowd);
	(void)crowd_disks_land(crowd);
	if (may_start(crowd) && crowd->spawn_ns <= crowd->sim.now_ns)
		start_job(crowd);
	if (!crowd->healed)
		trouble(crowd);
	if (do_something(crowd))
		return;
	look_after(crowd);
	if (do_something(crowd) || advance(crowd))
		return;
	/* Who waits for a rank that is not there any more waits for the launcher. */
	if (count_members(crowd, NULL) > 0 && !crowd->healed)
		end_waiting(crowd);
	else if (count_members(crowd, NULL) > 0)
		sim_violation(&crowd->sim, "ranks wait for what will never come");
	else
		crowd->starts = 0;
}

static void heal(struct crowd *crowd)
{
	memset(crowd->sim.mix, 0, sizeof(crowd->sim.mix));
	/* What is lost and late may stay so: that keeps nobody from saving. */
	crowd->storms = 0;
	crowd->weather.dead = crowd->weather.silent = false;
	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (crowd->members[i])
			kill_member(crowd->members[i]);
	if (crowd_disks_stopped(crowd) || sim_chance(&crowd->sim, 5000))
		cut_power(crowd);
	crowd_disks_heal(crowd);
	memset(crowd->job, 0, sizeof(crowd->job));
	crowd->healed = true;
	crowd->starts = 1;
	crowd->spawn_ns = crowd->sim.now_ns;
	sim_tell(&crowd->sim, 0, "healed", "", 0, 0, 0);
}

/* One name is one tensor of the whole job: ranks that hold others have other names. */
static void name_apart(struct sim_shape *shape)
{
	for (size_t i = 0; i < shape->count; i++) {
		char name[sizeof(shape->tensors[i].name)];

		memcpy(name, shape->tensors[i].name, sizeof(name));
		(void)snprintf(shape->tensors[i].name, sizeof(name), "odd.%.24s", name);
	}
}

/* Large jobs take their time. */
static bool crowd_is_large(uint64_t seed)
{
	return seed % 64 == 63 || crowd_nodes_are_many(seed);
}

static void pick(struct crowd *crowd, uint64_t seed)
{
	static const struct {
		enum sim_fault kind;
		unsigned runs, most;
	} swarm[] = {{SIM_EIO_WRITE, 1500, 200}, {SIM_EIO_READ, 1000, 100},
		{SIM_EIO_SYNC, 2000, 500}, {SIM_EIO_DIR, 2000, 500}, {SIM_EIO_OTHER, 1500, 200},
		{SIM_STUCK, 1000, 40}, {SIM_SLOW, 3000, 1500}, {SIM_HANG, 1000, 20},
		{SIM_JOB_SLOW, 2000, 2000}, {SIM_NO_MEMORY, 1500, 60}, {SIM_KILL, 7000, 20},
		{SIM_CUT, 5000, 10}, {SIM_FREEZE, 3000, 20}, {SIM_CANCEL, 2500, 6000}};
	struct sim *sim = &crowd->sim;

	for (size_t i = 0; i < CKPT_COUNT(swarm); i++)
		if (sim_chance(sim, swarm[i].runs))
			sim->mix[swarm[i].kind] = (unsigned)sim_between(sim, 1, swarm[i].most);
	crowd->world = crowd_is_large(seed) ? (unsigned)sim_between(sim, 7, CROWD_RANKS)
					    : (unsigned)sim_between(sim, 2, 6);
	crowd->starts = (unsigned)sim_between(sim, 1, 5);
	/* Longer than anybody waits for a close, or shorter. */
	crowd->timeout_ms = sim_chance(sim, 5000) ? 4000 : 40000;
	if (sim_chance(sim, 4000))
		crowd->weather = (struct crowd_weather){.lost = (unsigned)sim_below(sim, 3000),
			.late = (unsigned)sim_below(sim, 5000),
			.late_ns = sim_below(sim, 50 * MILLISECOND)};
	crowd->storms = sim_chance(sim, 1500) ? 10 : 0;
	crowd->keep_last = sim_chance(sim, 5000) ? 0 : sim_between(sim, 1, 2);
	crowd->lead = (unsigned)sim_between(sim, 1, 4);
	crowd->apart = sim_chance(sim, 5000);
	crowd->overlap = sim_chance(sim, 5000);
	crowd->many = seed % 3 != 0;
	crowd->large = seed % 5 == 0;
	crowd->sharing = !crowd->apart && (crowd_is_large(seed) || seed % 8 == 1);
	/* To take a file away from one who has read the store and not claimed yet is for locks to decide. */
	if (crowd->overlap)
		crowd->keep_last = 0;
	crowd->skips = sim_chance(sim, 2500);
	crowd->deadly = sim_chance(sim, 1000);
	crowd_nodes_pick(crowd, seed);
	if (crowd->deadly) {
		sim->mix[SIM_KILL] = 0;
		sim->mix[SIM_CUT] = 5;
	}
	sim_shapes_pick(sim, crowd->shapes);
	name_apart(&crowd->shapes[1]);
}

static bool goes_on(struct crowd *crowd)
{
	if (++crowd->turns > TURNS_MAX)
		sim_violation(&crowd->sim, "the run does not end");
	return !crowd->sim.failed && (crowd->starts > 0 || count_members(crowd, NULL) > 0);
}

static bool crowd_run(struct crowd *crowd, uint64_t seed, const struct sim_options *options)
{
	*crowd = (struct crowd){0};
	sim_start(&crowd->sim, seed, options);
	sim_memory_start(&crowd->sim);
	pick(crowd, seed);
	uint64_t events = sim_between(&crowd->sim, 1000, 20000);
	while (crowd->sim.events < events && goes_on(crowd))
		turn(crowd);
	if (!crowd->sim.failed)
		heal(crowd);
	uint64_t durable = crowd->durable;
	while (goes_on(crowd))
		turn(crowd);
	/* Of those that come too soon most are skipped. */
	if (!crowd->sim.failed &&
		(crowd->skips ? crowd->durable < durable + 2 : crowd->durable != durable + 2))
		sim_violation(&crowd->sim, "nothing goes wrong, and %llu of 2 steps were saved",
			(unsigned long long)(crowd->durable - durable));
	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (crowd->members[i])
			kill_member(crowd->members[i]);
	if (crowd->nodes)
		crowd_check_alike(crowd);
	crowd_nodes_free(crowd);
	sim_memory_start(NULL);
	CKPT_ASSERT(sim_memory_empty());
	return !crowd->sim.failed;
}

static struct crowd *the_crowd;
static uint64_t sum_durable;
static uint64_t sum_not_saved;
static uint64_t sum_starts;
static uint64_t sum_restored;
static uint64_t sum_back;

static bool run(uint64_t seed, const struct sim_options *options)
{
	return crowd_run(the_crowd, seed, options);
}

static const struct sim *sim(void)
{
	return &the_crowd->sim;
}

static void count(void)
{
	sum_durable += the_crowd->durable;
	sum_not_saved += the_crowd->not_saved;
	sum_starts += the_crowd->jobs;
	sum_restored += the_crowd->restored;
	sum_back += the_crowd->went_back;
}

static void print(void)
{
	(void)printf(" acknowledged=%llu not_saved=%llu starts=%llu restored=%llu went_back=%llu",
		(unsigned long long)sum_durable, (unsigned long long)sum_not_saved,
		(unsigned long long)sum_starts, (unsigned long long)sum_restored,
		(unsigned long long)sum_back);
}

int main(int argc, char **argv)
{
	static const struct sim_program program = {
		.run = run, .sim = sim, .count = count, .print = print};

	the_crowd = sim_alloc(sizeof(*the_crowd));
	int r = ckpt_log_open(CKPT_LOG_DEBUG, &the_log);
	CKPT_ASSERT(r == 0);
	int code = sim_main(argc, argv, &program);
	ckpt_log_close(the_log);
	sim_pool_close_all();
	free(the_crowd);
	return code;
}
