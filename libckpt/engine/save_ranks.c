/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks, one outcome. */
#include "engine/save_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/save_state.h"
#include "format/sealed.h"

/*
 * Before the save's own deadline: rank 0 gives up so much earlier that the others hear of it in time, and
 * these ask the register half as much earlier.
 */
#define MARGIN_MAX_NS UINT64_C(15000000000)
#define TELL_MAX_NS   UINT64_C(10000000000)

int ckpt_save_ranks_new(uint32_t rank, uint32_t world, struct ckpt_save_ranks **ret_ranks)
{
	struct ckpt_save_ranks *x = ckpt_alloc(sizeof(*x));

	if (!x)
		return -ENOMEM;
	x->all = rank == 0 ? ckpt_alloc_array(world, sizeof(*x->all)) : NULL;
	if (rank == 0 && !x->all) {
		ckpt_free(x);
		return -ENOMEM;
	}
	*ret_ranks = x;
	return 0;
}

void ckpt_save_ranks_free(struct ckpt_save_ranks *ranks)
{
	if (!ranks)
		return;
	ckpt_buf_free(&ranks->words);
	ckpt_free(ranks->all);
	ckpt_free(ranks);
}

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

static uint64_t margin_ns(const struct ckpt_save *save)
{
	return ckpt_min_u64(save->timeout_ns / 4, MARGIN_MAX_NS);
}

static void prepare_talk(
	struct ckpt_save *save, const int *stop, uint64_t deadline_ns, struct ckpt_error *err)
{
	struct ckpt_talk *talk = &save->ranks->talk;

	talk->core = save->core;
	talk->stop = stop;
	talk->deadline_ns = deadline_ns;
	talk->err = err;
	talk->waiter = &save->task;
	talk->count = 1;
	memset(talk->items, 0, sizeof(talk->items[0]));
}

static void tell(struct ckpt_save *save)
{
	struct ckpt_talk *talk = &save->ranks->talk;

	talk->items[0].data = save->ranks->words.data;
	talk->items[0].length = save->ranks->words.len;
	ckpt_talk_tell(talk);
}

/* Rank 0. */

static void hear_missing(struct ckpt_save *save)
{
	struct ckpt_save_ranks *x = save->ranks;
	uint32_t world = save->core->config.world;

	prepare_talk(save, &save->code, save->start_ns + save->timeout_ns - margin_ns(save),
		&save->work);
	x->talk.count = 0;
	for (uint32_t i = 0; i < world && x->talk.count < CKPT_EXCHANGE_BATCH; i++) {
		uint32_t rank = (x->from + i) % world;
		if (!x->all[rank].attempt[0])
			ckpt_key_rank(x->talk.items[x->talk.count++].key, save->core->generation,
				save->step, rank);
	}
	ckpt_talk_hear(&x->talk);
}

/* One value that was heard. */
static int take_record(struct ckpt_save *save, const struct ckpt_exchange_item *item)
{
	struct ckpt_save_ranks *x = save->ranks;
	struct ckpt_rank_record record;
	int r = ckpt_rank_record_decode(item->data, item->length, item->key, &save->work, &record);

	if (r < 0)
		return r;
	if (record.verdict.code < 0)
		return ckpt_fail_at(&save->work, CKPT_EABORTED,
			&(struct ckpt_where){.tier = "local"},
			"rank %u on node %s failed, so step %llu is of no rank: %s",
			record.rank.rank, record.rank.node, (unsigned long long)save->step,
			record.verdict.reason);
	if (record.rank.rank == 0 || record.rank.rank >= save->core->config.world)
		return ckpt_fail(&save->work, CKPT_EFORMAT, "%s names rank %u of %u", item->key,
			record.rank.rank, save->core->config.world);
	x->heard += x->all[record.rank.rank].attempt[0] == '\0';
	x->all[record.rank.rank] = record.rank;
	x->from = record.rank.rank + 1;
	return 0;
}

static int take_records(struct ckpt_save *save)
{
	struct ckpt_talk *talk = &save->ranks->talk;
	int r = talk->task.result;

	for (size_t i = 0; i < talk->count && r == 0; i++)
		if (talk->items[i].data)
			r = take_record(save, &talk->items[i]);
	ckpt_exchange_items_clear(talk->items, talk->count);
	return r;
}

int ckpt_save_gather_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_save_own_rank(save, &save->ranks->all[0]);
	save->ranks->heard = 1;
	while (save->ranks->heard < save->core->config.world) {
		hear_missing(save);
		CKPT_AWAIT(task, save->ranks->talk.task.finished);
		r = take_records(save);
		if (r < 0) {
			ckpt_save_stop(save, r);
			return ckpt_task_continue(task, ckpt_save_end_body);
		}
	}
	return ckpt_task_continue(task, ckpt_save_publish_body);
	CKPT_TASK_END(task);
}

static int encode_outcome(struct ckpt_save *save)
{
	struct ckpt_verdict verdict = {.code = save->committed ? 0 : save->code};

	if (!save->committed)
		(void)snprintf(
			verdict.reason, sizeof(verdict.reason), "%.250s", save->work.message);
	save->ranks->words.len = 0;
	return ckpt_verdict_encode(&verdict, &save->ranks->words);
}

static int encode_failure(struct ckpt_save *save)
{
	struct ckpt_rank_record record = {.verdict.code = save->code};

	record.rank.rank = save->core->config.rank;
	memcpy(record.rank.node, save->core->config.node, sizeof(record.rank.node));
	(void)snprintf(
		record.verdict.reason, sizeof(record.verdict.reason), "%.250s", save->work.message);
	save->ranks->words.len = 0;
	return ckpt_rank_record_encode(&record, &save->ranks->words);
}

/* The outcome of the step before, under the number of rank 0, and what the others told. */
static void name_last_told(struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;
	struct ckpt_save_ranks *x = save->ranks;

	prepare_talk(save, &x->never, UINT64_MAX, NULL);
	x->talk.count = 0;
	for (; x->from < core->config.world && x->talk.count < CKPT_EXCHANGE_BATCH; x->from++) {
		char *key = x->talk.items[x->talk.count++].key;
		if (x->from == 0)
			ckpt_key_outcome(key, core->told_generation, core->told_step);
		else
			ckpt_key_rank(key, core->told_generation, core->told_step, x->from);
	}
}

/*
 * All have told of this step, so nobody asks for the one before it. A step whose ranks were not all heard of
 * leaves its keys: they go with the session.
 */
static int drop_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	struct ckpt_save_ranks *x = save->ranks;

	CKPT_TASK_BEGIN(task);
	x->from = 0;
	while (core->told_generation && x->from < core->config.world) {
		name_last_told(save);
		ckpt_talk_drop(&x->talk);
		CKPT_AWAIT(task, x->talk.task.finished);
		/* An exchange that does not answer is not asked once for every 64 ranks. */
		if (x->talk.task.result < 0)
			break;
	}
	core->told_generation = core->generation;
	core->told_step = save->step;
	return save->committed ? 0 : save->code;
	CKPT_TASK_END(task);
}

/* Rank 0 tells the outcome; another, that it has failed, unless its part was told already. */
int ckpt_save_tell_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	bool first = core->config.rank == 0;

	CKPT_TASK_BEGIN(task);
	if (first ? !save->committed && !save->ranks->settled
		  : save->ranks->told || save->committed)
		return save->committed ? 0 : save->code;
	if ((first ? encode_outcome(save) : encode_failure(save)) < 0)
		return save->committed ? 0 : save->code;
	prepare_talk(save, &save->ranks->never, ckpt_env_now(core->parts.env) + TELL_MAX_NS, NULL);
	if (first)
		ckpt_key_outcome(save->ranks->talk.items[0].key, core->generation, save->step);
	else
		ckpt_key_rank(save->ranks->talk.items[0].key, core->generation, save->step,
			core->config.rank);
	tell(save);
	CKPT_AWAIT(task, save->ranks->talk.task.finished);
	if (first && save->ranks->heard == core->config.world)
		return ckpt_task_continue(task, drop_body);
	return save->committed ? 0 : save->code;
	CKPT_TASK_END(task);
}

/* The others. */

static int encode_part(struct ckpt_save *save)
{
	struct ckpt_rank_record record = {0};

	ckpt_save_own_rank(save, &record.rank);
	save->ranks->words.len = 0;
	int r = ckpt_rank_record_encode(&record, &save->ranks->words);
	return r < 0 ? ckpt_fail(&save->work, r, "out of memory") : 0;
}

static int give_up(struct ckpt_task *task, int code)
{
	ckpt_save_stop(save_of(task), code);
	return ckpt_task_continue(task, ckpt_save_end_body);
}

static int aborted(struct ckpt_save *save, const char *reason)
{
	save->ranks->settled = true;
	save->publishing = false;
	return ckpt_fail_at(&save->work, CKPT_EABORTED, &(struct ckpt_where){.tier = "local"},
		"step %llu was aborted for all ranks: %s", (unsigned long long)save->step, reason);
}

/* What the register holds: it is the outcome. */
static int read_register(struct ckpt_save *save)
{
	struct ckpt_manifest manifest = {0};
	int r = ckpt_manifest_decode(
		save->op.data, save->op.length, save->path, &save->work, &manifest);

	ckpt_free(save->op.data);
	save->op.data = NULL;
	if (r == 0 && manifest.kind == CKPT_MANIFEST_ABORT)
		r = aborted(save, manifest.reason);
	else if (r == 0)
		save->committed = true;
	ckpt_manifest_clear(&manifest);
	return r;
}

static int encode_abort(struct ckpt_save *save)
{
	(void)ckpt_fail(&save->work, -ETIMEDOUT, "rank %u has not heard of the outcome in time",
		save->core->config.rank);
	int r = ckpt_save_encode_abort(save, save->work.message);
	return r < 0 ? ckpt_fail(&save->work, r, "out of memory") : 0;
}

/* Nobody has said how it ended: the register decides, and says it. */
static int register_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_store *store = save->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	r = encode_abort(save);
	if (r < 0)
		return give_up(task, r);
	ckpt_name_manifest(save->path, save->core->generation, save->step);
	ckpt_store_publish(
		store, &save->op, save->path, save->manifest.data, save->manifest.len, NULL);
	CKPT_AWAIT(task, save->op.done);
	if (save->op.result == 0)
		return give_up(task, aborted(save, "rank 0 did not answer in time"));
	if (save->op.result != -EEXIST)
		return give_up(task, save->op.result);
	/* What is there may be so new that a power cut would take its name away. */
	ckpt_name_step(save->path, save->core->generation, save->step);
	ckpt_store_sync(store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	if (save->op.result < 0)
		return give_up(task, save->op.result);
	ckpt_name_manifest(save->path, save->core->generation, save->step);
	ckpt_store_get(store, &save->op, save->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, save->op.done);
	r = save->op.result == 0 ? read_register(save) : save->op.result;
	if (r < 0)
		return give_up(task, r);
	save->publishing = false;
	return ckpt_task_continue(task, ckpt_save_end_body);
	CKPT_TASK_END(task);
}

static int take_outcome(struct ckpt_save *save)
{
	struct ckpt_exchange_item *item = &save->ranks->talk.items[0];
	struct ckpt_verdict verdict;
	int r = ckpt_verdict_decode(item->data, item->length, item->key, &save->work, &verdict);

	ckpt_exchange_items_clear(item, 1);
	if (r == 0 && verdict.code < 0)
		r = aborted(save, verdict.reason);
	return r;
}

static int outcome_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	prepare_talk(save, &save->ranks->never,
		save->start_ns + save->timeout_ns - margin_ns(save) / 2, &save->work);
	ckpt_key_outcome(save->ranks->talk.items[0].key, save->core->generation, save->step);
	ckpt_talk_hear(&save->ranks->talk);
	CKPT_AWAIT(task, save->ranks->talk.task.finished);
	/* What cannot be read, too: the store knows. */
	r = save->ranks->talk.task.result == 0 ? take_outcome(save) : -ETIMEDOUT;
	if (r == CKPT_EABORTED)
		return give_up(task, r);
	if (r < 0)
		return ckpt_task_continue(task, register_body);
	save->publishing = false;
	save->committed = true;
	return ckpt_task_continue(task, ckpt_save_end_body);
	CKPT_TASK_END(task);
}

int ckpt_save_follow_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	int r;

	CKPT_TASK_BEGIN(task);
	r = encode_part(save);
	if (r < 0)
		return give_up(task, r);
	/* From here on rank 0 may know of it, and the manifest may name its files. */
	save->ranks->told = true;
	save->publishing = true;
	save->publish_tried = true;
	prepare_talk(save, &save->ranks->never,
		save->start_ns + save->timeout_ns - margin_ns(save) / 2, &save->work);
	ckpt_key_rank(
		save->ranks->talk.items[0].key, core->generation, save->step, core->config.rank);
	tell(save);
	CKPT_AWAIT(task, save->ranks->talk.task.finished);
	return ckpt_task_continue(
		task, save->ranks->talk.task.result < 0 ? register_body : outcome_body);
	CKPT_TASK_END(task);
}
