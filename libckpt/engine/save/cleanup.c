/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a save ends. Committed: it is reported and counted, and retention runs. Failed: first everything in flight comes
 * back. Then its files are deleted and an abort record is published, in an order in which no commit without its shard
 * can exist:
 * - Nobody tried to publish: no manifest can name these files. They are deleted first, which also makes space for the
 *   record on a full disk.
 * - Publishing failed: the manifest may exist. Only an abort record that wins the register proves that it does not.
 *   Without that proof the files stay, and the next generation settles the step.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "engine/save/estimate.h"
#include "engine/save/save_state.h"

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

static void count_commit(struct ckpt_save *save, uint64_t took_ns)
{
	struct ckpt_core *core = save->core;

	core->stats.saves_committed++;
	core->stats.last_step = save->step;
	core->stats.last_local_ns = took_ns;
	core->stats.last_eager_ns = atomic_load(&save->eager_ns);
	core->stats.bytes_staged += atomic_load(&save->bytes_staged);
}

/* What a commit says of the size of an encoded file. */
static void describe_stored(const struct ckpt_save *save, char *out, size_t size)
{
	double bytes = (double)save->plan->layout->bytes;
	double stored = (double)ckpt_save_file_bytes(save);

	*out = 0;
	if (save->encodes)
		(void)snprintf(out, size, ", stored as %.1f MiB (%.2f times smaller)%s",
			stored / (1 << 20), stored > 0 ? bytes / stored : 0.0,
			save->based ? ", as the difference to the last step" : "");
}

static void say_commit(struct ckpt_save *save, uint64_t took_ns)
{
	char stored[128];
	struct ckpt_core *core = save->core;
	double seconds = (double)took_ns / 1e9;
	double mib = (double)save->plan->layout->bytes / (1 << 20);

	describe_stored(save, stored, sizeof(stored));
	ckpt_log(core->parts.log, CKPT_LOG_INFO,
		"step %llu is durable in %s: %.1f MiB in %.3f s (%.0f MiB/s), staged after %.3f "
		"s%s%s%s",
		(unsigned long long)save->step, core->parts.label, mib, seconds,
		seconds > 0 ? mib / seconds : 0.0, (double)atomic_load(&save->stage_ns) / 1e9,
		stored, save->rewritten ? ", written twice" : "",
		save->ended ? "; its save had been reported as failed" : "");
}

/* Retention is done by rank 0; other ranks keep only their newest commit in the scan. */
static void forget_older(struct ckpt_core *core)
{
	const struct ckpt_scan *scan = &core->lineage->scan;

	while (scan->step_count > 1 && scan->steps[1].generation == core->lineage->generation)
		ckpt_scan_drop(
			&core->lineage->scan, core->lineage->generation, scan->steps[1].step);
}

/* The manifest is durable. */
static void committed(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_scan_step found = {.generation = core->lineage->generation,
		.step = save->step,
		.state = CKPT_STEP_COMMITTED,
		.in_lineage = true,
		.wall_ms = ckpt_env_wall_ms(core->parts.env),
		.bytes = save->ranks ? save->ranks->outcome.bytes : save->plan->layout->bytes,
		.world = core->config.world};
	uint64_t took_ns = ckpt_env_now(core->parts.env) - save->start_ns;

	memcpy(found.attempt, save->ranks ? save->ranks->outcome.attempt : save->attempt,
		sizeof(found.attempt));
	found.base_count = save->run.count;
	memcpy(found.bases, save->run.steps, sizeof(found.bases));
	if (ckpt_scan_put(&core->lineage->scan, &found) < 0) {
		ckpt_save_note_unknown(save);
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"out of memory: retention %s step %llu until the store is opened again",
			core->lineage->scan.lacks ? "removes nothing, because it does not know"
						  : "ignores",
			(unsigned long long)save->step);
	}
	if (!ckpt_core_owns_store(core))
		forget_older(core);
	ckpt_upload_queue_add(core, save->upload, core->lineage->generation, save->step,
		ckpt_save_file_bytes(save), save->staged_shard);
	save->staged_shard = NULL;
	ckpt_save_note_replicas(save);
	count_commit(save, took_ns);
	say_commit(save, took_ns);
	/* The deadline has passed: the outcome was reported, and stays. */
	if (save->ended) {
		core->stats.saves_failed--;
	} else {
		atomic_store(&save->local_ns, took_ns);
		ckpt_core_timer_clear(core, &save->timer);
		save->ended = true;
		ckpt_core_answer(core, &save->latch, CKPT_DONE_LOCAL | CKPT_DONE_END);
	}
	ckpt_estimate_start(save);
	ckpt_gc_ask(core, CKPT_GC_RETAIN);
}

int ckpt_save_encode_abort(struct ckpt_save *save, const char *reason)
{
	struct ckpt_core *core = save->core;
	struct ckpt_manifest manifest = {.kind = CKPT_MANIFEST_ABORT,
		.generation = core->lineage->generation,
		.step = save->step,
		.wall_ms = ckpt_env_wall_ms(core->parts.env),
		.world = core->config.world};

	memcpy(manifest.run_id, core->lineage->marker.run_id, sizeof(manifest.run_id));
	memcpy(manifest.attempt, save->attempt, sizeof(manifest.attempt));
	(void)snprintf(manifest.reason, sizeof(manifest.reason), "%.250s", reason);
	save->manifest.len = 0;
	return ckpt_manifest_encode(&manifest, &save->manifest);
}

static int encode_abort(struct ckpt_save *save)
{
	return ckpt_save_encode_abort(save,
		save->publish_tried && save->error.code == -ETIMEDOUT
			? "its deadline passed while it was being published, and publishing failed"
			: save->error.message);
}

/* Thousands of failed saves must not leave thousands of records. */
static void note_abort(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_scan_step aborted = {.generation = core->lineage->generation,
		.step = save->step,
		.state = CKPT_STEP_ABORTED};

	if (core->config.rank > 0 || (core->config.node_store && save->ranks))
		return;
	/* Out of memory: the record stays until the next engine reads the store. */
	if (ckpt_scan_put(&core->lineage->scan, &aborted) == 0)
		ckpt_gc_ask(core, CKPT_GC_TIDY);
}

/* The end; the other ranks may be waiting for it. */
static int leave(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	ckpt_staged_shard_free(save->staged_shard);
	save->staged_shard = NULL;
	ckpt_estimate_drop(save);
	ckpt_save_end_run(save);
	if (save->ranks)
		return ckpt_task_continue(task, ckpt_save_notify_body);
	return save->code;
}

/* Not rank 0, which has already reported that the step is over. The last rank deletes the directory. */
static int vacate_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(save->path, core->lineage->generation, save->step);
	save->op.err = NULL;
	/* The directory stays if it contains an abort record, or files of a rank that has not heard yet. */
	ckpt_store_rmdir(core->store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	return leave(task);
	CKPT_TASK_END(task);
}

/* Called when this rank's own files are deleted. */
static int leave_step(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	const struct ckpt_save_commit *x = save->ranks;
	bool over =
		x && (save->core->config.rank > 0 ? x->answered
						  : save->core->config.node_store && x->settled);

	if (over && save->dirs_made)
		return ckpt_task_continue(task, vacate_body);
	return leave(task);
}

/* No manifest names them, and none will. */
static int remove_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	ckpt_save_name_shard(save);
	ckpt_store_remove(core->store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	ckpt_name_index(save->path, core->lineage->generation, save->step, core->config.rank,
		save->shard_attempt);
	ckpt_store_remove(core->store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	note_abort(save);
	return leave_step(task);
	CKPT_TASK_END(task);
}

/* Whether the register contains an abort, after the record was tried. */
static bool abort_won(const struct ckpt_save *save)
{
	/* Only rank 0 publishes commits: if it has not done so, another rank's abort is there. */
	return save->op.result == 0 ||
	       (save->op.result == -EEXIST && save->ranks && !save->publish_tried);
}

/* Publishes the abort record, then acts on whether it won. */
static int abort_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	if (save->ranks)
		save->ranks->settled = save->ranks->settled || !save->publish_tried;
	if (save->publish_tried && save->ranks && save->ranks->settled)
		return ckpt_task_continue(task, remove_body);
	/* If every node has its own store, the exchange holds the register. */
	if (core->config.rank > 0 || (core->config.node_store && save->ranks))
		return leave_step(task);
	if (!save->dirs_made || encode_abort(save) < 0)
		return leave(task);
	ckpt_name_manifest(save->path, core->lineage->generation, save->step);
	save->op.err = NULL;
	ckpt_store_publish(
		core->store, &save->op, save->path, save->manifest.data, save->manifest.len, NULL);
	CKPT_AWAIT(task, save->op.done);
	if (!abort_won(save)) {
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"no abort record for step %llu (%s): the next generation settles it",
			(unsigned long long)save->step, ckpt_code_text(save->op.result));
		return leave(task);
	}
	if (save->ranks)
		save->ranks->settled = true;
	if (save->publish_tried)
		return ckpt_task_continue(task, remove_body);
	note_abort(save);
	return leave(task);
	CKPT_TASK_END(task);
}

int ckpt_save_end_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	struct ckpt_store *store = core->store;

	CKPT_TASK_BEGIN(task);
	if (save->committed) {
		committed(save);
		return leave(task);
	}
	CKPT_ASSERT(save->code < 0);
	if (save->code == -ENOSPC || save->code == -EDQUOT)
		ckpt_upload_queue_yield(core);
	CKPT_AWAIT(task, ckpt_pipeline_quiet(save) && !save->looking && !save->halting);
	ckpt_save_answer_end(save);
	ckpt_pipeline_release_all(save);
	CKPT_AWAIT(task, ckpt_save_deaf(save));
	ckpt_store_op_init(&save->op, task, NULL);
	/* A fenced process stops: its successor settles what it leaves. */
	if (core->lineage->fenced) {
		if (save->object.fd >= 0) {
			ckpt_store_shut(store, &save->op, &save->object);
			CKPT_AWAIT(task, save->op.done);
		}
		if (save->ranks)
			save->ranks->settled = !save->publish_tried;
		return leave(task);
	}
	if (save->object.fd >= 0) {
		ckpt_store_abandon(store, &save->op, &save->object);
		CKPT_AWAIT(task, save->op.done);
	} else if (save->shard_attempt[0] && !save->publish_tried) {
		ckpt_save_name_shard(save);
		ckpt_store_remove(store, &save->op, save->path);
		CKPT_AWAIT(task, save->op.done);
	}
	if (save->index_tried && !save->publish_tried) {
		ckpt_name_index(save->path, core->lineage->generation, save->step,
			core->config.rank, save->shard_attempt);
		ckpt_store_remove(store, &save->op, save->path);
		CKPT_AWAIT(task, save->op.done);
	}
	return ckpt_task_continue(task, abort_body);
	CKPT_TASK_END(task);
}
