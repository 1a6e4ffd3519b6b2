/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training as a job of several ranks, on one store or on one for each of its nodes: its launcher, who is where, and
 * what lies between the ranks. They go from step to step together, as the steps of a training do. What the exchange can
 * do to them is for the crowd; here it loses and delays, and what goes wrong lies between the job and the bucket.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "remote.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

/* One seed in sixteen; and all of a million, for whoever looks for what only they find. */
static bool has_ranks(uint64_t seed)
{
	return seed % 16 == 5 || seed / 1000000 == 78;
}

/* One name is one tensor of the whole job. */
static void shape_ranks(struct remote *world)
{
	for (uint32_t rank = 0; rank < REMOTE_RANKS; rank++) {
		struct sim_shape *shape = &world->rank_shapes[rank];
		*shape = world->shapes[world->many ? rank % SIM_SHAPES : 0];
		for (size_t i = 0; world->many && i < shape->count; i++) {
			char name[sizeof(shape->tensors[i].name)];
			(void)snprintf(
				name, sizeof(name), "r%u.%.24s", rank, shape->tensors[i].name);
			memcpy(shape->tensors[i].name, name, sizeof(name));
		}
	}
}

void remote_ranks_pick(struct remote *world)
{
	struct sim *sim = &world->sim;

	world->room = 4;
	world->ranks = 1;
	world->many = has_ranks(sim->seed);
	shape_ranks(world);
	if (!world->many)
		return;
	world->room = REMOTE_PROCS;
	world->ranks = (uint32_t)sim_between(sim, 2, REMOTE_RANKS);
	world->nodes = sim_chance(sim, 4000);
	world->apart = sim_chance(sim, 5000);
	world->catalogs = sim_chance(sim, 5000);
	if (sim_chance(sim, 3000))
		world->weather = (struct crowd_weather){.lost = (unsigned)sim_below(sim, 1000),
			.late = (unsigned)sim_below(sim, 3000),
			.late_ns = sim_below(sim, 50 * MILLISECOND)};
}

void remote_ranks_spread(struct remote *world)
{
	struct remote_home *home = &world->homes[world->home];

	/* A job that goes on elsewhere may have more ranks, or fewer. */
	if (world->many && world->home > 0)
		world->ranks = (uint32_t)sim_between(&world->sim, 2, REMOTE_RANKS);
	home->stores = world->nodes ? (unsigned)sim_between(&world->sim, 2, world->ranks) : 1;
}

bool remote_is_rank(const struct remote_proc *p)
{
	return p->job && p->job->ranks > 1;
}

bool remote_may_lose_node(const struct remote *world)
{
	bool owed = false;

	for (size_t i = 0; i < world->record_count; i++)
		owed = owed || (world->records[i].there && remote_owes(world, &world->records[i]));
	return owed && world->nodes && world->lost_count < REMOTE_LOST &&
	       world->homes[world->home].claimed;
}

bool remote_passes_over(const struct remote_proc *p)
{
	return remote_is_rank(p) && p->core.config.lost_nodes && p->failure == CKPT_EOTHERNODE;
}

unsigned remote_machine(const struct remote *world, unsigned home, unsigned store, uint32_t rank)
{
	return 1 + home + 10 * (world->nodes ? store : world->apart ? rank : 0);
}

void remote_ranks_config(const struct remote_proc *p, struct ckpt_core_config *config)
{
	config->many = p->world->catalogs ? 1 : 0;
	if (!remote_is_rank(p))
		return;
	config->rank = p->rank;
	config->world = p->job->ranks;
	(void)snprintf(config->session, sizeof(config->session), "start-%u", p->job->number);
	(void)snprintf(config->node, sizeof(config->node), "node-%u",
		remote_machine(p->world, p->home, p->store, p->rank));
	config->node_store = p->world->nodes;
	config->lost_nodes = p->world->lost_count > 0;
	/* The lowest rank of that store. */
	config->node_leader = p->store;
}

void remote_ranks_meet(struct remote_proc *p)
{
	struct remote *world = p->world;
	struct ckpt_core *core = &p->core;

	if (!remote_is_rank(p))
		return;
	/* No directory is seen by all nodes. */
	if (world->nodes) {
		ckpt_exchange_close(core->exchange);
		core->exchange = crowd_board_open(&world->sim, &core->sched,
			crowd_board_get(&world->boards, core->config.session));
	}
	core->exchange = crowd_exchange_new(&world->sim, &world->weather, core->exchange);
}

struct remote_job *remote_job_begin(struct remote *world)
{
	struct remote_job *job = &world->jobs[world->home];
	struct sim *sim = &world->sim;

	/* On a store that all ranks share a job may be started again with others. */
	if (world->many && !world->nodes && sim_chance(sim, 2000))
		world->ranks = (uint32_t)sim_between(sim, 2, REMOTE_RANKS);
	*job = (struct remote_job){
		.number = ++world->job_count, .ranks = world->ranks, .end_ns = UINT64_MAX};
	if (world->many)
		job->saves = world->healed ? 2 : (unsigned)sim_between(sim, 1, 6);
	return job;
}

void remote_job_stir(const struct remote_proc *p)
{
	for (unsigned i = 0; remote_is_rank(p) && i < REMOTE_PROCS; i++)
		if (p->world->procs[i] && p->world->procs[i]->job == p->job)
			p->world->procs[i]->poked = true;
}

void remote_job_break(struct remote_proc *p)
{
	struct sim *sim = &p->world->sim;

	if (!remote_is_rank(p))
		return;
	if (!p->job->broken && !p->world->healed)
		p->job->end_ns =
			sim->now_ns + sim_below(sim, sim_chance(sim, 5000) ? SECOND : 120 * SECOND);
	p->job->broken = true;
	remote_job_stir(p);
}

bool remote_all_arrived(const struct remote_proc *p)
{
	for (unsigned i = 0; remote_is_rank(p) && i < REMOTE_PROCS; i++) {
		const struct remote_proc *other = p->world->procs[i];
		if (other && other->job == p->job && !other->leaves && other->arrived < p->arrived)
			return false;
	}
	return true;
}

uint64_t remote_next_step(const struct remote_proc *p)
{
	return p->step + 1 + sim_mix64(p->job->number * UINT64_C(1000) + p->saved) % 3;
}

/* What another world of ranks has saved is shared out; in the store of a node is what its own ranks have. */
bool remote_reads(const struct remote_proc *p, const struct remote_record *record, uint32_t rank)
{
	if (!record || !remote_is_rank(p))
		return rank < (record ? record->ranks : 1);
	if (p->world->nodes && record->home == p->home)
		return rank == p->rank;
	return rank < record->ranks &&
	       (rank % p->job->ranks == p->rank || p->rank % record->ranks == rank);
}

uint64_t remote_ranks_land(struct remote_proc *p)
{
	return remote_is_rank(p) ? crowd_exchange_land(p->core.exchange, &p->kicked) : UINT64_MAX;
}

static bool is_ended(const struct remote *world, const struct remote_proc *p)
{
	return p && p->job && p->job->broken && !p->job->lost && !world->healed;
}

uint64_t remote_launcher_ns(const struct remote *world)
{
	uint64_t ns = UINT64_MAX;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (is_ended(world, world->procs[i]))
			ns = ckpt_min_u64(ns, world->procs[i]->job->end_ns);
	return ns;
}

struct remote_proc *remote_left_over(const struct remote *world)
{
	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (is_ended(world, world->procs[i]) &&
			world->procs[i]->job->end_ns <= world->sim.now_ns)
			return world->procs[i];
	return NULL;
}

/* That a rank has died, or stood still, is no damage. */
bool remote_may_blame(const struct remote_proc *p, int code)
{
	bool damage = code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT ||
		      code == CKPT_EMISMATCH || code == CKPT_ENOSTORE || code == -ENOMEM;

	/* Two nodes have brought what the bucket had at two moments: the next start brings anew. */
	if (remote_is_rank(p) && code == CKPT_EOTHERNODE)
		return p->world->nodes && !p->world->homes[p->home].claimed;
	return remote_is_rank(p) && !damage &&
	       (p->job->broken || p->world->sim.fired[SIM_FREEZE] > 0);
}
