/* SPDX-License-Identifier: Apache-2.0 */
/* Telling and hearing. */
#include "engine/talk.h"

#include <errno.h>

#include "base/fail.h"

/*
 * Asked again after a part of the time that was waited already, so that the last answer is noticed late by
 * this part only; and by no more than so much for each rank, for they all ask.
 */
#define PAUSE_PART         32
#define PAUSE_MIN_NS       UINT64_C(500000)
#define PAUSE_MAX_NS       UINT64_C(100000000)
#define PAUSE_BY_RANK_NS   UINT64_C(500000)
#define PAUSE_SMALL_JOB_NS UINT64_C(4000000)
/* An engine that closes gives the exchange so long to answer, and to take what others wait for. */
#define FAREWELL_NS        UINT64_C(1000000000)

static struct ckpt_talk *talk_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_talk, task);
}

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_talk, timer)->task);
}

static bool heard(const struct ckpt_talk *talk)
{
	for (size_t i = 0; i < talk->count; i++)
		if (talk->items[i].data)
			return true;
	return false;
}

static int late(struct ckpt_talk *talk)
{
	const struct ckpt_core *core = talk->core;

	if (talk->why.code)
		return ckpt_fail(talk->err, -ETIMEDOUT,
			"the ranks of %s do not reach each other: %s", core->parts.label,
			talk->why.message);
	return ckpt_fail(talk->err, -ETIMEDOUT, "the other ranks of %s have not answered in time",
		core->parts.label);
}

/* Until it is time to try again. */
static void pause(struct ckpt_talk *talk)
{
	uint64_t now_ns = ckpt_env_now(talk->core->parts.env);
	uint64_t most_ns = ckpt_min_u64(PAUSE_MAX_NS,
		ckpt_max_u64(PAUSE_SMALL_JOB_NS, talk->core->config.world * PAUSE_BY_RANK_NS));
	uint64_t pause_ns = ckpt_min_u64(
		most_ns, ckpt_max_u64(PAUSE_MIN_NS, (now_ns - talk->begun_ns) / PAUSE_PART));

	pause_ns = ckpt_max_u64(pause_ns, talk->rest_ns);
	talk->timer.fire = timer_fired;
	ckpt_core_timer_set(
		talk->core, &talk->timer, ckpt_min_u64(now_ns + pause_ns, talk->deadline_ns));
}

/* The engine closes. What is to be told is tried again, at once and then for a while. */
static bool parted(struct ckpt_talk *talk, bool tells)
{
	uint64_t now_ns = ckpt_env_now(talk->core->parts.env);

	/* A program that has ended its service does not take it up again. */
	if (!tells || talk->op.result == CKPT_ECLOSED)
		return true;
	if (talk->parting_ns == 0)
		talk->parting_ns = now_ns + FAREWELL_NS;
	return now_ns >= talk->parting_ns;
}

/* What the owner is told when nothing more is tried; 0: go on. */
static int over(struct ckpt_talk *talk, bool tells)
{
	if (*talk->stop)
		return *talk->stop;
	if (talk->core->closing && parted(talk, tells))
		return ckpt_fail(talk->err, CKPT_ECLOSED,
			"the engine of %s was closed before the other ranks had answered",
			talk->core->parts.label);
	return ckpt_env_now(talk->core->parts.env) < talk->deadline_ns ? 0 : late(talk);
}

/* Whether the exchange has answered. It is not waited for longer than is of use. */
static bool answered(struct ckpt_talk *talk)
{
	const struct ckpt_core *core = talk->core;

	if (!talk->op.done && (*talk->stop || core->closing))
		ckpt_exchange_hasten(
			&talk->op, ckpt_env_now(core->parts.env) + (*talk->stop ? 0 : FAREWELL_NS));
	return talk->op.done;
}

static int tell_body(struct ckpt_task *task)
{
	struct ckpt_talk *talk = talk_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		ckpt_error_clear(&talk->why);
		ckpt_exchange_put(talk->core->exchange, &talk->op, talk->items, talk->count);
		CKPT_AWAIT(task, answered(talk));
		if (talk->op.result == 0 || talk->op.result == -EEXIST)
			return talk->op.result;
		pause(talk);
		CKPT_AWAIT(task, !talk->timer.set || *talk->stop ||
					 (talk->core->closing && talk->parting_ns == 0));
		ckpt_core_timer_clear(talk->core, &talk->timer);
		r = over(talk, true);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static int drop_body(struct ckpt_task *task)
{
	struct ckpt_talk *talk = talk_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_exchange_drop(talk->core->exchange, &talk->op, talk->items, talk->count);
	CKPT_AWAIT(task, answered(talk));
	return talk->op.result;
	CKPT_TASK_END(task);
}

static int hear_body(struct ckpt_task *task)
{
	struct ckpt_talk *talk = talk_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		ckpt_error_clear(&talk->why);
		ckpt_exchange_get(talk->core->exchange, &talk->op, talk->items, talk->count);
		CKPT_AWAIT(task, answered(talk));
		/* Also of one that has failed at a later item. */
		if (heard(talk))
			return 0;
		pause(talk);
		CKPT_AWAIT(task, !talk->timer.set || *talk->stop || talk->core->closing);
		ckpt_core_timer_clear(talk->core, &talk->timer);
		r = over(talk, false);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static void talk_done(struct ckpt_task *task)
{
	struct ckpt_talk *talk = talk_of(task);
	struct ckpt_talk **link = &talk->core->talks;

	while (*link != talk)
		link = &(*link)->next;
	*link = talk->next;
	ckpt_task_wake(talk->waiter);
}

void ckpt_talk_stop_all(struct ckpt_core *core)
{
	CKPT_ASSERT(core->closing);
	for (struct ckpt_talk *talk = core->talks; talk; talk = talk->next)
		ckpt_task_wake(&talk->task);
}

static void start(struct ckpt_talk *talk, ckpt_task_fn *body)
{
	CKPT_ASSERT(!ckpt_task_active(&talk->task) && talk->core->exchange);
	ckpt_exchange_op_init(&talk->op, &talk->task, &talk->why);
	talk->op.deadline_ns = ckpt_max_u64(talk->deadline_ns, talk->answer_ns);
	ckpt_error_clear(&talk->why);
	talk->parting_ns = 0;
	talk->begun_ns = talk->since_ns ? talk->since_ns : ckpt_env_now(talk->core->parts.env);
	talk->next = talk->core->talks;
	talk->core->talks = talk;
	ckpt_task_start(&talk->task, &talk->core->sched, body, talk_done);
}

void ckpt_talk_tell(struct ckpt_talk *talk)
{
	start(talk, tell_body);
}

static void start_empty(struct ckpt_talk *talk, ckpt_task_fn *body)
{
	for (size_t i = 0; i < talk->count; i++) {
		talk->items[i].data = NULL;
		talk->items[i].length = 0;
	}
	start(talk, body);
}

void ckpt_talk_hear(struct ckpt_talk *talk)
{
	start_empty(talk, hear_body);
}

void ckpt_talk_drop(struct ckpt_talk *talk)
{
	start_empty(talk, drop_body);
}
