/* SPDX-License-Identifier: Apache-2.0 */
/* Telling and hearing. */
#include "engine/ranks/exchange_call.h"

#include <errno.h>

#include "base/error.h"

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

static struct ckpt_exchange_call *call_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_exchange_call, task);
}

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_exchange_call, timer)->task);
}

static bool heard(const struct ckpt_exchange_call *call)
{
	for (size_t i = 0; i < call->count; i++)
		if (call->items[i].data)
			return true;
	return false;
}

static int late(struct ckpt_exchange_call *call)
{
	const struct ckpt_core *core = call->core;

	if (call->why.code)
		return ckpt_fail(call->err, -ETIMEDOUT,
			"the ranks of %s do not reach each other: %s", core->parts.label,
			call->why.message);
	return ckpt_fail(call->err, -ETIMEDOUT, "the other ranks of %s have not answered in time",
		core->parts.label);
}

/* Until it is time to try again. */
static void pause(struct ckpt_exchange_call *call)
{
	uint64_t now_ns = ckpt_env_now(call->core->parts.env);
	uint64_t most_ns = ckpt_min_u64(PAUSE_MAX_NS,
		ckpt_max_u64(PAUSE_SMALL_JOB_NS, call->core->config.world * PAUSE_BY_RANK_NS));
	uint64_t pause_ns = ckpt_min_u64(
		most_ns, ckpt_max_u64(PAUSE_MIN_NS, (now_ns - call->begun_ns) / PAUSE_PART));

	pause_ns = ckpt_max_u64(pause_ns, call->rest_ns);
	call->timer.fire = timer_fired;
	ckpt_core_timer_set(
		call->core, &call->timer, ckpt_min_u64(now_ns + pause_ns, call->deadline_ns));
}

/* The engine closes. What is to be told is tried again, at once and then for a while. */
static bool parted(struct ckpt_exchange_call *call, bool tells)
{
	uint64_t now_ns = ckpt_env_now(call->core->parts.env);

	/* A program that has ended its service does not take it up again. */
	if (!tells || call->op.result == CKPT_ECLOSED)
		return true;
	if (call->parting_ns == 0)
		call->parting_ns = now_ns + FAREWELL_NS;
	return now_ns >= call->parting_ns;
}

/* What the owner is told when nothing more is tried; 0: go on. */
static int over(struct ckpt_exchange_call *call, bool tells)
{
	if (*call->stop)
		return *call->stop;
	if (call->core->closing && parted(call, tells))
		return ckpt_fail(call->err, CKPT_ECLOSED,
			"the engine of %s was closed before the other ranks had answered",
			call->core->parts.label);
	return ckpt_env_now(call->core->parts.env) < call->deadline_ns ? 0 : late(call);
}

/* Whether the exchange has answered. It is not waited for longer than is of use. */
static bool answered(struct ckpt_exchange_call *call)
{
	const struct ckpt_core *core = call->core;

	if (!call->op.done && (*call->stop || core->closing))
		ckpt_exchange_hasten(
			&call->op, ckpt_env_now(core->parts.env) + (*call->stop ? 0 : FAREWELL_NS));
	return call->op.done;
}

static int tell_body(struct ckpt_task *task)
{
	struct ckpt_exchange_call *call = call_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		ckpt_error_clear(&call->why);
		ckpt_exchange_put(call->core->exchange, &call->op, call->items, call->count);
		CKPT_AWAIT(task, answered(call));
		if (call->op.result == 0 || call->op.result == -EEXIST)
			return call->op.result;
		pause(call);
		CKPT_AWAIT(task, !call->timer.set || *call->stop ||
					 (call->core->closing && call->parting_ns == 0));
		ckpt_core_timer_clear(call->core, &call->timer);
		r = over(call, true);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static int drop_body(struct ckpt_task *task)
{
	struct ckpt_exchange_call *call = call_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_exchange_drop(call->core->exchange, &call->op, call->items, call->count);
	CKPT_AWAIT(task, answered(call));
	return call->op.result;
	CKPT_TASK_END(task);
}

static int hear_body(struct ckpt_task *task)
{
	struct ckpt_exchange_call *call = call_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		ckpt_error_clear(&call->why);
		ckpt_exchange_get(call->core->exchange, &call->op, call->items, call->count);
		CKPT_AWAIT(task, answered(call));
		/* Also of one that has failed at a later item. */
		if (heard(call))
			return 0;
		pause(call);
		CKPT_AWAIT(task, !call->timer.set || *call->stop || call->core->closing);
		ckpt_core_timer_clear(call->core, &call->timer);
		r = over(call, false);
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static void call_done(struct ckpt_task *task)
{
	struct ckpt_exchange_call *call = call_of(task);
	struct ckpt_exchange_call **link = &call->core->calls;

	while (*link != call)
		link = &(*link)->next;
	*link = call->next;
	ckpt_task_wake(call->waiter);
}

void ckpt_exchange_call_stop_all(struct ckpt_core *core)
{
	CKPT_ASSERT(core->closing);
	for (struct ckpt_exchange_call *call = core->calls; call; call = call->next)
		ckpt_task_wake(&call->task);
}

static void start(struct ckpt_exchange_call *call, ckpt_task_fn *body)
{
	CKPT_ASSERT(!ckpt_task_active(&call->task) && call->core->exchange);
	ckpt_exchange_op_init(&call->op, &call->task, &call->why);
	call->op.deadline_ns = ckpt_max_u64(call->deadline_ns, call->answer_ns);
	ckpt_error_clear(&call->why);
	call->parting_ns = 0;
	call->begun_ns = call->since_ns ? call->since_ns : ckpt_env_now(call->core->parts.env);
	call->next = call->core->calls;
	call->core->calls = call;
	ckpt_task_start(&call->task, &call->core->sched, body, call_done);
}

void ckpt_exchange_call_put(struct ckpt_exchange_call *call)
{
	start(call, tell_body);
}

static void start_empty(struct ckpt_exchange_call *call, ckpt_task_fn *body)
{
	for (size_t i = 0; i < call->count; i++) {
		call->items[i].data = NULL;
		call->items[i].length = 0;
	}
	start(call, body);
}

void ckpt_exchange_call_get(struct ckpt_exchange_call *call)
{
	start_empty(call, hear_body);
}

void ckpt_exchange_call_drop(struct ckpt_exchange_call *call)
{
	start_empty(call, drop_body);
}
