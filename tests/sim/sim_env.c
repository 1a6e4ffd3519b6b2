/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that finish when the scheduler says so. */
#include "sim_env.h"

#include <stdlib.h>

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)

struct sim_work {
	struct sim_work *next;
	struct ckpt_job *job;
	uint64_t ready_ns;
};

static struct sim_env *env_of(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct sim_env, env);
}

static uint64_t sim_now_ns(struct ckpt_env *env)
{
	return env_of(env)->sim->now_ns + env_of(env)->ahead_ns;
}

static uint64_t sim_wall_ms(struct ckpt_env *env)
{
	return env_of(env)->wall_ms + env_of(env)->sim->now_ns / MILLISECOND;
}

static uint64_t sim_env_random(struct ckpt_env *env)
{
	return sim_random(env_of(env)->sim);
}

static void sim_run(struct ckpt_env *base, struct ckpt_job *job)
{
	struct sim_env *env = env_of(base);
	struct sim *sim = env->sim;
	struct sim_work *work = sim_alloc(sizeof(*work));
	struct sim_work **link = &env->head;
	bool slow = sim_fault(sim, SIM_JOB_SLOW);

	while (*link)
		link = &(*link)->next;
	*link = work;
	work->job = job;
	work->ready_ns = sim->now_ns + (slow ? sim_between(sim, MILLISECOND, 40 * MILLISECOND)
					     : sim_between(sim, 0, 50 * MICROSECOND));
}

static const struct ckpt_env_ops sim_env_ops = {
	.name = "sim",
	.now_ns = sim_now_ns,
	.wall_ms = sim_wall_ms,
	.random = sim_env_random,
	.run = sim_run,
};

void sim_env_init(struct sim_env *env, struct sim *sim, struct ckpt_inbox *inbox, unsigned owner,
	unsigned node)
{
	uint64_t skew = sim_mix64(sim->seed ^ (uint64_t)node << 40);

	/* How long each machine has been up; and what day it is there, give or take three years. */
	*env = (struct sim_env){.env = {.ops = &sim_env_ops, .inbox = inbox},
		.sim = sim,
		.owner = owner,
		.ahead_ns = skew % 1000000 * UINT64_C(1000000000),
		.wall_ms = UINT64_C(1600000000000) + skew % UINT64_C(200000000000)};
}

unsigned sim_env_ready(const struct sim_env *env)
{
	unsigned count = 0;

	for (const struct sim_work *w = env->head; w; w = w->next)
		count += w->ready_ns <= env->sim->now_ns;
	return count;
}

uint64_t sim_env_next(const struct sim_env *env)
{
	uint64_t next_ns = UINT64_MAX;

	for (const struct sim_work *w = env->head; w; w = w->next)
		next_ns = ckpt_min_u64(next_ns, w->ready_ns);
	return next_ns;
}

void sim_env_finish(struct sim_env *env, unsigned n)
{
	struct sim_work **link = &env->head;

	CKPT_ASSERT(n < sim_env_ready(env));
	while ((*link)->ready_ns > env->sim->now_ns || n-- > 0)
		link = &(*link)->next;
	struct sim_work *work = *link;
	*link = work->next;
	struct ckpt_job *job = work->job;
	free(work);
	sim_note(env->sim, env->owner, "job", "", job->urgent, 0, 0);
	job->work(job);
	ckpt_inbox_push(env->env.inbox, &job->node);
}

void sim_env_die(struct sim_env *env)
{
	while (env->head) {
		struct sim_work *work = env->head;
		env->head = work->next;
		free(work);
	}
}
