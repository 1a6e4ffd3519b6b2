/* SPDX-License-Identifier: Apache-2.0 */
/* How much staging memory is given back, and how: out of the pool, the disk's table, the GPUs and the address space. */
#include "engine/core/pool_shrink.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/core/core.h"
#include "engine/core/pool_allowance.h"
#include "engine/core/pool_growth.h"

/* At most, where no GPU has pinned it: a save that comes meanwhile does without it. */
#define PART_BYTES (UINT64_C(64) << 20)
/* Saves that need less. States that are saved in turns, a small one and a large one, are no reason to give back. */
#define SAVES      8
/* Of the pool, so much is worth it. */
#define WORTH      8
/* When of all that the ranks hold and what is available less than this part is available, they give back. */
#define PRESSED    5

static struct ckpt_shrink *shrink_of(struct ckpt_job *job)
{
	return CKPT_CONTAINER(job, struct ckpt_shrink, job.job);
}

static uint64_t bytes_of(const struct ckpt_shrink *s, uint64_t slots)
{
	return slots * s->core->config.block_bytes;
}

static unsigned slots_in(const struct ckpt_shrink *s, uint64_t bytes)
{
	return (unsigned)ckpt_min_u64(bytes / s->core->config.block_bytes, UINT32_MAX);
}

static bool is_short(const struct ckpt_allowance *a)
{
	const struct ckpt_memlimit *memory = &a->memory;

	return memory->available != UINT64_MAX && !memory->unsure &&
	       memory->available < a->all_held / (PRESSED - 1);
}

/* Another rank that has the ledger is not waited for: the next save asks again. */
static void decide_work(struct ckpt_job *job)
{
	struct ckpt_shrink *s = shrink_of(job);
	struct ckpt_core *core = s->core;
	const struct ckpt_pool *pool = core->parts.pool;
	size_t shard = s->needed ? s->needed : core->growth->shard;
	uint64_t keep = UINT64_MAX;

	s->job.result =
		ckpt_allowance_begin(core, bytes_of(s, (uint64_t)shard + CKPT_POOL_SLOTS_MIN));
	if (s->job.result < 0)
		return;
	s->pressed = is_short(core->allowance);
	/* Until it is given back it is had. */
	ckpt_allowance_end(core, ckpt_pool_bytes(pool));
	if (s->needed)
		keep = (uint64_t)s->needed + CKPT_POOL_SLOTS_MIN;
	/* The others give back as well: what they have beyond their shares does not count. */
	if (s->pressed)
		keep = ckpt_min_u64(keep,
			slots_in(s, ckpt_max_u64(core->allowance->bytes, core->allowance->share)));
	keep = ckpt_max_u64(keep, ckpt_pool_least(pool));
	s->keep = (unsigned)ckpt_min_u64(keep, ckpt_pool_slots(pool));
}

static bool is_worth_it(const struct ckpt_shrink *s)
{
	uint64_t slots = ckpt_pool_slots(s->core->parts.pool);

	return s->keep < slots && (s->pressed || (slots - s->keep) * WORTH >= slots);
}

static void tail_work(struct ckpt_job *job)
{
	struct ckpt_shrink *s = shrink_of(job);

	s->tail = ckpt_devices_tail(s->core->parts.devices);
}

static bool is_in_the_way(const struct ckpt_shrink *s)
{
	return s->core->save || s->core->closing;
}

/* The next part leaves the pool. False: there is none, or somebody has a slot of it. */
static bool take_part(struct ckpt_shrink *s)
{
	struct ckpt_pool *pool = s->core->parts.pool;
	unsigned rest = ckpt_pool_slots(pool) - s->keep;

	s->count = s->tail ? slots_in(s, s->tail) : slots_in(s, PART_BYTES);
	if (!s->tail)
		s->count = (unsigned)ckpt_min_u64(s->count, rest);
	return !is_in_the_way(s) && s->count > 0 && s->count <= rest &&
	       ckpt_pool_shrink(pool, s->count);
}

static void forgotten(struct ckpt_node *node)
{
	struct ckpt_io_req *req = CKPT_CONTAINER(node, struct ckpt_io_req, node);
	struct ckpt_shrink *s = CKPT_CONTAINER(req, struct ckpt_shrink, forget);

	s->forgotten = true;
	ckpt_task_wake(&s->task);
}

/* Pages that a ring has registered stay where they are, whatever is mapped there. */
static void start_forgetting(struct ckpt_shrink *s)
{
	struct ckpt_core *core = s->core;

	s->forget = (struct ckpt_io_req){.op = CKPT_IO_OP_FORGET,
		.node.run = forgotten,
		.root = -1,
		.fd = -1,
		.slot = (int)ckpt_pool_slots(core->parts.pool),
		.len = s->count};
	s->forgotten = !core->parts.io->registered;
	if (!s->forgotten)
		ckpt_io_submit(core->parts.io, &s->forget);
}

static void remove_work(struct ckpt_job *job)
{
	struct ckpt_shrink *s = shrink_of(job);
	struct ckpt_pool *pool = s->core->parts.pool;
	unsigned first = ckpt_pool_slots(pool);

	/* A GPU may have been opened meanwhile, and have pinned more as one. */
	s->trimmed = ckpt_devices_trim(s->core->parts.devices, bytes_of(s, s->count));
	if (!s->trimmed)
		return;
	ckpt_pool_drop(pool, first, s->count);
	ckpt_pool_remove(pool, first, s->count);
}

static void tell_work(struct ckpt_job *job)
{
	struct ckpt_shrink *s = shrink_of(job);

	/* If another rank has the ledger, it reads the old number, and the next save tells the new one. */
	if (ckpt_allowance_begin(s->core, 0) == 0)
		ckpt_allowance_end(s->core, ckpt_pool_bytes(s->core->parts.pool));
}

static void say(const struct ckpt_shrink *s)
{
	const struct ckpt_core *core = s->core;
	unsigned long long have = ckpt_pool_bytes(core->parts.pool) >> 20;
	unsigned long long given = bytes_of(s, s->given) >> 20;

	if (s->pressed)
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"%s: staging memory was lowered by %llu MiB to %llu MiB: only %llu MiB of "
			"memory are available because of %s",
			core->parts.label, given, have,
			(unsigned long long)core->allowance->memory.available >> 20,
			core->allowance->memory.bound);
	else
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"%s: staging memory was lowered by %llu MiB to %llu MiB: the last %d saves "
			"needed no more",
			core->parts.label, given, have, SAVES);
}

/* A shard that is larger than this makes the pool grow again. */
static void note_given(struct ckpt_shrink *s)
{
	struct ckpt_pool_growth *g = s->core->growth;

	if (s->needed)
		g->shard = s->needed;
	g->pause = 1;
	g->passed = 0;
	g->told = false;
}

/* What the saves have said has been done, and others are to be seen. If one has begun, it goes on after that. */
static void settle(struct ckpt_shrink *s)
{
	if (s->needed == 0 || s->saves != s->seen)
		return;
	s->largest = 0;
	s->saves = 0;
}

static int end_body(struct ckpt_task *task)
{
	struct ckpt_shrink *s = CKPT_CONTAINER(task, struct ckpt_shrink, task);

	CKPT_TASK_BEGIN(task);
	settle(s);
	if (s->given == 0 || s->core->closing)
		return 0;
	note_given(s);
	say(s);
	if (ckpt_allowance_agreed(s->core)) {
		ckpt_task_job_start_behind(&s->job, s->core->parts.env, task, tell_work);
		CKPT_AWAIT(task, s->job.done);
	}
	CKPT_TASK_END(task);
}

/* The part was not given back after all. */
static int return_part(struct ckpt_task *task)
{
	struct ckpt_shrink *s = CKPT_CONTAINER(task, struct ckpt_shrink, task);

	ckpt_pool_grow(s->core->parts.pool, s->count);
	return ckpt_task_continue(task, end_body);
}

static int part_body(struct ckpt_task *task)
{
	struct ckpt_shrink *s = CKPT_CONTAINER(task, struct ckpt_shrink, task);

	CKPT_TASK_BEGIN(task);
	ckpt_task_job_start_behind(&s->job, s->patient, task, tail_work);
	CKPT_AWAIT(task, s->job.done);
	if (!take_part(s))
		return ckpt_task_continue(task, end_body);
	start_forgetting(s);
	CKPT_AWAIT(task, s->forgotten);
	if (s->forget.result < 0 || is_in_the_way(s))
		return return_part(task);
	ckpt_task_job_start_behind(&s->job, s->patient, task, remove_work);
	CKPT_AWAIT(task, s->job.done);
	if (!s->trimmed)
		return return_part(task);
	s->given += s->count;
	return ckpt_task_continue(task, part_body);
	CKPT_TASK_END(task);
}

static int shrink_body(struct ckpt_task *task)
{
	struct ckpt_shrink *s = CKPT_CONTAINER(task, struct ckpt_shrink, task);

	CKPT_TASK_BEGIN(task);
	ckpt_task_job_start_behind(&s->job, s->core->parts.env, task, decide_work);
	CKPT_AWAIT(task, s->job.done);
	if (s->job.result < 0 || is_in_the_way(s))
		return 0;
	if (!is_worth_it(s)) {
		settle(s);
		return 0;
	}
	/* What comes next needs no words: without that thread nothing is given back. */
	if (ckpt_devices_env(s->core->parts.devices, NULL, &s->patient) < 0)
		return 0;
	return ckpt_task_continue(task, part_body);
	CKPT_TASK_END(task);
}

static void shrink_done(struct ckpt_task *task)
{
	struct ckpt_core *core = CKPT_CONTAINER(task, struct ckpt_shrink, task)->core;

	core->growth->shrinking = false;
	core->commands--;
	ckpt_pool_growth_retry(core);
	ckpt_task_wake(core->closer);
}

void ckpt_shrink_note(struct ckpt_core *core, size_t blocks)
{
	struct ckpt_shrink *s = core->shrink;

	s->largest = blocks > s->largest ? blocks : s->largest;
	s->saves++;
}

void ckpt_shrink_want(struct ckpt_core *core)
{
	struct ckpt_shrink *s = core->shrink;
	const struct ckpt_pool *pool = core->parts.pool;

	/* The user has set the size, or it has not grown. */
	if (core->config.sharers == 0 || core->closing || core->save ||
		ckpt_pool_growth_active(core) || ckpt_pool_slots(pool) == ckpt_pool_least(pool))
		return;
	s->core = core;
	s->given = 0;
	s->seen = s->saves;
	s->needed = s->saves >= SAVES ? s->largest : 0;
	core->growth->shrinking = true;
	core->commands++;
	ckpt_task_start(&s->task, &core->sched, shrink_body, shrink_done);
}

int ckpt_shrink_open(struct ckpt_core *core)
{
	core->shrink = ckpt_alloc(sizeof(*core->shrink));
	return core->shrink ? 0 : -ENOMEM;
}

void ckpt_shrink_close(struct ckpt_core *core)
{
	ckpt_free(core->shrink);
	core->shrink = NULL;
}
