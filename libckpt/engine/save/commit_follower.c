/* SPDX-License-Identifier: Apache-2.0 */
/* A save of many ranks: all ranks but rank 0. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "format/sealed.h"

/* A rank that hears nothing reads the register in this interval: rank 0 may have died after publishing. */
#define LOOK_NS         UINT64_C(1000000000)
/* Additional time for an answer, because the exchange may only be slow. */
#define ANSWER_NS       UINT64_C(3000000000)
/*
 * While a rank writes its part, it can hear only of a failure or skip, so it asks rarely, the more ranks the more
 * rarely.
 */
#define REST_MIN_NS     UINT64_C(250000000)
#define REST_BY_RANK_NS UINT64_C(1000000)

/* All ranks ask for the outcome, possibly at one server: at most 50,000 times a second together. */
#define ASK_BY_RANK_NS UINT64_C(20000)

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

static struct ckpt_save *listening_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save_commit, listener)->save;
}

/* Half as long before the save's own deadline as rank 0 gives up. */
static uint64_t deadline_ns(const struct ckpt_save *save)
{
	return save->start_ns + save->timeout_ns - ckpt_save_margin_ns(save) / 2;
}

static int encode_part(struct ckpt_save *save)
{
	struct ckpt_rank_record record = {0};

	ckpt_save_own_rank(save, &record.rank);
	record.plan = save->plan->digest;
	record.common = save->common;
	record.balance = save->balance;
	if (save->core->config.delta) {
		record.stored = ckpt_save_file_bytes(save);
		record.base = ckpt_save_base_step(save);
	}
	ckpt_save_report_replicas(save, record.alike);
	ckpt_save_name_subject(save, &record.verdict);
	save->ranks->words.len = 0;
	int r = ckpt_rank_record_encode(&record, &save->ranks->words);
	return r < 0 ? ckpt_fail(&save->work, r, "out of memory") : 0;
}

static int give_up(struct ckpt_task *task, int code)
{
	struct ckpt_save *save = save_of(task);

	save->publishing = false;
	ckpt_save_stop(save, code);
	return ckpt_task_continue(task, ckpt_save_end_body);
}

/* Why this rank would abort; the same text each time. */
static const char *word_abort(struct ckpt_save *save)
{
	struct ckpt_verdict *verdict = &save->ranks->outcome.verdict;

	(void)snprintf(verdict->reason, sizeof(verdict->reason),
		"rank %u on node %s has not received its outcome: %.120s", save->core->config.rank,
		save->core->config.node,
		save->ranks->why.code ? save->ranks->why.message : "out of memory");
	return verdict->reason;
}

static int encode_abort(struct ckpt_save *save)
{
	int r = ckpt_save_encode_abort(save, word_abort(save));

	return r < 0 ? ckpt_fail(&save->work, r, "out of memory") : 0;
}

/* No outcome was received: the register decides it. */
static int abort_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	save->op.err = NULL;
	ckpt_store_list(save->core->store, &save->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, save->op.done);
	ckpt_error_clear(&save->work);
	save->op.err = &save->work;
	r = ckpt_save_check_fence(save);
	if (r == 0)
		r = encode_abort(save);
	if (r < 0)
		return give_up(task, r);
	if (save->core->config.node_store)
		return ckpt_task_continue(task, ckpt_save_ask_body);
	ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
	ckpt_store_publish(save->core->store, &save->op, save->path, save->manifest.data,
		save->manifest.len, NULL);
	CKPT_AWAIT(task, save->op.done);
	if (save->op.result == -EEXIST)
		return ckpt_task_continue(task, ckpt_save_resolve_body);
	if (save->op.result < 0)
		return give_up(task, save->op.result);
	return give_up(task, ckpt_save_aborted(save, CKPT_EABORTED, word_abort(save)));
	CKPT_TASK_END(task);
}

/* Reads the outcome from rank 0, if it is valid and about this step. */
static int read_outcome(struct ckpt_save *save, struct ckpt_outcome *ret_outcome)
{
	struct ckpt_exchange_item *item = &save->ranks->call.items[0];
	struct ckpt_verdict asked = {0};
	int r;

	ckpt_error_clear(&save->ranks->why);
	r = ckpt_outcome_decode(
		item->data, item->length, item->key, &save->ranks->why, ret_outcome);
	ckpt_exchange_items_clear(item, 1);
	ckpt_save_name_subject(save, &asked);
	return r < 0 ? r
		     : ckpt_verdict_check(
			       &ret_outcome->verdict, &asked, item->key, &save->ranks->why);
}

/* Most failures belong to one rank. A failure that all ranks share has the same code on all. */
static int code_of(const struct ckpt_outcome *outcome)
{
	switch (outcome->verdict.code) {
	case CKPT_ESKIPPED:
	case CKPT_EMISMATCH:
	case CKPT_EREPLICA:
	case CKPT_EFENCED:
		return outcome->verdict.code;
	default:
		return CKPT_EABORTED;
	}
}

/* Describes how ranks differ, by the names of the first rank that holds the tensors; NULL: there is none. */
static const char *word_difference(
	const struct ckpt_save *save, const struct ckpt_outcome *outcome, char *out, size_t size)
{
	struct ckpt_replica_digest_finding found;
	char tensors[256];

	(void)snprintf(out, size, "%s", outcome->verdict.reason);
	if (!ckpt_save_explain_replicas(save, outcome->clue, &found))
		return NULL;
	ckpt_replica_digest_word_tensors(&found, tensors, sizeof(tensors));
	(void)snprintf(out, size, "%s; by the names of rank %u: %s", outcome->verdict.reason,
		save->core->config.rank, tensors);
	ckpt_utf8_line(out);
	return found.names[0];
}

static int take_difference(struct ckpt_save *save, const struct ckpt_outcome *outcome)
{
	char reason[1024];
	const char *name = word_difference(save, outcome, reason, sizeof(reason));
	int r = ckpt_save_aborted(save, code_of(outcome), reason);

	if (name)
		(void)snprintf(save->work.tensor, sizeof(save->work.tensor), "%s", name);
	return r;
}

static int take_failure(struct ckpt_save *save, const struct ckpt_outcome *outcome)
{
	save->ranks->answered = true;
	if (outcome->verdict.code == CKPT_EFENCED)
		save->core->lineage->fenced = true;
	ckpt_save_doubt_alike(save, outcome->verdict.code);
	ckpt_error_clear(&save->work);
	if (outcome->open)
		return ckpt_fail_at(&save->work, outcome->verdict.code,
			&(struct ckpt_where){.tier = "local"},
			"no rank knows whether step %llu is durable in %s, because rank 0 failed "
			"after publishing it: %s; list the steps once the storage is well",
			(unsigned long long)save->step, save->core->parts.label,
			outcome->verdict.reason);
	return take_difference(save, outcome);
}

/*
 * Before its part is reported. No commit without that part can exist, so an invalid outcome is simply read again at the
 * end.
 */
static int listen_body(struct ckpt_task *task)
{
	struct ckpt_save *save = listening_of(task);
	struct ckpt_save_commit *x = save->ranks;
	struct ckpt_outcome outcome;

	CKPT_TASK_BEGIN(task);
	ckpt_save_prepare_talk(save, task, &x->deaf, UINT64_MAX, NULL);
	x->call.rest_ns = ckpt_max_u64(REST_MIN_NS, save->core->config.world * REST_BY_RANK_NS);
	ckpt_key_outcome(x->call.items[0].key, save->core->lineage->generation, save->step);
	ckpt_exchange_call_get(&x->call);
	CKPT_AWAIT(task, x->call.task.finished);
	if (x->call.task.result == 0 && read_outcome(save, &outcome) == 0 &&
		outcome.verdict.code < 0 && !outcome.open && !save->code)
		ckpt_save_stop(save, take_failure(save, &outcome));
	ckpt_exchange_items_clear(x->call.items, 1);
	CKPT_TASK_END(task);
}

static void listen_done(struct ckpt_task *task)
{
	ckpt_task_wake(&listening_of(task)->task);
}

void ckpt_save_listen(struct ckpt_save *save)
{
	ckpt_task_start(&save->ranks->listener, &save->core->sched, listen_body, listen_done);
}

bool ckpt_save_deaf(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;

	if (!x || !ckpt_task_active(&x->listener))
		return true;
	x->deaf = -EALREADY;
	ckpt_task_wake(&x->call.task);
	return false;
}

static void hear_outcome(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;
	uint64_t now_ns = ckpt_env_now(save->core->parts.env);

	if (x->asked_ns == 0)
		x->asked_ns = now_ns;
	x->look_ns = ckpt_min_u64(deadline_ns(save), now_ns + LOOK_NS);
	ckpt_error_clear(&x->why);
	ckpt_save_prepare_talk(save, &save->task, &x->never, x->look_ns, &x->why);
	x->call.answer_ns = ckpt_min_u64(deadline_ns(save), x->look_ns + ANSWER_NS);
	x->call.since_ns = x->asked_ns;
	/* However many ranks there are, a late outcome must arrive before this rank settles the step. */
	x->call.rest_ns = ckpt_min_u64(
		save->core->config.world * ASK_BY_RANK_NS, ckpt_save_margin_ns(save) / 8);
	ckpt_key_outcome(x->call.items[0].key, save->core->lineage->generation, save->step);
	ckpt_exchange_call_get(&x->call);
}

int ckpt_save_take_outcome(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	bool apart = save->core->config.node_store;
	struct ckpt_outcome outcome;

	int r = read_outcome(save, &outcome);
	/* An invalid outcome: a store that all share has the truth. */
	if (r < 0)
		return ckpt_task_continue(task, apart ? ckpt_save_undecided_body : abort_body);
	if (outcome.verdict.code < 0)
		return give_up(task, take_failure(save, &outcome));
	save->ranks->answered = true;
	save->ranks->outcome = outcome;
	(void)word_difference(save, &outcome, save->ranks->differ, sizeof(save->ranks->differ));
	if (apart)
		return ckpt_task_continue(task, ckpt_save_receive_body);
	save->committed = true;
	save->publishing = false;
	return ckpt_task_continue(task, ckpt_save_end_body);
}

static int outcome_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		hear_outcome(save);
		CKPT_AWAIT(task, save->ranks->call.task.finished);
		r = save->ranks->call.task.result;
		if (r == 0)
			return ckpt_save_take_outcome(task);
		if (r != -ETIMEDOUT || save->ranks->look_ns == deadline_ns(save))
			return ckpt_task_continue(task, abort_body);
		ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
		save->op.err = NULL;
		ckpt_store_get(save->core->store, &save->op, save->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, save->op.done);
		ckpt_free(save->op.data);
		save->op.data = NULL;
		/* Rank 0 may still be syncing it, and decides what happens then, unless it is gone. */
		if (save->op.result == 0 && save->ranks->seen)
			return ckpt_task_continue(task, ckpt_save_resolve_body);
		save->ranks->seen = save->op.result == 0;
		if (save->ranks->seen)
			continue;
		/* Rank 0 may be gone because another start of the job has taken over. */
		ckpt_store_list(save->core->store, &save->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, save->op.done);
		r = ckpt_save_check_fence(save);
		if (r < 0)
			return give_up(task, r);
	}
	CKPT_TASK_END(task);
}

int ckpt_save_follower_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	int r;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, ckpt_save_deaf(save));
	if (save->code)
		return ckpt_task_continue(task, ckpt_save_end_body);
	if (core->config.node_store) {
		/* Rank 0 sees only the claims in its own node's store. */
		ckpt_store_list(core->store, &save->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, save->op.done);
		r = save->op.result < 0 ? save->op.result : ckpt_save_check_fence(save);
		/* It may have been stopped meanwhile, and its user told. */
		if (save->code)
			return ckpt_task_continue(task, ckpt_save_end_body);
		if (r < 0)
			return give_up(task, r);
	}
	r = encode_part(save);
	if (r < 0)
		return give_up(task, r);
	/* From here on rank 0 may know of this part, and the manifest may name its files. */
	save->ranks->told = true;
	save->publishing = true;
	save->publish_tried = true;
	save->op.quiet = true;
	ckpt_save_prepare_talk(
		save, &save->task, &save->ranks->never, deadline_ns(save), &save->ranks->why);
	ckpt_key_rank(save->ranks->call.items[0].key, core->lineage->generation, save->step,
		core->config.rank);
	ckpt_saver_note_told(core->saver, core->lineage->generation, save->step);
	ckpt_save_notify(save);
	CKPT_AWAIT(task, save->ranks->call.task.finished);
	return ckpt_task_continue(
		task, save->ranks->call.task.result < 0 ? abort_body : outcome_body);
	CKPT_TASK_END(task);
}
