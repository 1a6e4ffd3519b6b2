/* SPDX-License-Identifier: Apache-2.0 */
/* One outcome of a part of a restore. */
#include "engine/restore/vote.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"

#define SECOND_NS       UINT64_C(1000000000)
#define TELL_MAX_NS     (10 * SECOND_NS)
/* A restore that has failed elsewhere goes on for so long. */
#define READING_REST_NS UINT64_C(50000000)

static ckpt_task_fn refuse_body;
static ckpt_task_fn read_body;

static struct ckpt_restore_vote *outcome_vote_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_restore_vote, task);
}

static uint64_t timeout_ns(const struct ckpt_restore_vote *b)
{
	return (uint64_t)b->core->config.save_timeout_ms * 1000000;
}

/* How long a failure is told, before whoever waits for it waits too long. */
static uint64_t tell_ns(const struct ckpt_restore_vote *b)
{
	return ckpt_min_u64(timeout_ns(b) / 8, TELL_MAX_NS);
}

/* Beyond a deadline, until this rank goes its way. */
static uint64_t limit_ns(const struct ckpt_restore_vote *b)
{
	return tell_ns(b) / 2 * 3;
}

/* Rank 0 gives up first: it knows who is missing, and the others hear of it. */
static uint64_t patience_ns(const struct ckpt_restore_vote *b)
{
	return timeout_ns(b) / 8 * (b->core->config.rank == 0 ? 6 : 7) - tell_ns(b) / 2;
}

static const char *part_text(const struct ckpt_restore_vote *b)
{
	static const char *const words[] = {[CKPT_RESTORE_OPENING] = "opened",
		[CKPT_RESTORE_READING] = "read",
		[CKPT_RESTORE_MENDING] = "mended"};

	return words[b->part];
}

static void decide(struct ckpt_restore_vote *b, const struct ckpt_restore_record *outcome)
{
	if (b->decided)
		return;
	b->outcome = *outcome;
	b->decided = true;
	ckpt_core_timer_clear(b->core, &b->limit);
	ckpt_task_wake(b->waiter);
}

/* Makes the vote of this rank a failure, unless it is one. `why` is worded. */
static void give_up(struct ckpt_restore_vote *b, int code)
{
	struct ckpt_verdict *verdict = &b->vote.verdict;

	if (verdict->code < 0)
		return;
	b->voted = true;
	b->vote.rank = b->core->config.rank;
	b->vote.world = b->core->config.world;
	memcpy(b->vote.run_id, b->core->lineage->marker.run_id, sizeof(b->vote.run_id));
	verdict->code = code;
	(void)snprintf(verdict->reason, sizeof(verdict->reason), "%.250s",
		b->why.code ? b->why.message : ckpt_code_text(code));
}

/* Nothing comes back from the exchange: this rank goes its way, and what the others hear is not known. */
static void limit_fired(struct ckpt_timer *timer)
{
	struct ckpt_restore_vote *b = CKPT_CONTAINER(timer, struct ckpt_restore_vote, limit);

	if (b->vote.verdict.code == 0) {
		ckpt_error_clear(&b->why);
		give_up(b, ckpt_fail(&b->why, -ETIMEDOUT,
				   "what the ranks of %s tell each other does not come back: see "
				   "whether their storage hangs",
				   b->core->parts.label));
	}
	decide(b, &b->vote);
}

static void set_limit(struct ckpt_restore_vote *b, uint64_t at_ns)
{
	if (b->decided || at_ns == UINT64_MAX)
		return;
	b->limit.fire = limit_fired;
	ckpt_core_timer_set(b->core, &b->limit, at_ns);
}

static void prepare_call(struct ckpt_restore_vote *b, const int *stop, uint64_t deadline_ns)
{
	memset(b->call.items, 0, sizeof(b->call.items[0]));
	b->call.core = b->core;
	b->call.stop = stop;
	b->call.deadline_ns = deadline_ns;
	b->call.err = NULL;
	b->call.waiter = &b->task;
	b->call.rest_ns = 0;
	b->call.count = 1;
}

/* This rank's vote, under the key that the talk's first item has. */
static int tell(struct ckpt_restore_vote *b)
{
	struct ckpt_exchange_item *item = &b->call.items[0];

	ckpt_buf_free(&b->words);
	int r = ckpt_restore_record_encode(&b->vote, item->key, &b->words);
	if (r < 0)
		return r;
	item->data = b->words.data;
	item->length = b->words.len;
	ckpt_exchange_call_put(&b->call);
	return 0;
}

/* The outcome that is there. What cannot be read is this rank's failure: it knows of no success. */
static void take_outcome(struct ckpt_restore_vote *b)
{
	const struct ckpt_exchange_item *item = &b->call.items[0];
	struct ckpt_restore_record outcome;
	const struct ckpt_restore_record *vote = &b->vote;

	ckpt_error_clear(&b->why);
	int r = ckpt_restore_record_decode(item->data, item->length, item->key, &b->why, &outcome);
	bool same = r == 0 && outcome.world == b->core->config.world;
	/* Well for all is well for this rank, with what it has opened; though it has given up since. */
	if (same && outcome.verdict.code == 0)
		same = b->passed && outcome.generation == vote->generation &&
		       outcome.step == vote->step && strcmp(outcome.attempt, vote->attempt) == 0;
	if (same) {
		decide(b, &outcome);
		return;
	}
	if (r == 0)
		(void)ckpt_fail(&b->why, -EIO,
			"the ranks of %s do not agree about which step was %s: give every start of "
			"the job a session of its own",
			b->core->parts.label, part_text(b));
	/* A code of damage would be laid at the step's door. */
	give_up(b, -EIO);
	decide(b, &b->vote);
}

/* One rank has come so far. */
static void take_vote(
	struct ckpt_restore_vote *b, const struct ckpt_exchange_item *item, uint32_t rank)
{
	const struct ckpt_restore_record *mine = &b->vote;
	struct ckpt_restore_record theirs;

	ckpt_error_clear(&b->why);
	int r = ckpt_restore_record_decode(item->data, item->length, item->key, &b->why, &theirs);
	if (r < 0) {
		give_up(b, -EIO);
		return;
	}
	if (theirs.rank != rank || theirs.world != mine->world ||
		theirs.generation != mine->generation || theirs.step != mine->step ||
		strcmp(theirs.attempt, mine->attempt) != 0) {
		give_up(b, ckpt_fail(&b->why, CKPT_EMISMATCH,
				   "rank %u of %u ranks has %s step %llu of generation %llu, and "
				   "rank 0 of %u step %llu of generation %llu",
				   theirs.rank, theirs.world, part_text(b),
				   (unsigned long long)theirs.step,
				   (unsigned long long)theirs.generation, mine->world,
				   (unsigned long long)mine->step,
				   (unsigned long long)mine->generation));
		return;
	}
	b->heard[rank] = true;
}

static uint32_t next_missing(const struct ckpt_restore_vote *b, uint32_t from)
{
	while (from < b->core->config.world && b->heard[from])
		from++;
	return from;
}

/* The outcome, and on rank 0, once it has come so far itself, whoever has not been heard of. */
static void hear(struct ckpt_restore_vote *b)
{
	struct ckpt_exchange_call *call = &b->call;
	const struct ckpt_core_config *config = &b->core->config;

	prepare_call(b, &b->interrupt, b->deadline_ns);
	ckpt_key_restore_part(call->items[0].key, b->number, b->part);
	/* As long as this rank reads, only a failure of another one may be there. */
	if (b->part == CKPT_RESTORE_READING && !b->voted)
		call->rest_ns = READING_REST_NS;
	if (config->rank == 0 && b->voted)
		for (uint32_t rank = next_missing(b, b->from);
			rank < config->world && call->count < CKPT_EXCHANGE_BATCH;
			rank = next_missing(b, rank + 1))
			ckpt_key_restore_rank(
				call->items[call->count++].key, b->number, b->part, rank);
	ckpt_exchange_call_get(call);
}

static void take_heard(struct ckpt_restore_vote *b)
{
	struct ckpt_exchange_call *call = &b->call;
	uint32_t rank = b->from;

	if (call->items[0].data)
		take_outcome(b);
	for (size_t i = 1; i < call->count; i++) {
		rank = next_missing(b, rank);
		if (call->items[i].data && b->vote.verdict.code == 0)
			take_vote(b, &call->items[i], rank);
		rank++;
	}
	if (b->heard)
		b->from = next_missing(b, b->from);
	ckpt_exchange_items_clear(call->items, call->count);
}

/* "ranks 3, 17 and 5 more" */
static void list_missing(const struct ckpt_restore_vote *b, char *out, size_t size)
{
	const unsigned shown_most = 8;
	uint32_t world = b->core->config.world;
	unsigned shown = 0;
	unsigned more = 0;
	size_t at = 0;

	out[0] = '\0';
	for (uint32_t rank = next_missing(b, 0); rank < world; rank = next_missing(b, rank + 1)) {
		if (shown >= shown_most) {
			more++;
			continue;
		}
		at += (size_t)snprintf(out + at, size - at, "%s%u", shown ? ", " : "", rank);
		shown++;
	}
	if (more)
		(void)snprintf(out + at, size - at, " and %u more", more);
}

static int late(struct ckpt_restore_vote *b)
{
	const struct ckpt_core *core = b->core;
	char missing[128];

	ckpt_error_clear(&b->why);
	if (b->call.why.code)
		return ckpt_fail(&b->why, -ETIMEDOUT, "the ranks of %s do not reach each other: %s",
			core->parts.label, b->call.why.message);
	if (!b->voted)
		return ckpt_fail(&b->why, -ETIMEDOUT,
			core->config.rank == 0
				? "rank %u has not opened the step in time"
				: "rank 0 has not said in time which step is restored, or rank %u "
				  "could not open it in time: begin the restore on all ranks",
			core->config.rank);
	if (core->config.rank > 0)
		return ckpt_fail(&b->why, -ETIMEDOUT,
			"rank 0 has not said in time whether all ranks have %s the step: see what "
			"became of it",
			part_text(b));
	list_missing(b, missing, sizeof(missing));
	return ckpt_fail(&b->why, -ETIMEDOUT,
		"of %u ranks these have not %s the step in time: %s: see what became of them, and "
		"begin a restore on all ranks",
		core->config.world, part_text(b), missing);
}

/* A talk has ended in vain, and not because this rank has something new to say. */
static void give_up_call(struct ckpt_restore_vote *b, int r)
{
	if (r == -EINTR)
		return;
	if (r == -ETIMEDOUT)
		r = late(b);
	else if (r == -EEXIST)
		r = ckpt_fail(&b->why, -EINVAL,
			"something was told by rank %u of %s before: give every start of the job a "
			"session of its own",
			b->core->config.rank, b->core->parts.label);
	else if (r == CKPT_ECLOSED)
		r = ckpt_fail(&b->why, -ECANCELED, "its engine was closed");
	give_up(b, r);
}

/* There is an outcome already, and it is another one. */
static int read_body(struct ckpt_task *task)
{
	struct ckpt_restore_vote *b = outcome_vote_of(task);

	CKPT_TASK_BEGIN(task);
	prepare_call(b, &b->never, ckpt_env_now(b->core->parts.env) + tell_ns(b));
	ckpt_key_restore_part(b->call.items[0].key, b->number, b->part);
	ckpt_exchange_call_get(&b->call);
	CKPT_AWAIT(task, b->call.task.finished);
	if (b->call.task.result < 0) {
		give_up_call(b, b->call.task.result);
		decide(b, &b->vote);
		return 0;
	}
	take_outcome(b);
	ckpt_exchange_items_clear(b->call.items, b->call.count);
	CKPT_TASK_END(task);
}

/* It has failed here. */
static int refuse_body(struct ckpt_task *task)
{
	struct ckpt_restore_vote *b = outcome_vote_of(task);
	uint64_t end_ns;

	CKPT_TASK_BEGIN(task);
	end_ns = ckpt_env_now(b->core->parts.env) + tell_ns(b);
	set_limit(b, end_ns - tell_ns(b) + limit_ns(b));
	prepare_call(b, &b->never, end_ns);
	ckpt_key_restore_part(b->call.items[0].key, b->number, b->part);
	if (tell(b) == 0) {
		CKPT_AWAIT(task, b->call.task.finished);
		if (b->call.task.result == -EEXIST)
			return ckpt_task_continue(task, read_body);
	}
	decide(b, &b->vote);
	CKPT_TASK_END(task);
}

/* All has gone well, on all ranks: if nobody has said otherwise meanwhile. */
static int accept_body(struct ckpt_task *task)
{
	struct ckpt_restore_vote *b = outcome_vote_of(task);

	CKPT_TASK_BEGIN(task);
	prepare_call(b, &b->interrupt, b->deadline_ns);
	ckpt_key_restore_part(b->call.items[0].key, b->number, b->part);
	if (tell(b) < 0) {
		give_up(b, -ENOMEM);
		return ckpt_task_continue(task, refuse_body);
	}
	CKPT_AWAIT(task, b->call.task.finished);
	if (b->call.task.result == -EEXIST)
		return ckpt_task_continue(task, read_body);
	if (b->call.task.result < 0) {
		give_up_call(b, b->call.task.result);
		return ckpt_task_continue(task, refuse_body);
	}
	decide(b, &b->vote);
	CKPT_TASK_END(task);
}

static int outcome_vote_body(struct ckpt_task *task)
{
	struct ckpt_restore_vote *b = outcome_vote_of(task);
	bool leads = b->core->config.rank == 0;

	CKPT_TASK_BEGIN(task);
	while (!b->decided) {
		b->interrupt = 0;
		if (b->vote.verdict.code < 0)
			return ckpt_task_continue(task, refuse_body);
		if (leads && b->voted && b->from == b->core->config.world)
			return ckpt_task_continue(task, accept_body);
		if (!leads && b->voted && !b->told) {
			prepare_call(b, &b->interrupt, b->deadline_ns);
			ckpt_key_restore_rank(
				b->call.items[0].key, b->number, b->part, b->core->config.rank);
			if (tell(b) < 0) {
				give_up(b, -ENOMEM);
				continue;
			}
			CKPT_AWAIT(task, b->call.task.finished);
			b->told = b->call.task.result == 0;
			if (!b->told)
				give_up_call(b, b->call.task.result);
			continue;
		}
		hear(b);
		CKPT_AWAIT(task, b->call.task.finished);
		if (b->call.task.result == 0)
			take_heard(b);
		else
			give_up_call(b, b->call.task.result);
	}
	/* Rank 0 has heard it, and says so. */
	if (b->told && b->outcome.verdict.code == 0) {
		prepare_call(b, &b->never, UINT64_MAX);
		ckpt_key_restore_rank(
			b->call.items[0].key, b->number, b->part, b->core->config.rank);
		ckpt_exchange_call_drop(&b->call);
		CKPT_AWAIT(task, b->call.task.finished);
	}
	CKPT_TASK_END(task);
}

static void outcome_vote_done(struct ckpt_task *task)
{
	struct ckpt_restore_vote *b = outcome_vote_of(task);

	CKPT_ASSERT(b->decided);
	ckpt_buf_free(&b->words);
	ckpt_task_wake(b->waiter);
}

int ckpt_restore_vote_init(struct ckpt_restore_vote *outcome_vote, uint32_t rank, uint32_t world)
{
	ckpt_error_clear(&outcome_vote->why);
	if (rank > 0)
		return 0;
	outcome_vote->heard = ckpt_alloc_array(world, sizeof(*outcome_vote->heard));
	if (!outcome_vote->heard)
		return -ENOMEM;
	outcome_vote->heard[0] = true;
	outcome_vote->from = 1;
	return 0;
}

void ckpt_restore_vote_clear(struct ckpt_restore_vote *outcome_vote)
{
	CKPT_ASSERT(!ckpt_task_active(&outcome_vote->task));
	ckpt_free(outcome_vote->heard);
	outcome_vote->heard = NULL;
	ckpt_buf_free(&outcome_vote->words);
}

void ckpt_restore_vote_start(struct ckpt_restore_vote *outcome_vote)
{
	if (outcome_vote->deadline_ns != UINT64_MAX)
		set_limit(outcome_vote, outcome_vote->deadline_ns + limit_ns(outcome_vote));
	ckpt_task_start(&outcome_vote->task, &outcome_vote->core->sched, outcome_vote_body,
		outcome_vote_done);
}

uint64_t ckpt_restore_vote_deadline(const struct ckpt_restore_vote *outcome_vote)
{
	return ckpt_env_now(outcome_vote->core->parts.env) + patience_ns(outcome_vote);
}

void ckpt_restore_vote_cast(
	struct ckpt_restore_vote *outcome_vote, const struct ckpt_restore_record *vote)
{
	if (outcome_vote->decided || outcome_vote->vote.verdict.code < 0)
		return;
	outcome_vote->vote = *vote;
	outcome_vote->voted = true;
	outcome_vote->passed = outcome_vote->passed || vote->verdict.code == 0;
	if (outcome_vote->deadline_ns == UINT64_MAX) {
		outcome_vote->deadline_ns = ckpt_restore_vote_deadline(outcome_vote);
		set_limit(outcome_vote, outcome_vote->deadline_ns + limit_ns(outcome_vote));
	}
	outcome_vote->interrupt = -EINTR;
	ckpt_task_wake(&outcome_vote->call.task);
}
