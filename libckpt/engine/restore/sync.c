/* SPDX-License-Identifier: Apache-2.0 */
/* One restore of many ranks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"

int ckpt_restore_sync_new(struct ckpt_core *core, struct ckpt_restore_sync **ret_ranks)
{
	struct ckpt_restore_sync *x = ckpt_alloc(sizeof(*x));
	int r = x ? 0 : -ENOMEM;

	for (unsigned i = 0; i < CKPT_COUNT(x->votes) && r == 0; i++)
		r = ckpt_restore_vote_init(&x->votes[i], core->config.rank, core->config.world);
	if (r < 0) {
		ckpt_restore_sync_free(x);
		return r;
	}
	ckpt_error_clear(&x->refused);
	*ret_ranks = x;
	return 0;
}

void ckpt_restore_sync_free(struct ckpt_restore_sync *ranks)
{
	if (!ranks)
		return;
	for (unsigned i = 0; i < CKPT_COUNT(ranks->votes); i++)
		ckpt_restore_vote_clear(&ranks->votes[i]);
	ckpt_buf_free(&ranks->words);
	ckpt_free(ranks);
}

static struct ckpt_restore_vote *vote_of(const struct ckpt_restore *r)
{
	return &r->ranks->votes[r->ranks->part];
}

static void start_vote(struct ckpt_restore *r, enum ckpt_restore_part part)
{
	struct ckpt_restore_vote *v = &r->ranks->votes[part];

	v->round.core = r->core;
	v->round.waiter = &r->task;
	v->number = r->ranks->number;
	v->part = part;
	/* How long somebody takes until he begins to read, and reads, is his. */
	if (part == CKPT_RESTORE_OPENING)
		v->round.deadline_ns = ckpt_round_deadline(r->core);
	else if (part == CKPT_RESTORE_READING)
		v->round.deadline_ns = UINT64_MAX;
	ckpt_restore_vote_start(v);
}

/* For as long as the opening may take: its vote ends it. */
static void prepare_call(struct ckpt_restore *r)
{
	struct ckpt_exchange_call *call = &r->ranks->call;

	call->core = r->core;
	call->stop = &r->stop;
	call->deadline_ns = UINT64_MAX;
	call->waiter = &r->trip;
	call->count = 1;
	ckpt_key_restore(call->items[0].key, r->ranks->number);
}

void ckpt_restore_sync_begin(struct ckpt_restore *restore)
{
	restore->ranks->part = CKPT_RESTORE_OPENING;
	start_vote(restore, CKPT_RESTORE_OPENING);
	if (restore->core->config.rank == 0)
		return;
	prepare_call(restore);
	ckpt_exchange_call_get(&restore->ranks->call);
}

/* "step 100", "the latest step" */
static const char *wanted_text(uint64_t wanted, char *out, size_t size)
{
	if (wanted == CKPT_STEP_LATEST)
		(void)snprintf(out, size, "the latest step");
	else if (UINT64_MAX - wanted <= UINT32_MAX)
		(void)snprintf(out, size, "the step %llu before the latest",
			(unsigned long long)(UINT64_MAX - wanted));
	else
		(void)snprintf(out, size, "step %llu", (unsigned long long)wanted);
	return out;
}

/* Of another store, or of ranks that are not asked for the same. */
static int check_choice(struct ckpt_restore *r, const struct ckpt_restore_record *chosen)
{
	const struct ckpt_core *core = r->core;
	char theirs[64];
	char mine[64];

	if (strcmp(chosen->run_id, core->lineage->marker.run_id) != 0)
		return ckpt_fail(&r->why, CKPT_EMISMATCH,
			"rank 0 restores from another store than rank %u does from %s: give all "
			"ranks one directory that they share",
			core->config.rank, core->parts.label);
	if (chosen->world != core->config.world)
		return ckpt_fail(&r->why, CKPT_EMISMATCH,
			"rank 0 is one of %u ranks, and rank %u one of %u: give all the same world",
			chosen->world, core->config.rank, core->config.world);
	if (chosen->wanted != r->wanted)
		return ckpt_fail(&r->why, CKPT_EMISMATCH,
			"rank 0 restores %s, and rank %u %s: ask for the same on all ranks",
			wanted_text(chosen->wanted, theirs, sizeof(theirs)), core->config.rank,
			wanted_text(r->wanted, mine, sizeof(mine)));
	return 0;
}

int ckpt_restore_sync_heard(struct ckpt_restore *restore)
{
	struct ckpt_restore_sync *x = restore->ranks;
	const struct ckpt_exchange_item *item = &x->call.items[0];
	struct ckpt_restore_record chosen;

	int r = x->call.task.result;
	if (r < 0)
		return r;
	r = ckpt_restore_record_decode(item->data, item->length, item->key, &restore->why, &chosen);
	/* Nothing is wrong with the step. */
	if (r < 0)
		r = restore->why.code = -EIO;
	else
		r = check_choice(restore, &chosen);
	ckpt_exchange_items_clear(x->call.items, x->call.count);
	if (r < 0)
		return r;
	x->chosen = chosen;
	restore->pick.named = x->chosen.attempt;
	restore->pick.chosen = (struct ckpt_scan_step){
		.generation = chosen.generation, .step = chosen.step, .state = CKPT_STEP_COMMITTED};
	return 0;
}

/* What this rank tells, without a verdict. */
static struct ckpt_restore_record record_of(const struct ckpt_restore *r)
{
	const struct ckpt_core *core = r->core;
	struct ckpt_restore_record record = r->ranks->chosen;

	record.verdict = (struct ckpt_verdict){0};
	record.rank = core->config.rank;
	record.world = core->config.world;
	record.wanted = r->wanted;
	memcpy(record.run_id, core->lineage->marker.run_id, sizeof(record.run_id));
	return record;
}

void ckpt_restore_sync_tell(struct ckpt_restore *restore)
{
	struct ckpt_restore_sync *x = restore->ranks;
	struct ckpt_exchange_item *item = &x->call.items[0];

	x->chosen.generation = restore->pick.chosen.generation;
	x->chosen.step = restore->pick.chosen.step;
	memcpy(x->chosen.attempt, restore->pick.manifest.attempt, sizeof(x->chosen.attempt));
	x->chosen = record_of(restore);
	prepare_call(restore);
	/* Without memory nothing is told, and the task has never run. */
	if (ckpt_restore_record_encode(&x->chosen, item->key, &x->words) < 0) {
		x->call.task.finished = true;
		x->call.task.result = -ENOMEM;
		return;
	}
	item->data = x->words.data;
	item->length = x->words.len;
	ckpt_exchange_call_put(&x->call);
}

int ckpt_restore_sync_told(struct ckpt_restore *restore)
{
	int r = restore->ranks->call.task.result;

	if (r == -EEXIST)
		return ckpt_fail(&restore->why, -EINVAL,
			"restore %u of the session of %s was begun before: give every start of the "
			"job a session of its own",
			restore->ranks->number, restore->core->parts.label);
	return r;
}

void ckpt_restore_sync_read(struct ckpt_restore *restore)
{
	restore->ranks->part = CKPT_RESTORE_READING;
	start_vote(restore, CKPT_RESTORE_READING);
}

/* Of a failure: its code and its words, for the other ranks. */
static struct ckpt_verdict verdict_of(struct ckpt_restore *r)
{
	struct ckpt_verdict verdict = {.code = r->result};
	struct ckpt_error words;

	ckpt_error_clear(&words);
	if (r->result == r->stop)
		ckpt_restore_word_stop(r, &words);
	else if (r->why.code)
		words = r->why;
	/* Who lets go of a restore that its targets do not fit has failed for that reason. */
	pthread_mutex_lock(&r->lock);
	if (r->result == -ECANCELED && r->ranks->refused.code)
		words = r->ranks->refused;
	pthread_mutex_unlock(&r->lock);
	if (words.code)
		verdict.code = words.code;
	(void)snprintf(verdict.reason, sizeof(verdict.reason), "%.250s",
		words.code ? words.message : ckpt_code_text(verdict.code));
	/* The other engines are not closed. */
	if (verdict.code == CKPT_ECLOSED)
		verdict.code = -ECANCELED;
	return verdict;
}

void ckpt_restore_sync_vote(struct ckpt_restore *restore)
{
	struct ckpt_restore_record record = record_of(restore);

	if (restore->result < 0)
		record.verdict = verdict_of(restore);
	ckpt_restore_vote_cast(vote_of(restore), &record);
}

const struct ckpt_restore_record *ckpt_restore_sync_outcome(const struct ckpt_restore *restore)
{
	const struct ckpt_restore_vote *vote = vote_of(restore);

	return vote->round.decided ? &vote->outcome : NULL;
}

bool ckpt_restore_sync_passed(const struct ckpt_restore *restore)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_outcome(restore);

	return outcome && outcome->verdict.code == 0;
}

void ckpt_restore_sync_take(struct ckpt_restore *restore)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_outcome(restore);
	const struct ckpt_core *core = restore->core;
	const struct ckpt_verdict *verdict = &outcome->verdict;
	bool mine = outcome->rank == core->config.rank;

	if (restore->ranks->taken)
		return;
	restore->ranks->taken = true;
	restore->result = verdict->code;
	/* Its own words say more. */
	if (verdict->code == 0 || (mine && restore->why.code == verdict->code))
		return;
	ckpt_error_clear(&restore->why);
	if (mine)
		(void)ckpt_fail(&restore->why, verdict->code, "%s", verdict->reason);
	else
		(void)ckpt_fail(&restore->why, verdict->code,
			"rank %u could not restore from %s: %s", outcome->rank, core->parts.label,
			verdict->reason);
	restore->why.rank = (int32_t)outcome->rank;
}

void ckpt_restore_sync_repair(struct ckpt_restore *restore)
{
	restore->ranks->votes[CKPT_RESTORE_MENDING].round.deadline_ns =
		ckpt_round_deadline(restore->core);
}

void ckpt_restore_sync_vote_repaired(
	struct ckpt_restore *restore, const struct ckpt_verdict *verdict)
{
	struct ckpt_restore_record record = *ckpt_restore_sync_outcome(restore);

	CKPT_ASSERT(record.generation > 0);
	record.rank = restore->core->config.rank;
	record.verdict = *verdict;
	start_vote(restore, CKPT_RESTORE_MENDING);
	ckpt_restore_vote_cast(&restore->ranks->votes[CKPT_RESTORE_MENDING], &record);
}

const struct ckpt_restore_record *ckpt_restore_sync_repaired(const struct ckpt_restore *restore)
{
	const struct ckpt_restore_vote *vote = &restore->ranks->votes[CKPT_RESTORE_MENDING];

	return vote->round.decided ? &vote->outcome : NULL;
}

bool ckpt_restore_sync_over(const struct ckpt_restore *restore)
{
	const struct ckpt_restore_sync *x = restore->ranks;

	bool over = true;

	for (unsigned i = 0; i < CKPT_COUNT(x->votes); i++)
		over = over && !ckpt_task_active(&x->votes[i].round.task);
	return over;
}
