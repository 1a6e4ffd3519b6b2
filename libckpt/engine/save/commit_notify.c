/* SPDX-License-Identifier: Apache-2.0 */
/* What the other ranks are told at the end of a save, or about one that was refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

#define TELL_MAX_NS UINT64_C(10000000000)

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

static struct ckpt_save *refused_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save_commit, teller)->save;
}

static int encode_outcome(struct ckpt_save *save)
{
	struct ckpt_outcome outcome = save->ranks->outcome;

	outcome.verdict = (struct ckpt_verdict){.code = save->committed ? 0 : save->code};
	/* The manifest may exist, and may be lost in a power cut: the next generation settles the step. */
	outcome.open = !save->committed && !save->ranks->settled && !save->core->config.node_store;
	ckpt_save_name_subject(save, &outcome.verdict);
	if (!save->committed)
		(void)snprintf(outcome.verdict.reason, sizeof(outcome.verdict.reason), "%.630s",
			save->error.message);
	else
		(void)snprintf(outcome.verdict.reason, sizeof(outcome.verdict.reason), "%s",
			save->ranks->differ);
	return ckpt_outcome_encode(&outcome, &save->ranks->words);
}

static int encode_failure(struct ckpt_save *save)
{
	struct ckpt_rank_record record = {.verdict.code = save->code};

	ckpt_save_name_subject(save, &record.verdict);
	record.rank.rank = save->core->config.rank;
	memcpy(record.rank.node, save->core->config.node, sizeof(record.rank.node));
	(void)snprintf(record.verdict.reason, sizeof(record.verdict.reason), "%.630s",
		save->error.message);
	return ckpt_rank_record_encode(&record, &save->ranks->words);
}

/* Rank 0: sends the outcome. Other ranks: send their failure. False: out of memory. */
static bool begin(struct ckpt_save *save, struct ckpt_task *waiter)
{
	struct ckpt_core *core = save->core;
	struct ckpt_save_commit *x = save->ranks;
	struct ckpt_verdict subject = {0};
	bool first = core->config.rank == 0;

	x->words.len = 0;
	if ((first ? encode_outcome(save) : encode_failure(save)) < 0)
		return false;
	ckpt_save_name_subject(save, &subject);
	ckpt_save_prepare_talk(
		save, waiter, &x->never, ckpt_env_now(core->parts.env) + TELL_MAX_NS, NULL);
	if (first)
		ckpt_key_outcome(x->call.items[0].key, subject.generation, save->step);
	else
		ckpt_key_rank(
			x->call.items[0].key, subject.generation, save->step, core->config.rank);
	ckpt_save_notify(save);
	return true;
}

/*
 * Whether keys can be deleted. Rank 0, when all ranks have reported this step: nobody asks for outcomes of earlier
 * ones. Others, when rank 0 has reported the outcome: it needs no part of this step, nor of earlier ones, unless it
 * only reported that this one was skipped or refused. What was reported meanwhile about a later step (skipped or
 * refused) stays.
 */
static bool is_over(const struct ckpt_save *save, const struct ckpt_told *told)
{
	const struct ckpt_core *core = save->core;

	if (told->generation != core->lineage->generation)
		return told->generation < core->lineage->generation;
	if (core->config.rank == 0)
		return told->step < save->step;
	return told->step == save->step || (save->committed && told->step < save->step);
}

/* What cannot be deleted stays until the session ends. */
static void drop_blob(struct ckpt_exchange_call *call, const struct ckpt_told *told)
{
	char key[CKPT_EXCHANGE_KEY_MAX];

	if (told->blob == 0)
		return;
	ckpt_key_manifest(key, told->generation, told->step);
	for (uint32_t i = 0; i < ckpt_blob_keys(told->blob); i++)
		if (call->count < CKPT_EXCHANGE_BATCH)
			ckpt_blob_key(call->items[call->count++].key, key, i);
}

/* Selects this rank's keys that nobody needs any more. False: there are none. */
static bool drop_told(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_save_commit *x = save->ranks;
	size_t kept = 0;

	ckpt_save_prepare_talk(save, &save->task, &x->never, UINT64_MAX, NULL);
	x->call.count = 0;
	for (size_t i = 0; i < core->saver->told_count; i++) {
		const struct ckpt_told told = core->saver->told[i];
		if (!is_over(save, &told) || x->call.count == CKPT_EXCHANGE_BATCH) {
			core->saver->told[kept++] = told;
			continue;
		}
		char *key = x->call.items[x->call.count++].key;
		if (core->config.rank == 0)
			ckpt_key_outcome(key, told.generation, told.step);
		else
			ckpt_key_rank(key, told.generation, told.step, core->config.rank);
		drop_blob(&x->call, &told);
	}
	core->saver->told_count = kept;
	if (x->call.count > 0)
		ckpt_exchange_call_drop(&x->call);
	return x->call.count > 0;
}

static bool must_tell(const struct ckpt_save *save)
{
	if (save->core->config.rank == 0)
		return !save->ranks->decided;
	return !save->committed && !save->ranks->told && !save->ranks->answered;
}

static bool may_drop(const struct ckpt_save *save)
{
	return save->core->config.rank == 0 ? save->ranks->heard == save->core->config.world
					    : save->ranks->answered;
}

int ckpt_save_notify_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	if (must_tell(save) && begin(save, task))
		CKPT_AWAIT(task, save->ranks->call.task.finished);
	if (may_drop(save) && drop_told(save))
		CKPT_AWAIT(task, save->ranks->call.task.finished);
	if (must_tell(save))
		ckpt_saver_note_told(core->saver, core->lineage->generation, save->step);
	return save->committed ? 0 : save->code;
	CKPT_TASK_END(task);
}

/* A save that was never begun. */

/* Whether the other ranks can be told, and do not hear it from the step's own save. */
static bool must_tell_refusal(const struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;
	struct ckpt_verdict subject = {0};

	ckpt_save_name_subject(save, &subject);
	return subject.generation > 0 && !core->closing &&
	       !(core->lineage->generation > 0 && core->lineage->any_step &&
		       save->step <= core->lineage->last_step);
}

static void note_refusal(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_verdict subject = {0};

	ckpt_save_name_subject(save, &subject);
	if (core->lineage->generation > 0) {
		core->lineage->any_step = true;
		core->lineage->last_step = save->step;
	}
	save->code = save->error.code;
	save->ranks->settled = true;
	ckpt_saver_note_told(core->saver, subject.generation, save->step);
}

static void leave_early(struct ckpt_save_commit *ranks)
{
	struct ckpt_save_commit **link = &ranks->save->core->saver->early;

	while (*link != ranks)
		link = &(*link)->next_early;
	*link = ranks->next_early;
}

static int refusal_body(struct ckpt_task *task)
{
	struct ckpt_save *save = refused_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	/* Before the first claim there is no key to report it under. */
	if (core->lineage->generation == 0 && core->lineage->heard_generation == 0 &&
		core->lineage->claiming) {
		save->ranks->next_early = core->saver->early;
		core->saver->early = save->ranks;
		CKPT_AWAIT(task, !core->lineage->claiming);
		leave_early(save->ranks);
	}
	if (!must_tell_refusal(save))
		return 0;
	note_refusal(save);
	if (begin(save, task))
		CKPT_AWAIT(task, save->ranks->call.task.finished);
	CKPT_TASK_END(task);
}

void ckpt_save_wake_early(struct ckpt_core *core)
{
	for (struct ckpt_save_commit *x = core->saver->early; x; x = x->next_early)
		ckpt_task_wake(&x->teller);
}

static void refusal_done(struct ckpt_task *task)
{
	struct ckpt_save *save = refused_of(task);

	save->core->commands--;
	save->core->saver->refusals--;
	ckpt_task_wake(save->core->closer);
	ckpt_save_unref(save);
}

void ckpt_save_notify_refusal(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;

	/* There are never as many at once unless the exchange is down. */
	if (!save->ranks || core->closing ||
		core->saver->refusals == CKPT_COUNT(core->saver->told)) {
		ckpt_save_unref(save);
		return;
	}
	core->commands++;
	core->saver->refusals++;
	ckpt_task_start(&save->ranks->teller, &core->sched, refusal_body, refusal_done);
}
