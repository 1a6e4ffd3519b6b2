/* SPDX-License-Identifier: Apache-2.0 */
/* How large staging memory is to be, and how it becomes so: mapped, touched, pinned, given to the pool. */
#include "engine/core/pool_growth.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/core/core.h"
#include "engine/core/pool_allowance.h"

/* A job's: the copies of the save wait behind it. */
#define TOUCH_BYTES (UINT64_C(8) << 20)
/* A GPU copies nothing while it pins a part, and finds a part among all others for each small tensor. */
#define PART_BYTES  (UINT64_C(64) << 20)
#define PARTS_MAX   64
/* Saves from one attempt to the next, when the memory is too little for the shard. */
#define PAUSE_MAX   64
/* Of what was available at first, so much is left to others while the pool grows: half if nobody else takes any. */
#define REST        4

static struct ckpt_pool_growth *growth_of(struct ckpt_job *job)
{
	return CKPT_CONTAINER(job, struct ckpt_pool_growth, job.job);
}

static unsigned slots_in(const struct ckpt_pool_growth *g, uint64_t bytes)
{
	return (unsigned)ckpt_min_u64(bytes / g->core->config.block_bytes, UINT32_MAX);
}

static uint64_t bytes_of(const struct ckpt_pool_growth *g, uint64_t slots)
{
	return slots * g->core->config.block_bytes;
}

static char *at_slot(const struct ckpt_pool_growth *g, unsigned slot)
{
	return (char *)ckpt_pool_base(g->core->parts.pool) + bytes_of(g, slot);
}

/* How many slots there will be. */
static void set_target(struct ckpt_pool_growth *g)
{
	uint64_t limit = ckpt_min_u64(g->allowed, ckpt_pool_most(g->core->parts.pool));
	size_t wanted = g->shard;
	unsigned count;

	/* Of two states, a part of the second one is of no use. */
	if (g->core->config.delta && limit < wanted)
		wanted = (wanted + 1) / 2;
	/* With all slots taken by the save, those who read have the least that there may be. */
	g->target = (unsigned)ckpt_min_u64(wanted + CKPT_POOL_SLOTS_MIN, limit);
	if (g->target <= g->ready || wanted <= g->ready) {
		g->target = g->ready;
		return;
	}
	count = g->target - g->ready;
	g->part =
		(unsigned)ckpt_max_u64(1, ckpt_max_u64(slots_in(g, PART_BYTES), count / PARTS_MAX));
	/* Each attempt makes parts, and small ones would become many. */
	if (g->again && g->target < wanted && count < g->part)
		g->target = g->ready;
}

static void decide_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);
	struct ckpt_core *core = g->core;
	uint64_t need = bytes_of(g, (uint64_t)g->shard + CKPT_POOL_SLOTS_MIN);

	g->job.result = ckpt_allowance_begin(core, need);
	if (g->job.result == -EAGAIN && g->tries >= CKPT_ALLOWANCE_TRIES) {
		ckpt_allowance_alone(core);
		g->job.result = 0;
	}
	if (g->job.result < 0)
		return;
	g->allowed = slots_in(g, core->allowance->bytes);
	set_target(g);
	ckpt_allowance_end(core, bytes_of(g, g->target));
	if (g->target == g->ready)
		return;
	g->job.result =
		ckpt_pool_add(core->parts.pool, g->ready, g->target - g->ready, &g->job.error);
	if (g->job.result < 0)
		g->target = g->ready;
}

static void place_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);

	ckpt_devices_place(
		g->core->parts.devices, at_slot(g, g->ready), bytes_of(g, g->target - g->ready));
	/* That may have taken long. The difference is a part, also where this number wraps. */
	g->looked = g->ready - g->part;
}

/*
 * Other programs may have taken memory since it was decided how much there is. 0: it is still there. Asked before each
 * part: pages that are touched are never given back.
 */
static int look_again(struct ckpt_pool_growth *g)
{
	uint64_t left = bytes_of(g, g->target - g->touched);
	struct ckpt_memlimit now;

	if (g->touched - g->looked < g->part)
		return 0;
	g->looked = g->touched;
	ckpt_pool_look(g->core->parts.pool, &now);
	if (now.available >= left &&
		now.available - left >= g->core->allowance->memory.available / REST)
		return 0;
	return ckpt_fail(&g->job.error, -ENOMEM,
		"memory has been taken meanwhile, and %llu MiB are available because of %s",
		(unsigned long long)now.available >> 20, now.bound);
}

/* A few more slots. */
static void touch_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);
	unsigned count = (unsigned)ckpt_max_u64(1, slots_in(g, TOUCH_BYTES));
	int r;

	g->job.result = look_again(g);
	if (g->job.result < 0)
		return;
	count = (unsigned)ckpt_min_u64(count, g->target - g->touched);
	r = ckpt_pool_touch(g->core->parts.pool, g->touched, count);
	if (r < 0) {
		g->job.result = ckpt_fail(&g->job.error, r, "%llu MiB more cannot be had: %s",
			(unsigned long long)bytes_of(g, g->target - g->touched) >> 20,
			ckpt_code_text(r));
		return;
	}
	g->touched += count;
}

/* Where GPUs have pinned staging, a slot is ready when its part is pinned as well. */
static bool is_part(const struct ckpt_pool_growth *g)
{
	return g->touched == g->target || g->touched - g->ready >= g->part ||
	       !ckpt_devices_pinned(g->core->parts.devices);
}

static void pin_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);

	g->job.result = ckpt_devices_add(g->core->parts.devices, at_slot(g, g->ready),
		bytes_of(g, g->touched - g->ready), &g->job.error);
	if (g->job.result == 0)
		g->ready = g->touched;
}

static void remove_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);

	/* Mapped with what stays in use, its pages would stay as well. */
	ckpt_pool_drop(g->core->parts.pool, g->ready, g->touched - g->ready);
	ckpt_pool_remove(g->core->parts.pool, g->ready, g->target - g->ready);
	g->touched = g->ready;
	g->target = g->ready;
}

/* What it has come to. */
static void tell_work(struct ckpt_job *job)
{
	struct ckpt_pool_growth *g = growth_of(job);

	g->job.result = ckpt_allowance_begin(g->core, 0);
	if (g->job.result == 0)
		ckpt_allowance_end(g->core, bytes_of(g, g->ready));
}

/* Why there is no more. */
static void word_bound(const struct ckpt_pool_growth *g, char *text, size_t size)
{
	unsigned most = ckpt_pool_most(g->core->parts.pool);
	const struct ckpt_allowance *a = g->core->allowance;

	if (g->error.code < 0)
		(void)snprintf(text, size, "%s", g->error.message);
	else if (a->memory.available == UINT64_MAX || a->memory.unsure)
		(void)snprintf(text, size, "how much memory is available is not known");
	else if (most < g->allowed && most == CKPT_POOL_SLOTS_GROWN)
		(void)snprintf(text, size,
			"it grows to %u blocks at most, and larger ones hold more (block_bytes)",
			most);
	else if (most < g->allowed)
		(void)snprintf(text, size,
			"it does not grow further where address space is limited (ulimit -v)");
	else
		(void)snprintf(text, size,
			"the ranks of a node (%u) share half of the memory that is available, "
			"which "
			"is %llu MiB because of %s, and of what they hold, which is %llu MiB %s",
			g->core->config.sharers, (unsigned long long)a->memory.available >> 20,
			a->memory.bound,
			(unsigned long long)(g->agreed ? a->all_held : a->held) >> 20,
			g->agreed ? "in all" : "each");
}

static void say(struct ckpt_pool_growth *g)
{
	struct ckpt_core *core = g->core;
	unsigned slots = ckpt_pool_slots(core->parts.pool);
	unsigned long long have = bytes_of(g, slots) >> 20;
	unsigned long long need = (bytes_of(g, g->shard) + (1 << 20) - 1) >> 20;
	char bound[sizeof(g->error.message)];

	g->agreed = ckpt_allowance_agreed(core) && !core->allowance->alone;
	if (core->allowance->alone)
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"%s: another rank of this node does not let go of the file by which they "
			"agree on staging memory: this one takes an even share",
			core->parts.label);
	if (slots >= g->shard) {
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"%s: staging memory is %llu MiB, and holds %s of %llu MiB",
			core->parts.label, have,
			core->config.delta ? "two states of this rank" : "this rank's shard", need);
		return;
	}
	/* Before the first save other ranks may not have come yet. */
	if (g->agreed && !g->first)
		ckpt_allowance_say_missing(core);
	if (g->told)
		return;
	/* What they agree on later is another reason. */
	g->told = !core->allowance->alone;
	word_bound(g, bound, sizeof(bound));
	ckpt_log(core->parts.log, CKPT_LOG_WARN,
		"%s: staging memory is %llu MiB, and %s %llu MiB: %s. %s; pool_bytes sets another "
		"size",
		core->parts.label, have,
		core->config.delta ? "two states of this rank take" : "this rank's shard takes",
		need, bound,
		core->config.delta && slots >= (g->shard + 1) / 2
			? "Each step is stored by itself"
			: "A save waits for the disk with the rest");
}

static void rested(struct ckpt_timer *timer)
{
	struct ckpt_pool_growth *g = CKPT_CONTAINER(timer, struct ckpt_pool_growth, timer);

	g->rested = true;
	ckpt_task_wake(&g->task);
}

/* Another rank has the ledger: the job is to be done again after a rest. */
static bool is_to_rest(struct ckpt_pool_growth *g)
{
	struct ckpt_core *core = g->core;

	if (g->job.result != -EAGAIN)
		return false;
	/* To decide, it goes on alone; what is to be told is told with the next save. */
	g->job.result = 0;
	if (core->closing || g->tries++ >= CKPT_ALLOWANCE_TRIES)
		return false;
	g->rested = false;
	g->timer.fire = rested;
	ckpt_core_timer_set(
		core, &g->timer, ckpt_env_now(core->parts.env) + CKPT_ALLOWANCE_REST_NS);
	return true;
}

static int tell_body(struct ckpt_task *task)
{
	struct ckpt_pool_growth *g = CKPT_CONTAINER(task, struct ckpt_pool_growth, task);

	CKPT_TASK_BEGIN(task);
	if (g->core->closing)
		return 0;
	say(g);
	g->tries = 0;
	do {
		/* One that shares no ledger has nobody to tell. */
		if (!ckpt_allowance_agreed(g->core))
			return 0;
		ckpt_task_job_start_behind(&g->job, g->core->parts.env, task, tell_work);
		CKPT_AWAIT(task, g->job.done);
		g->rested = !is_to_rest(g);
		if (g->rested)
			return 0;
		CKPT_AWAIT(task, g->rested);
	} while (!g->core->closing);
	CKPT_TASK_END(task);
}

static int make_body(struct ckpt_task *task)
{
	struct ckpt_pool_growth *g = CKPT_CONTAINER(task, struct ckpt_pool_growth, task);
	struct ckpt_pool *pool = g->core->parts.pool;
	struct ckpt_env *env = g->core->parts.env;

	CKPT_TASK_BEGIN(task);
	if (g->job.result == 0 && g->ready < g->target && !g->core->closing) {
		/* No worker waits for a driver: nobody knows how long, and the copies of every save need them. */
		ckpt_task_job_start_behind(&g->job, g->patient, task, place_work);
		CKPT_AWAIT(task, g->job.done);
	}
	while (g->job.result == 0 && g->ready < g->target && !g->core->closing) {
		ckpt_task_job_start_behind(&g->job, env, task, touch_work);
		CKPT_AWAIT(task, g->job.done);
		if (g->job.result < 0 || g->core->closing || !is_part(g))
			continue;
		ckpt_task_job_start_behind(&g->job, g->patient, task, pin_work);
		CKPT_AWAIT(task, g->job.done);
		ckpt_pool_grow(pool, g->ready - ckpt_pool_slots(pool));
	}
	(void)ckpt_task_job_take(&g->job, &g->error);
	if (g->ready < g->target) {
		ckpt_task_job_start_behind(&g->job, env, task, remove_work);
		CKPT_AWAIT(task, g->job.done);
	}
	return ckpt_task_continue(task, tell_body);
	CKPT_TASK_END(task);
}

static int grow_body(struct ckpt_task *task)
{
	struct ckpt_pool_growth *g = CKPT_CONTAINER(task, struct ckpt_pool_growth, task);

	CKPT_TASK_BEGIN(task);
	g->ready = ckpt_pool_slots(g->core->parts.pool);
	g->touched = g->ready;
	g->looked = g->ready;
	g->target = g->ready;
	g->tries = 0;
	for (;;) {
		ckpt_task_job_start_behind(&g->job, g->core->parts.env, task, decide_work);
		CKPT_AWAIT(task, g->job.done);
		if (!is_to_rest(g))
			break;
		CKPT_AWAIT(task, g->rested);
	}
	return ckpt_task_continue(task, make_body);
	CKPT_TASK_END(task);
}

static void grow_done(struct ckpt_task *task)
{
	struct ckpt_core *core = CKPT_CONTAINER(task, struct ckpt_pool_growth, task)->core;

	core->commands--;
	ckpt_task_wake(core->closer);
}

/* Whether this save asks for more. Where memory is too little, later ones do so as well: another program may end. */
static bool is_due(struct ckpt_pool_growth *g, const struct ckpt_pool *pool, size_t blocks)
{
	g->again = blocks <= g->shard;
	g->first = g->shard == 0;
	if (!g->again) {
		g->shard = blocks;
		g->pause = 1;
		g->passed = 0;
		g->told = false;
		return true;
	}
	if (blocks <= ckpt_pool_slots(pool) || ckpt_pool_slots(pool) == ckpt_pool_most(pool) ||
		++g->passed < g->pause)
		return false;
	g->pause = (unsigned)ckpt_min_u64(UINT64_C(2) * g->pause, PAUSE_MAX);
	g->passed = 0;
	return true;
}

/* Nothing is added, and nobody is to be told. */
static bool is_still(struct ckpt_pool_growth *g, size_t blocks)
{
	bool fits = blocks <= ckpt_pool_slots(g->core->parts.pool);

	if (fits)
		return !ckpt_allowance_agreed(g->core);
	return ckpt_devices_env(g->core->parts.devices, &g->error, &g->patient) < 0;
}

void ckpt_pool_growth_want(struct ckpt_core *core, size_t blocks)
{
	struct ckpt_pool_growth *g = core->growth;

	g->wanted = g->shrinking ? blocks : 0;
	/* The user has set the size; or it is being decided, and the next save asks again. */
	if (core->config.sharers == 0 || ckpt_pool_growth_active(core) ||
		!is_due(g, core->parts.pool, blocks))
		return;
	g->core = core;
	ckpt_error_clear(&g->error);
	if (is_still(g, blocks)) {
		say(g);
		return;
	}
	core->commands++;
	ckpt_task_start(&g->task, &core->sched, grow_body, grow_done);
}

void ckpt_pool_growth_retry(struct ckpt_core *core)
{
	size_t blocks = core->growth->wanted;

	core->growth->wanted = 0;
	if (blocks > 0 && core->save && !core->closing)
		ckpt_pool_growth_want(core, blocks);
}

bool ckpt_pool_growth_active(const struct ckpt_core *core)
{
	return ckpt_task_active(&core->growth->task) || core->growth->shrinking;
}

int ckpt_pool_growth_open(struct ckpt_core *core)
{
	core->growth = ckpt_alloc(sizeof(*core->growth));
	core->allowance = ckpt_alloc(sizeof(*core->allowance));
	return core->growth && core->allowance ? 0 : -ENOMEM;
}

void ckpt_pool_growth_close(struct ckpt_core *core)
{
	ckpt_free(core->growth);
	ckpt_free(core->allowance);
	core->growth = NULL;
	core->allowance = NULL;
}
