/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outcome if every node has its own store. The register is a key of the exchange, which is written once: by rank 0
 * with the commit, or with an abort by a rank that has waited too long. Only then the same manifest is written to every
 * store, and a rank that finds it durable in its node's store has its step. A node that dies before that gets it when
 * the stores are opened again (lineage/open_sync.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "format/sealed.h"

/* A node's leader installs the manifest for its ranks. They wait this long, then do it themselves. */
#define PATIENCE_NS UINT64_C(1000000000)
#define PAUSE_NS    UINT64_C(2000000)

static ckpt_task_fn install_body;

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

static uint64_t deadline_ns(const struct ckpt_save *save)
{
	return save->start_ns + save->timeout_ns;
}

static int give_up(struct ckpt_task *task, int code)
{
	struct ckpt_save *save = save_of(task);

	save->publishing = false;
	ckpt_save_stop(save, code);
	return ckpt_task_continue(task, ckpt_save_end_body);
}

static const char *reason_of(const struct ckpt_save *save, int code)
{
	return save->ranks->why.code ? save->ranks->why.message : ckpt_code_text(code);
}

/* The exchange has not answered, so this rank does not know the register's contents. */
static int undecided(struct ckpt_task *task, int code)
{
	struct ckpt_save *save = save_of(task);

	ckpt_error_clear(&save->work);
	return give_up(
		task, ckpt_fail_at(&save->work, -ETIMEDOUT, &(struct ckpt_where){.tier = "local"},
			      "it is unknown whether step %llu is committed, on rank %u: %s; the "
			      "next start of the job finds out",
			      (unsigned long long)save->step, save->core->config.rank,
			      reason_of(save, code)));
}

/* It is committed, but this node's store does not have the manifest. */
static int not_installed(struct ckpt_task *task, int code, const char *why)
{
	struct ckpt_save *save = save_of(task);
	char reason[512];

	(void)snprintf(reason, sizeof(reason), "%s", why);
	ckpt_error_clear(&save->work);
	return give_up(
		task, ckpt_fail_at(&save->work, code, &(struct ckpt_where){.tier = "local"},
			      "step %llu is committed, but its manifest is not in %s: %s; the next "
			      "start of the job copies it there",
			      (unsigned long long)save->step, save->core->parts.label, reason));
}

static void prepare_blob(struct ckpt_save *save, const int *stop)
{
	struct ckpt_blob *p = &save->ranks->blob;

	ckpt_error_clear(&save->ranks->why);
	p->core = save->core;
	p->stop = stop;
	p->deadline_ns = deadline_ns(save);
	p->err = &save->ranks->why;
	p->waiter = &save->task;
	p->bytes = &save->manifest;
	ckpt_key_manifest(p->key, save->core->lineage->generation, save->step);
}

static void prepare_outcome(struct ckpt_save *save)
{
	ckpt_error_clear(&save->ranks->why);
	ckpt_save_prepare_talk(
		save, &save->task, &save->ranks->never, deadline_ns(save), &save->ranks->why);
	ckpt_key_outcome(
		save->ranks->call.items[0].key, save->core->lineage->generation, save->step);
}

/* The register is not empty: its contents are the outcome. */
static int read_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_TASK_BEGIN(task);
	prepare_outcome(save);
	ckpt_exchange_call_get(&save->ranks->call);
	CKPT_AWAIT(task, save->ranks->call.task.finished);
	if (save->ranks->call.task.result < 0)
		return undecided(task, save->ranks->call.task.result);
	return ckpt_save_take_outcome(task);
	CKPT_TASK_END(task);
}

int ckpt_save_undecided_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	return undecided(task, save->ranks->why.code ? save->ranks->why.code : -EIO);
}

static int encode_outcome(struct ckpt_save *save, const struct ckpt_verdict *verdict)
{
	struct ckpt_outcome outcome = save->ranks->outcome;

	outcome.verdict = *verdict;
	outcome.open = false;
	if (verdict->code == 0)
		(void)snprintf(outcome.verdict.reason, sizeof(outcome.verdict.reason), "%s",
			save->ranks->differ);
	ckpt_save_name_subject(save, &outcome.verdict);
	save->ranks->words.len = 0;
	int r = ckpt_outcome_encode(&outcome, &save->ranks->words);
	return r < 0 ? ckpt_fail(&save->ranks->why, r, "out of memory") : 0;
}

/* Rank 0. The manifest is complete: it is sent to all, then the register is written. */
int ckpt_save_commit_nodes_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_save_commit *x = save->ranks;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_saver_note_told(save->core->saver, save->core->lineage->generation, save->step);
	save->core->saver->told[save->core->saver->told_count - 1].blob = save->manifest.len;
	prepare_blob(save, &save->code);
	ckpt_blob_send(&x->blob);
	CKPT_AWAIT(task, x->blob.task.finished);
	if (save->code)
		return give_up(task, save->code);
	if (x->blob.task.result < 0)
		return give_up(task,
			ckpt_fail_at(&save->work, -ETIMEDOUT, &(struct ckpt_where){.tier = "local"},
				"step %llu fails on all ranks: its manifest could not be sent: %s",
				(unsigned long long)save->step,
				reason_of(save, x->blob.task.result)));
	/* From here on the other ranks may have it. */
	save->publish_tried = true;
	save->publishing = true;
	prepare_outcome(save);
	r = encode_outcome(save, &(struct ckpt_verdict){0});
	if (r < 0)
		return undecided(task, r);
	ckpt_save_notify(save);
	CKPT_AWAIT(task, x->call.task.finished);
	if (x->call.task.result == -EEXIST)
		return ckpt_task_continue(task, read_body);
	if (x->call.task.result < 0)
		return undecided(task, x->call.task.result);
	x->decided = true;
	return ckpt_task_continue(task, install_body);
	CKPT_TASK_END(task);
}

/* Another rank that has heard nothing: writes an abort, unless there is an outcome. `verdict` has the reason. */
int ckpt_save_ask_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_save_commit *x = save->ranks;
	int r;

	CKPT_TASK_BEGIN(task);
	x->outcome.verdict.code = -ETIMEDOUT;
	x->asked = x->outcome.verdict;
	prepare_outcome(save);
	r = encode_outcome(save, &x->asked);
	if (r < 0)
		return undecided(task, r);
	ckpt_save_notify(save);
	CKPT_AWAIT(task, x->call.task.finished);
	if (x->call.task.result == -EEXIST)
		return ckpt_task_continue(task, read_body);
	if (x->call.task.result < 0)
		return undecided(task, x->call.task.result);
	return give_up(task, ckpt_save_aborted(save, CKPT_EABORTED, x->asked.reason));
	CKPT_TASK_END(task);
}

static void pause_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_save_commit, pause)->save->task);
}

static void pause(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;

	x->pause.fire = pause_fired;
	ckpt_core_timer_set(save->core, &x->pause, ckpt_env_now(save->core->parts.env) + PAUSE_NS);
}

static int fetch_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_save_commit *x = save->ranks;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_buf_free(&save->manifest);
	prepare_blob(save, &x->never);
	ckpt_blob_fetch(&x->blob);
	CKPT_AWAIT(task, x->blob.task.finished);
	r = x->blob.task.result;
	if (r < 0)
		return not_installed(task, r, reason_of(save, r));
	ckpt_error_clear(&save->work);
	ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
	r = ckpt_save_check_manifest(save, save->manifest.data, save->manifest.len);
	return r < 0 ? give_up(task, r) : ckpt_task_continue(task, install_body);
	CKPT_TASK_END(task);
}

/* Another rank: the step is committed. */
int ckpt_save_receive_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;

	CKPT_TASK_BEGIN(task);
	save->ranks->look_ns =
		ckpt_min_u64(deadline_ns(save), ckpt_env_now(core->parts.env) + PATIENCE_NS);
	while (!ckpt_core_owns_store(core) &&
		ckpt_env_now(core->parts.env) < save->ranks->look_ns && !core->closing) {
		ckpt_name_manifest(save->path, core->lineage->generation, save->step);
		save->op.err = NULL;
		ckpt_store_get(core->store, &save->op, save->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, save->op.done);
		ckpt_free(save->op.data);
		save->op.data = NULL;
		if (save->op.result == 0)
			return ckpt_task_continue(task, ckpt_save_resolve_body);
		pause(save);
		CKPT_AWAIT(task, !save->ranks->pause.set);
	}
	return ckpt_task_continue(task, fetch_body);
	CKPT_TASK_END(task);
}

/* Writes the manifest into this node's store; another rank may have done it. */
static int install_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_core *core = save->core;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_error_clear(&save->work);
	save->op.err = &save->work;
	ckpt_store_list(core->store, &save->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, save->op.done);
	r = save->op.result;
	if (r < 0)
		return not_installed(task, r, save->work.message);
	r = ckpt_save_check_fence(save);
	if (r < 0)
		return give_up(task, r);
	ckpt_name_manifest(save->path, core->lineage->generation, save->step);
	ckpt_store_publish(
		core->store, &save->op, save->path, save->manifest.data, save->manifest.len, NULL);
	CKPT_AWAIT(task, save->op.done);
	if (save->op.result == -EEXIST)
		return ckpt_task_continue(task, ckpt_save_resolve_body);
	if (save->op.result < 0)
		return not_installed(task, save->op.result,
			save->work.code ? save->work.message : ckpt_code_text(save->op.result));
	save->publishing = false;
	save->committed = true;
	return ckpt_task_continue(task, ckpt_save_end_body);
	CKPT_TASK_END(task);
}
