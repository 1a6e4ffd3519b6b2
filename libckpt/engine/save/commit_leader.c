/* SPDX-License-Identifier: Apache-2.0 */
/* A save of many ranks: what rank 0 does until it publishes. */
#include "engine/lineage/lineage.h"
#include "engine/save/commit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/save/rank_schema.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

#define MARGIN_MAX_NS UINT64_C(15000000000)
/* If more ranks are missing than one operation can ask for, the next ones are asked for after this time, or later. */
#define ROUND_NS      UINT64_C(100000000)
#define NAMED_MAX     8

int ckpt_save_commit_new(
	struct ckpt_save *save, uint32_t rank, uint32_t world, struct ckpt_save_commit **ret_ranks)
{
	struct ckpt_save_commit *x = ckpt_alloc(sizeof(*x));

	if (!x)
		return -ENOMEM;
	x->all = rank == 0 ? ckpt_alloc_array(world, sizeof(*x->all)) : NULL;
	x->plans = rank == 0 ? ckpt_alloc_array(world, sizeof(*x->plans)) : NULL;
	if (rank == 0 && (!x->all || !x->plans)) {
		ckpt_save_commit_free(x);
		return -ENOMEM;
	}
	ckpt_error_clear(&x->why);
	x->save = save;
	*ret_ranks = x;
	return 0;
}

void ckpt_save_commit_free(struct ckpt_save_commit *ranks)
{
	if (!ranks)
		return;
	ckpt_buf_free(&ranks->words);
	ckpt_rank_schema_free(ranks->agree);
	ckpt_replica_digest_forget(&ranks->alike);
	ckpt_free(ranks->plans);
	ckpt_free(ranks->all);
	ckpt_free(ranks);
}

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

uint64_t ckpt_save_margin_ns(const struct ckpt_save *save)
{
	return ckpt_min_u64(save->timeout_ns / 4, MARGIN_MAX_NS);
}

void ckpt_save_prepare_talk(struct ckpt_save *save, struct ckpt_task *waiter, const int *stop,
	uint64_t deadline_ns, struct ckpt_error *err)
{
	struct ckpt_exchange_call *call = &save->ranks->call;

	call->core = save->core;
	call->stop = stop;
	call->deadline_ns = deadline_ns;
	call->answer_ns = 0;
	call->since_ns = 0;
	call->rest_ns = 0;
	call->err = err;
	call->waiter = waiter;
	call->count = 1;
	memset(call->items, 0, sizeof(call->items[0]));
}

void ckpt_save_notify(struct ckpt_save *save)
{
	struct ckpt_exchange_call *call = &save->ranks->call;

	call->items[0].data = save->ranks->words.data;
	call->items[0].length = save->ranks->words.len;
	ckpt_exchange_call_put(call);
}

void ckpt_save_name_subject(const struct ckpt_save *save, struct ckpt_verdict *verdict)
{
	const struct ckpt_core *core = save->core;
	bool joined = core->lineage->generation > 0;

	verdict->generation = joined ? core->lineage->generation : core->lineage->heard_generation;
	verdict->nonce = joined ? core->lineage->nonce : core->lineage->heard_nonce;
	verdict->step = save->step;
}

static uint64_t deadline_ns(const struct ckpt_save *save)
{
	return save->start_ns + save->timeout_ns - ckpt_save_margin_ns(save);
}

static bool missing(const struct ckpt_save *save, uint32_t rank)
{
	return !save->ranks->all[rank].attempt[0];
}

/* Asks for the next missing ranks. */
static void hear_missing(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;
	uint32_t world = save->core->config.world;
	uint64_t until_ns = deadline_ns(save);
	uint32_t rank = x->from;

	if (world - x->heard > CKPT_EXCHANGE_BATCH)
		until_ns = ckpt_min_u64(until_ns, ckpt_env_now(save->core->parts.env) + ROUND_NS);
	ckpt_error_clear(&x->why);
	ckpt_save_prepare_talk(save, &save->task, &save->code, until_ns, &x->why);
	x->call.answer_ns = deadline_ns(save);
	x->call.count = 0;
	for (uint32_t i = 0; i < world && x->call.count < CKPT_EXCHANGE_BATCH; i++) {
		if (missing(save, rank))
			ckpt_key_rank(x->call.items[x->call.count++].key,
				save->core->lineage->generation, save->step, rank);
		rank = (rank + 1) % world;
	}
	x->from = rank;
	ckpt_exchange_call_get(&x->call);
}

/* What it is the difference to has to be what all ranks have in common: the last step. */
static int check_base(struct ckpt_save *save, const struct ckpt_rank_record *record)
{
	uint64_t last = save->core->saver->run.last.step;

	if (record->base == 0 || record->base - 1 == last)
		return 0;
	return ckpt_fail_at(&save->work, CKPT_EABORTED, &(struct ckpt_where){.tier = "local"},
		"rank %u on node %s has stored its part of step %llu as the difference to step "
		"%llu, and the last one of rank 0 is step %llu: the next step is stored by itself",
		record->rank.rank, record->rank.node, (unsigned long long)save->step,
		(unsigned long long)(record->base - 1), (unsigned long long)last);
}

static void add_stored(struct ckpt_save_commit *x, uint64_t stored, bool based)
{
	if (__builtin_add_overflow(x->stored, stored, &x->stored))
		x->stored = UINT64_MAX;
	x->based = x->based || based;
}

/* Takes one received value. */
static int take_record(struct ckpt_save *save, const struct ckpt_exchange_item *item)
{
	struct ckpt_save_commit *x = save->ranks;
	struct ckpt_verdict asked = {0};
	struct ckpt_rank_record record;
	char key[CKPT_EXCHANGE_KEY_MAX];
	int r = ckpt_rank_record_decode(item->data, item->length, item->key, &save->work, &record);

	ckpt_save_name_subject(save, &asked);
	if (r == 0)
		r = ckpt_verdict_check(&record.verdict, &asked, item->key, &save->work);
	if (r < 0)
		return r;
	ckpt_key_rank(key, save->core->lineage->generation, save->step, record.rank.rank);
	if (strcmp(key, item->key) != 0)
		return ckpt_fail(&save->work, CKPT_EFORMAT, "%s of the exchange is of rank %u",
			item->key, record.rank.rank);
	if (record.verdict.code < 0)
		return ckpt_fail_at(&save->work, CKPT_EABORTED,
			&(struct ckpt_where){.tier = "local"},
			"rank %u on node %s failed, so step %llu fails on all ranks: %s",
			record.rank.rank, record.rank.node, (unsigned long long)save->step,
			record.verdict.reason);
	if (!ckpt_digest_equal(&record.common, &save->common))
		return ckpt_fail_at(&save->work, CKPT_EMISMATCH,
			&(struct ckpt_where){.tier = "local"},
			"rank %u on node %s and rank 0 differ in the tensors and values that all "
			"ranks must have (a name, type or shape, or one has more), so step %llu "
			"would lack some: give all ranks the same state, and mark what is a rank's "
			"own (in Python: per_rank= of the Checkpointer for tensors, "
			"libckpt.PerRank for a value)",
			record.rank.rank, record.rank.node, (unsigned long long)save->step);
	r = check_base(save, &record);
	if (r == 0 && missing(save, record.rank.rank))
		r = ckpt_replica_digest_receive(
			&x->alike, record.rank.rank, record.alike, item->key, &save->work);
	if (r < 0)
		return r;
	x->balance += missing(save, record.rank.rank) ? record.balance : 0;
	if (missing(save, record.rank.rank))
		add_stored(x, record.stored, record.base > 0);
	x->heard += missing(save, record.rank.rank);
	x->all[record.rank.rank] = record.rank;
	x->plans[record.rank.rank] = record.plan;
	return 0;
}

/* The deadline has passed: names the missing ranks. */
static int name_missing(struct ckpt_save *save)
{
	const struct ckpt_save_commit *x = save->ranks;
	uint32_t world = save->core->config.world;
	uint32_t left = world - x->heard;
	uint32_t named = 0;
	char names[NAMED_MAX * 12] = "";

	for (uint32_t rank = 0; rank < world && named < NAMED_MAX; rank++) {
		if (!missing(save, rank))
			continue;
		size_t at = strlen(names);
		const char *before = named == 0 ? "" : named + 1 == left ? " and " : ", ";
		(void)snprintf(names + at, sizeof(names) - at, "%s%u", before, rank);
		named++;
	}
	size_t at = strlen(names);
	if (left > named)
		(void)snprintf(names + at, sizeof(names) - at, " and %u more", left - named);
	return ckpt_fail_at(&save->work, -ETIMEDOUT, &(struct ckpt_where){.tier = "local"},
		"rank%s %s of %u %s not said that step %llu is durable there, within %llu s: %s",
		left > 1 ? "s" : "", names, world, left > 1 ? "have" : "has",
		(unsigned long long)save->step, (unsigned long long)(save->timeout_ns / 1000000000),
		x->call.why.code ? x->call.why.message : "check what happened to them");
}

static int take_records(struct ckpt_save *save)
{
	struct ckpt_exchange_call *call = &save->ranks->call;
	int r = call->task.result;

	for (size_t i = 0; i < call->count && r == 0; i++)
		if (call->items[i].data)
			r = take_record(save, &call->items[i]);
	ckpt_exchange_items_clear(call->items, call->count);
	/* Only the ranks of this round were asked for. */
	if (call->task.result == -ETIMEDOUT)
		r = ckpt_env_now(save->core->parts.env) < deadline_ns(save) ? 0
									    : name_missing(save);
	else if (call->task.result < 0)
		(void)ckpt_fail(&save->work, call->task.result, "%s",
			save->ranks->why.code ? save->ranks->why.message
					      : ckpt_code_text(call->task.result));
	return r;
}

static uint64_t sum_bytes(const struct ckpt_save *save)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < save->core->config.world; i++)
		if (__builtin_add_overflow(sum, save->ranks->all[i].shard_bytes, &sum))
			return INT64_MAX;
	return ckpt_min_u64(sum, INT64_MAX);
}

/* A tensor that a rank leaves to another rank that lacks it would be in no shard. */
static int judge_balance(struct ckpt_save *save)
{
	const char *differ = save->ranks->differ;

	if (save->ranks->balance == 0)
		return 0;
	return ckpt_fail_at(&save->work, CKPT_EMISMATCH, &(struct ckpt_where){.tier = "local"},
		"step %llu fails on all ranks, because it would lack a tensor: of those that "
		"several ranks hold and one of them saves, some of these ranks lack one, have it "
		"with another type or shape, or see other ranks as holders%s%s%s; give the ranks "
		"of a mesh the same tensors, and mark what is a rank's own (in Python: per_rank= "
		"of the Checkpointer)",
		(unsigned long long)save->step, *differ ? " (" : "", differ, *differ ? ")" : "");
}

int ckpt_save_collect_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_save_commit *x = save->ranks;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_save_own_rank(save, &x->all[0]);
	x->plans[0] = save->plan->digest;
	x->balance = save->balance;
	add_stored(x, ckpt_save_file_bytes(save), save->based);
	x->heard = 1;
	x->from = 1;
	while (x->heard < save->core->config.world) {
		hear_missing(save);
		CKPT_AWAIT(task, x->call.task.finished);
		r = take_records(save);
		if (r < 0) {
			ckpt_save_doubt_alike(save, r);
			ckpt_save_stop(save, r);
			return ckpt_task_continue(task, ckpt_save_end_body);
		}
	}
	r = ckpt_save_judge_replicas(save);
	if (r == 0)
		r = judge_balance(save);
	if (r < 0) {
		ckpt_save_doubt_alike(save, r);
		ckpt_save_stop(save, r);
		return ckpt_task_continue(task, ckpt_save_end_body);
	}
	memcpy(x->outcome.attempt, save->attempt, sizeof(x->outcome.attempt));
	x->outcome.bytes = sum_bytes(save);
	return ckpt_task_continue(task, ckpt_save_rank_schema_body);
	CKPT_TASK_END(task);
}
