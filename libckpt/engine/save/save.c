/* SPDX-License-Identifier: Apache-2.0 */
/* A save on the core: from the first copy to the gate. publish.c goes on from there. */
#include <errno.h>

#include "base/error.h"
#include "engine/core/pool_growth.h"
#include "engine/core/pool_shrink.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "format/index.h"

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

void ckpt_save_answer_end(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	bool skipped = save->code == CKPT_ESKIPPED;

	if (save->ended || save->copying > 0 || save->halting)
		return;
	save->ended = true;
	save->error = save->work;
	save->error.step = (int64_t)save->step;
	save->error.rank = (int32_t)core->config.rank;
	ckpt_core_timer_clear(core, &save->timer);
	core->stats.saves_failed += !skipped;
	core->stats.saves_skipped += skipped;
	ckpt_log(core->parts.log, skipped ? CKPT_LOG_INFO : CKPT_LOG_ERROR,
		"save of step %llu to %s failed: %s", (unsigned long long)save->step,
		core->parts.label, save->error.message);
	ckpt_core_answer(save->core, &save->latch, CKPT_DONE_END);
}

void ckpt_save_stop(struct ckpt_save *save, int code)
{
	CKPT_ASSERT(code < 0 && !save->committed);
	if (save->code)
		return;
	/* The place that found it may have had no words: a code without a sentence is no message. */
	(void)ckpt_fail(&save->work, code, "save of step %llu: %s", (unsigned long long)save->step,
		ckpt_code_text(code));
	save->code = code;
	ckpt_pipeline_halt(save);
	ckpt_save_answer_end(save);
	ckpt_task_wake(&save->task);
	ckpt_task_wake(&save->pump);
	ckpt_task_wake(save->ranks ? &save->ranks->call.task : NULL);
	ckpt_task_wake(save->ranks ? &save->ranks->blob.call.task : NULL);
	for (size_t i = 0; save->lanes && i < save->plan->block_count; i++)
		if (save->lanes[i])
			ckpt_task_wake(&save->lanes[i]->task);
}

static void timed_out(struct ckpt_timer *timer)
{
	struct ckpt_save *save = CKPT_CONTAINER(timer, struct ckpt_save, timer);

	/* A manifest on its way may win: the caller is told that nobody knows, and it goes on. */
	if (save->publishing) {
		(void)ckpt_fail_at(&save->work, -ETIMEDOUT, &(struct ckpt_where){.tier = "local"},
			"whether step %llu is durable in %s was not known within %llu s: %s, and "
			"the storage did not answer; list the steps once it does",
			(unsigned long long)save->step, save->core->parts.label,
			(unsigned long long)(save->timeout_ns / 1000000000),
			save->core->config.rank == 0 ? "its manifest was being published"
						     : "rank 0 has not said how it ended");
		ckpt_save_answer_end(save);
		return;
	}
	ckpt_save_stop(
		save, ckpt_fail_at(&save->work, -ETIMEDOUT, &(struct ckpt_where){.tier = "local"},
			      "step %llu was not durable in %s within %llu s (%llu of %llu bytes "
			      "written%s): "
			      "the disk is too slow or does not answer, or raise the timeout",
			      (unsigned long long)save->step, save->core->parts.label,
			      (unsigned long long)(save->timeout_ns / 1000000000),
			      (unsigned long long)atomic_load(&save->bytes_written),
			      (unsigned long long)atomic_load(&save->bytes),
			      save->fenced && !save->gate ? "; the fence was not reached" : ""));
}

int ckpt_save_check_op(struct ckpt_save *save)
{
	if (!save->code && save->op.result < 0)
		ckpt_save_stop(save, save->op.result);
	return save->code;
}

static void name_shard(struct ckpt_save *save)
{
	ckpt_name_attempt(save->shard_attempt, ckpt_env_random(save->core->parts.env));
	ckpt_save_name_shard(save);
}

/* Whether a file that failed may be written once more, from staging, under a new name. */
static bool may_rewrite(const struct ckpt_save *save)
{
	return save->hold && !save->rewritten && save->work.code == -EIO;
}

static int encode_index(struct ckpt_save *save)
{
	return ckpt_index_encode(save->plan->layout, save->core->config.rank, save->meta,
		save->meta_bytes, &save->index, &save->work);
}

int ckpt_save_fail_body(struct ckpt_task *task, int code)
{
	ckpt_save_stop(save_of(task), code);
	return ckpt_task_continue(task, ckpt_save_end_body);
}

/* Everything is durable but the name of the manifest. */
int ckpt_save_gate_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_TASK_BEGIN(task);
	if (!save->code && !atomic_load(&save->durable_ns))
		atomic_store(
			&save->durable_ns, ckpt_env_now(save->core->parts.env) - save->start_ns);
	/* Rank 0 hears of the others before its own gate is open: one may have failed. */
	if (save->ranks && save->core->config.rank == 0 && !save->ranks->heard)
		return ckpt_task_continue(task, ckpt_save_collect_body);
	CKPT_AWAIT(task, save->code || !save->fenced || (save->gate && !save->looking));
	if (save->code)
		return ckpt_save_fail_body(task, save->code);
	return ckpt_task_continue(task,
		save->core->config.rank == 0 ? ckpt_save_publish_body : ckpt_save_follower_body);
	CKPT_TASK_END(task);
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_store *store = save->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_pipeline_release_all(save);
	r = encode_index(save);
	if (r < 0)
		return ckpt_save_fail_body(task, r);
	ckpt_name_index(save->path, save->core->lineage->generation, save->step,
		save->core->config.rank, save->shard_attempt);
	save->index_tried = true;
	ckpt_store_put(store, &save->op, save->path, save->index.data, save->index.len);
	CKPT_AWAIT(task, save->op.done);
	if (ckpt_save_check_op(save) < 0)
		return ckpt_save_fail_body(task, save->code);
	/* The names of shard and index must be durable before the manifest can be. */
	ckpt_name_step(save->path, save->core->lineage->generation, save->step);
	ckpt_store_sync(store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	if (ckpt_save_check_op(save) < 0)
		return ckpt_save_fail_body(task, save->code);
	return ckpt_task_continue(task, ckpt_save_gate_body);
	CKPT_TASK_END(task);
}

/*
 * One file: created, filled by the lanes, sealed. A file whose write or sync failed is never synced
 * again: if staging still holds everything, another one is written, once.
 */
static int file_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_store *store = save->core->store;

	CKPT_TASK_BEGIN(task);
	name_shard(save);
	ckpt_store_create(store, &save->op, save->path, ckpt_save_file_room(save), &save->object);
	CKPT_AWAIT(task, save->op.done);
	/* A rank that has heard that the step is over has taken the empty directory along. */
	if (save->op.result == -ENOENT && save->ranks && !save->code &&
		save->remade++ < save->core->config.world) {
		ckpt_error_clear(&save->work);
		return ckpt_task_continue(task, ckpt_save_directory_body);
	}
	if (ckpt_save_check_op(save) < 0)
		return ckpt_save_fail_body(task, save->code);
	save->file_failed = false;
	save->file_open = true;
	if (save->rewritten)
		ckpt_pipeline_rewrite(save);
	for (size_t i = 0; i < save->plan->block_count; i++)
		ckpt_task_wake(save->lanes[i] ? &save->lanes[i]->task : NULL);
	CKPT_AWAIT(task, save->code || ckpt_pipeline_finished(save) ||
				 (save->file_failed && ckpt_pipeline_quiet(save)));
	if (save->code)
		return ckpt_save_fail_body(task, save->code);
	if (!save->file_failed && save->encoding) {
		ckpt_encoding_write_table(save);
		CKPT_AWAIT(task, save->op.done);
		save->file_failed = save->op.result < 0;
	}
	if (!save->file_failed) {
		ckpt_store_seal(store, &save->op, &save->object, ckpt_save_file_bytes(save));
		CKPT_AWAIT(task, save->op.done);
		save->file_failed = save->op.result < 0;
	}
	if (save->file_failed && (save->code || !may_rewrite(save)))
		return ckpt_save_fail_body(task, save->code ? save->code : save->work.code);
	if (save->file_failed) {
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"writing %s again under another name: %s", save->path, save->work.message);
		save->rewritten = true;
		save->file_open = false;
		ckpt_error_clear(&save->work);
		ckpt_store_abandon(store, &save->op, &save->object);
		CKPT_AWAIT(task, save->op.done);
		/* What became of the bad file does not matter: its name is never used again. */
		ckpt_error_clear(&save->work);
		return ckpt_task_continue(task, file_body);
	}
	return ckpt_task_continue(task, index_body);
	CKPT_TASK_END(task);
}

int ckpt_save_directory_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(save->path, save->core->lineage->generation, save->step);
	ckpt_store_mkdir(save->core->store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	/* Also of a save that was stopped meanwhile: it leaves its record there. */
	save->dirs_made = save->op.result >= 0;
	if (ckpt_save_check_op(save) < 0)
		return ckpt_save_fail_body(task, save->code);
	return ckpt_task_continue(task, file_body);
	CKPT_TASK_END(task);
}

static int save_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_pipeline_start(save);
	if (r < 0)
		return ckpt_save_fail_body(task, r);
	ckpt_shrink_note(core, ckpt_save_staging_blocks(save));
	ckpt_pool_growth_want(core, ckpt_save_staging_blocks(save));
	if (core->lineage->claim_untold)
		ckpt_claim_retell(core);
	if (core->config.rank > 0)
		ckpt_save_listen(save);
	ckpt_store_op_init(&save->op, task, &save->work);
	ckpt_name_attempt(save->attempt, ckpt_env_random(core->parts.env));
	ckpt_name_generation(save->path, core->lineage->generation);
	ckpt_store_mkdir(core->store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	if (ckpt_save_check_op(save) < 0)
		return ckpt_save_fail_body(task, save->code);
	return ckpt_task_continue(task, ckpt_save_directory_body);
	CKPT_TASK_END(task);
}

/* Why the core cannot take it at all; 0: it can. */
static int refuse(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	unsigned long long step = save->step;

	if (core->closing)
		return ckpt_fail(&save->work, CKPT_ECLOSED, "the engine is closing");
	if (core->lineage->fenced)
		return ckpt_fail(&save->work, CKPT_EFENCED,
			"a later generation has taken over the store %s: " CKPT_SAVE_FENCED_TEXT,
			core->parts.label);
	CKPT_ASSERT(core->lineage->generation > 0 && !core->save);
	if (core->lineage->any_step && save->step <= core->lineage->last_step)
		return ckpt_fail(&save->work, CKPT_ESTEP,
			"step %llu is not after step %llu, the last one of this run: resume from "
			"an "
			"older step to save it again",
			step, (unsigned long long)core->lineage->last_step);
	return 0;
}

static void save_done(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_ASSERT(save->ended && save->core->save == save);
	save->core->save = NULL;
	ckpt_task_wake(save->core->closer);
	ckpt_core_answer(save->core, &save->latch, CKPT_DONE_GONE);
	ckpt_skipper_wake(save->core);
	ckpt_shrink_want(save->core);
	ckpt_save_unref(save);
}

static void post_run(struct ckpt_node *node)
{
	struct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, post_node);
	struct ckpt_core *core = save->core;
	int r = refuse(save);

	core->stats.saves_started++;
	if (r < 0) {
		save->code = r;
		ckpt_save_answer_end(save);
		ckpt_core_answer(core, &save->latch, CKPT_DONE_GONE);
		ckpt_save_notify_refusal(save);
		return;
	}
	core->save = save;
	core->lineage->last_step = save->step;
	core->lineage->any_step = true;
	atomic_store(&save->generation, core->lineage->generation);
	save->timer.fire = timed_out;
	ckpt_core_timer_set(core, &save->timer, save->start_ns + save->timeout_ns);
	ckpt_task_start(&save->task, &core->sched, save_body, save_done);
}

void ckpt_save_post(struct ckpt_save *save)
{
	CKPT_ASSERT(save->plan && !ckpt_save_started(save));
	(void)ckpt_save_ref(save);
	save->post_node.run = post_run;
	ckpt_inbox_push(save->core->parts.env->inbox, &save->post_node);
	atomic_store(&save->started, true);
}

static void gate_run(struct ckpt_node *node)
{
	struct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, gate_node);

	save->gate = true;
	ckpt_task_wake(&save->task);
	ckpt_save_unref(save);
}

void ckpt_save_post_gate(struct ckpt_save *save)
{
	if (atomic_exchange(&save->gate_posted, true))
		return;
	(void)ckpt_save_ref(save);
	save->gate_node.run = gate_run;
	ckpt_inbox_push(save->core->parts.env->inbox, &save->gate_node);
}

static void cancel_run(struct ckpt_node *node)
{
	struct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, cancel_node);

	/* A manifest on its way may win, and its outcome is told unless the deadline comes first. */
	if (!save->ended && !save->publishing)
		ckpt_save_stop(save,
			ckpt_fail(&save->work, -ECANCELED, "the save of step %llu was cancelled",
				(unsigned long long)save->step));
	ckpt_save_unref(save);
}

void ckpt_save_post_cancel(struct ckpt_save *save)
{
	if (atomic_exchange(&save->cancel_posted, true))
		return;
	(void)ckpt_save_ref(save);
	save->cancel_node.run = cancel_run;
	ckpt_inbox_push(save->core->parts.env->inbox, &save->cancel_node);
}

static void verdict_run(struct ckpt_node *node)
{
	struct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, verdict_node);

	/* As for a cancel. */
	if (!save->ended && !save->code && !save->publishing) {
		save->work = save->verdict;
		ckpt_save_stop(save, save->verdict.code);
	}
	ckpt_save_unref(save);
}

void ckpt_save_post_failure(struct ckpt_save *save, const struct ckpt_error *why)
{
	CKPT_ASSERT(why->code < 0);
	if (atomic_exchange(&save->verdict_posted, true))
		return;
	(void)ckpt_save_ref(save);
	save->verdict = *why;
	save->verdict_node.run = verdict_run;
	ckpt_inbox_push(save->core->parts.env->inbox, &save->verdict_node);
}
