/* SPDX-License-Identifier: Apache-2.0 */
/* One outcome for all ranks. */
#include "engine/ranks/round.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"

#define PUT_MAX_NS UINT64_C(10000000000)
#define NAMED_MAX  8
/* So many ranks are asked for in one question, beside the outcome. */
#define ASKED_MAX  (CKPT_EXCHANGE_BATCH - 1)

static struct ckpt_round *round_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_round, task);
}

static uint64_t timeout_ns(const struct ckpt_core *core)
{
	return (uint64_t)core->config.save_timeout_ms * 1000000;
}

static uint64_t now_ns(const struct ckpt_round *round)
{
	return ckpt_env_now(round->core->parts.env);
}

/* How long a failure is put: the others receive it before their own deadline, and its caller waits no longer. */
static uint64_t put_ns(const struct ckpt_core *core)
{
	return ckpt_min_u64(timeout_ns(core) / 8, PUT_MAX_NS);
}

/* Beyond a deadline: this rank ends then without an answer of the exchange. */
static uint64_t limit_ns(const struct ckpt_core *core)
{
	return put_ns(core) / 2 * 3;
}

uint64_t ckpt_round_deadline_within(const struct ckpt_core *core, uint64_t within_ns)
{
	uint64_t eighths = core->config.rank == 0 ? 6 : 7;

	return ckpt_env_now(core->parts.env) + within_ns / 8 * eighths - put_ns(core) / 2;
}

uint64_t ckpt_round_deadline(const struct ckpt_core *core)
{
	return ckpt_round_deadline_within(core, timeout_ns(core));
}

static void end(struct ckpt_round *round)
{
	round->decided = true;
	ckpt_core_timer_clear(round->core, &round->limit);
	ckpt_task_wake(round->waiter);
}

/* The failure of this rank, which it has, is the outcome here. */
static void end_alone(struct ckpt_round *round)
{
	CKPT_ASSERT(round->failed);
	if (round->decided)
		return;
	round->alone = true;
	(void)round->ops->receive(round, NULL);
	end(round);
}

/* This rank fails, unless it has. */
static void fail(struct ckpt_round *round, int code)
{
	if (round->failed)
		return;
	round->failed = true;
	round->ops->fail(round, code);
}

static void limit_fired(struct ckpt_timer *timer)
{
	struct ckpt_round *round = CKPT_CONTAINER(timer, struct ckpt_round, limit);

	if (!round->failed) {
		ckpt_error_clear(&round->why);
		fail(round,
			ckpt_fail(&round->why, -ETIMEDOUT,
				"the exchange of the ranks of %s does not answer: see whether its "
				"storage hangs",
				round->core->parts.label));
	}
	end_alone(round);
}

static void set_limit(struct ckpt_round *round, uint64_t deadline_ns)
{
	if (round->decided || deadline_ns == UINT64_MAX)
		return;
	/* A failure after the deadline makes the caller wait no longer. */
	if (round->limit.set && now_ns(round) >= round->deadline_ns)
		return;
	/* A round may start after its deadline: the outcome of the others is there, and is asked for. */
	deadline_ns = ckpt_max_u64(deadline_ns, now_ns(round));
	round->limit.fire = limit_fired;
	ckpt_core_timer_set(round->core, &round->limit, deadline_ns + limit_ns(round->core));
}

static void prepare(struct ckpt_round *round, const int *stop, uint64_t deadline_ns, uint32_t rank)
{
	struct ckpt_exchange_call *call = &round->call;

	call->core = round->core;
	call->stop = stop;
	call->deadline_ns = deadline_ns;
	/* After the deadline, too, the exchange is asked once, and has the time to answer. */
	call->answer_ns = now_ns(round) + put_ns(round->core);
	call->waiter = &round->task;
	call->rest_ns = 0;
	call->count = 1;
	round->ops->name_key(round, rank, call->items[0].key);
}

/* This rank's value, under the key that was prepared. */
static int put(struct ckpt_round *round)
{
	struct ckpt_exchange_item *item = &round->call.items[0];

	ckpt_buf_free(&round->words);
	int r = round->ops->encode(round, item->key, &round->words);
	if (r < 0)
		return r;
	item->data = round->words.data;
	item->length = round->words.len;
	ckpt_exchange_call_put(&round->call);
	return 0;
}

/* The outcome is there. */
static void receive(struct ckpt_round *round, const struct ckpt_exchange_item *item)
{
	if (round->decided)
		return;
	ckpt_error_clear(&round->why);
	int r = round->ops->receive(round, item);
	if (r >= 0) {
		round->well = r > 0;
		end(round);
		return;
	}
	/* It knows of no success. A code of damage would be taken for damage of what the round is about. */
	fail(round, -EIO);
	end_alone(round);
}

/* From `rank` on, and then from the lowest on. One is missing. */
static uint32_t next_missing(const struct ckpt_round *round, uint32_t rank)
{
	const uint32_t world = round->core->config.world;

	CKPT_ASSERT(round->missing > 0);
	while (rank >= world || round->heard[rank])
		rank = rank < world ? rank + 1 : 0;
	return rank;
}

/*
 * Asks for the outcome, and on rank 0, once its own value is ready, for those that are missing: others each time, so that
 * the values that are there come with few questions.
 */
static void ask(struct ckpt_round *round)
{
	struct ckpt_exchange_call *call = &round->call;
	uint32_t rank;

	prepare(round, &round->interrupt, round->deadline_ns, CKPT_ROUND_OUTCOME);
	if (!round->ready)
		call->rest_ns = round->rest_ns;
	if (round->heard && round->ready) {
		rank = round->from = next_missing(round, round->from);
		while (call->count <= ckpt_min_u64(round->missing, ASKED_MAX)) {
			round->ops->name_key(round, rank, call->items[call->count++].key);
			rank = next_missing(round, rank + 1);
		}
	}
	ckpt_exchange_call_get(call);
}

/* Rank 0: one rank has put its value. */
static void take(struct ckpt_round *round, const struct ckpt_exchange_item *item, uint32_t rank)
{
	ckpt_error_clear(&round->why);
	int r = round->ops->take(round, item, rank);
	if (r < 0) {
		fail(round, r);
		return;
	}
	round->heard[rank] = true;
	round->missing--;
}

static void take_answers(struct ckpt_round *round)
{
	struct ckpt_exchange_call *call = &round->call;

	if (call->items[0].data)
		receive(round, &call->items[0]);
	/* As they were asked for. */
	for (size_t i = 1; i < call->count && !round->failed && !round->decided; i++) {
		uint32_t rank = next_missing(round, round->from);
		if (call->items[i].data)
			take(round, &call->items[i], rank);
		round->from = rank + 1;
	}
	ckpt_exchange_items_clear(call->items, call->count);
}

/* Of more ranks than the last question named it is not known whether they are missing. */
void ckpt_round_list_missing(const struct ckpt_round *round, char *out, size_t size)
{
	bool all = round->missing <= ASKED_MAX;
	uint32_t count = all ? round->missing : ASKED_MAX;
	uint32_t rank = all ? 0 : round->from;
	size_t at = 0;

	*out = '\0';
	for (uint32_t i = 0; i < ckpt_min_u64(count, NAMED_MAX); i++) {
		rank = next_missing(round, rank);
		at += (size_t)snprintf(out + at, size - at, "%s%u", i > 0 ? ", " : "", rank++);
	}
	if (count > NAMED_MAX)
		(void)snprintf(out + at, size - at, " and %s%u more", all ? "" : "at least ",
			count - NAMED_MAX);
}

static int late(struct ckpt_round *round)
{
	char missing[CKPT_ROUND_MISSING_CHARS];

	if (round->call.why.code)
		return ckpt_fail(&round->why, -ETIMEDOUT,
			"the ranks of %s do not reach each other: %s", round->core->parts.label,
			round->call.why.message);
	ckpt_round_list_missing(round, missing, sizeof(missing));
	round->ops->late(round, missing);
	return -ETIMEDOUT;
}

/* A call has ended in vain: this rank fails, unless it has something new to put. */
static void give_up(struct ckpt_round *round, int r)
{
	if (r == -EINTR)
		return;
	ckpt_error_clear(&round->why);
	if (r == -ETIMEDOUT)
		r = late(round);
	else if (r == -EEXIST)
		r = ckpt_fail(&round->why, -EINVAL,
			"another value of rank %u of %s is in the exchange: give every start of "
			"the "
			"job a session of its own",
			round->core->config.rank, round->core->parts.label);
	else if (r == CKPT_ECLOSED)
		r = ckpt_fail(&round->why, -ECANCELED, "its engine was closed");
	fail(round, r);
}

/* All values are with rank 0. After a failure it may still ask for this one, and must not miss it. */
static int drop_body(struct ckpt_task *task)
{
	struct ckpt_round *round = round_of(task);

	CKPT_TASK_BEGIN(task);
	if (round->put && round->well) {
		prepare(round, &round->never, now_ns(round) + put_ns(round->core),
			round->core->config.rank);
		ckpt_exchange_call_drop(&round->call);
		CKPT_AWAIT(task, round->call.task.finished);
	}
	CKPT_TASK_END(task);
}

/* The outcome is there, and it is not what this rank has put. */
static int read_body(struct ckpt_task *task)
{
	struct ckpt_round *round = round_of(task);

	CKPT_TASK_BEGIN(task);
	prepare(round, &round->never, now_ns(round) + put_ns(round->core), CKPT_ROUND_OUTCOME);
	ckpt_exchange_call_get(&round->call);
	CKPT_AWAIT(task, round->call.task.finished);
	if (round->call.task.result < 0) {
		give_up(round, round->call.task.result);
		end_alone(round);
		return 0;
	}
	receive(round, &round->call.items[0]);
	ckpt_exchange_items_clear(round->call.items, round->call.count);
	return ckpt_task_continue(task, drop_body);
	CKPT_TASK_END(task);
}

/* Puts the outcome. -ENOMEM: nothing was put. */
static int put_outcome(struct ckpt_round *round)
{
	uint64_t until_ns = now_ns(round) + put_ns(round->core);

	round->interrupt = 0;
	round->refusing = round->failed;
	if (round->refusing)
		set_limit(round, now_ns(round));
	else
		/* A round that was held may be released after its deadline, while the others still wait. */
		until_ns = ckpt_max_u64(until_ns, round->deadline_ns);
	prepare(round, &round->interrupt, until_ns, CKPT_ROUND_OUTCOME);
	return put(round);
}

/*
 * Rank 0 has all values, or this rank has failed. What is put counts, and not what this rank has come to since: the
 * others may have received it.
 */
static int settle_body(struct ckpt_task *task)
{
	struct ckpt_round *round = round_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		r = put_outcome(round);
		if (r == 0) {
			CKPT_AWAIT(task, round->call.task.finished);
			r = round->call.task.result;
		}
		if (r == -EEXIST)
			return ckpt_task_continue(task, read_body);
		if (r == 0)
			receive(round, &round->call.items[0]);
		else if (round->refusing)
			end_alone(round);
		else
			give_up(round, r);
		/* A limit that has ended it meanwhile was not put. */
		if (r == 0 || round->refusing)
			return 0;
	}
	CKPT_TASK_END(task);
}

/* Rank 0: nothing is missing that a success needs. */
static bool has_all(const struct ckpt_round *round)
{
	return round->core->config.rank == 0 && round->ready && round->missing == 0;
}

static int round_body(struct ckpt_task *task)
{
	struct ckpt_round *round = round_of(task);
	const uint32_t rank = round->core->config.rank;
	int r;

	CKPT_TASK_BEGIN(task);
	/* Whoever has ended it alone puts its failure all the same: others may wait for long. */
	while (!round->decided || round->alone) {
		round->interrupt = 0;
		if (round->failed || (has_all(round) && !round->held))
			return ckpt_task_continue(task, settle_body);
		if (has_all(round)) {
			/* The exchange has answered: what takes long now is the owner's work. */
			ckpt_core_timer_clear(round->core, &round->limit);
			ckpt_task_wake(round->waiter);
			CKPT_AWAIT(task, round->failed || !round->held);
			set_limit(round, round->deadline_ns);
			continue;
		}
		if (rank > 0 && round->ready && !round->put) {
			prepare(round, &round->interrupt, round->deadline_ns, rank);
			r = put(round);
			if (r == 0) {
				CKPT_AWAIT(task, round->call.task.finished);
				r = round->call.task.result;
			}
			round->put = r == 0;
			if (r < 0)
				give_up(round, r);
			continue;
		}
		ask(round);
		CKPT_AWAIT(task, round->call.task.finished);
		if (round->call.task.result == 0)
			take_answers(round);
		else
			give_up(round, round->call.task.result);
	}
	return ckpt_task_continue(task, drop_body);
	CKPT_TASK_END(task);
}

static void round_done(struct ckpt_task *task)
{
	struct ckpt_round *round = round_of(task);

	CKPT_ASSERT(round->decided);
	ckpt_buf_free(&round->words);
	ckpt_task_wake(round->waiter);
}

int ckpt_round_init(struct ckpt_round *round, uint32_t rank, uint32_t world)
{
	ckpt_error_clear(&round->why);
	if (rank > 0)
		return 0;
	round->heard = ckpt_alloc_array(world, sizeof(*round->heard));
	if (!round->heard)
		return -ENOMEM;
	round->heard[0] = true;
	round->missing = world - 1;
	return 0;
}

void ckpt_round_clear(struct ckpt_round *round)
{
	CKPT_ASSERT(!ckpt_task_active(&round->task));
	ckpt_free(round->heard);
	round->heard = NULL;
	ckpt_buf_free(&round->words);
}

void ckpt_round_start(struct ckpt_round *round)
{
	set_limit(round, round->deadline_ns);
	ckpt_task_start(&round->task, &round->core->sched, round_body, round_done);
}

bool ckpt_round_is_open(const struct ckpt_round *round)
{
	return !round->decided && !round->failed;
}

void ckpt_round_put(struct ckpt_round *round, bool well)
{
	CKPT_ASSERT(ckpt_round_is_open(round) && !(well && round->ready));
	round->ready = true;
	round->passed = round->passed || well;
	round->failed = !well;
	if (round->deadline_ns == UINT64_MAX) {
		round->deadline_ns = ckpt_round_deadline(round->core);
		set_limit(round, round->deadline_ns);
	}
	/* Also if the exchange does not answer what it was asked before. */
	if (!well)
		set_limit(round, now_ns(round));
	round->interrupt = -EINTR;
	ckpt_task_wake(&round->call.task);
	ckpt_task_wake(&round->task);
}

bool ckpt_round_is_complete(const struct ckpt_round *round)
{
	return round->held && has_all(round) && ckpt_round_is_open(round);
}

void ckpt_round_release(struct ckpt_round *round)
{
	CKPT_ASSERT(ckpt_round_is_complete(round));
	round->held = false;
	ckpt_task_wake(&round->task);
}
