/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore on the core's thread, from its opening until the core releases it. Its outcome is reported as soon as
 * nothing can write to a target any more, so a cancel does not wait for a disk that does not respond. Memory is freed
 * only when all operations have ended.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"

static struct ckpt_restore *restore_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_restore, task);
}

/* A post has arrived: when none is on its way, the core may release the restore. */
static void arrive(struct ckpt_restore *r)
{
	pthread_mutex_lock(&r->lock);
	r->on_way--;
	pthread_mutex_unlock(&r->lock);
	ckpt_task_wake(&r->task);
}

/* True when no more posts can come. */
static bool close_posts(struct ckpt_restore *r)
{
	pthread_mutex_lock(&r->lock);
	r->gone = r->on_way == 0;
	bool gone = r->gone;
	pthread_mutex_unlock(&r->lock);
	return gone;
}

static void halt(struct ckpt_restore *r, int code)
{
	if (!r->stop)
		r->stop = code;
	ckpt_shard_load_stop(&r->load, r->stop);
	ckpt_task_wake(&r->pick.task);
	ckpt_task_wake(&r->fetch.task);
	ckpt_task_wake(&r->step_copy.look.task);
	ckpt_shard_copy_wake(&r->step_copy.copy);
	if (r->recode)
		ckpt_recode_wake(r->recode);
	ckpt_task_wake(&r->sink_task);
	if (r->ranks)
		ckpt_task_wake(&r->ranks->call.task);
	ckpt_task_wake(&r->trip);
	ckpt_task_wake(&r->task);
	ckpt_core_give_up(r->core);
	if (r->repairer)
		ckpt_repairer_wake(r->repairer);
}

/* The user cancels the restore. That does not stop a repair for all ranks. */
static void give_up(struct ckpt_restore *r, int code)
{
	if (!r->repair_stop)
		r->repair_stop = code;
	halt(r, code);
}

void ckpt_restore_word_stop(const struct ckpt_restore *restore, struct ckpt_error *err)
{
	/* The request was cancelled, but the server may still carry it out; the record names the step. */
	bool tried = restore->step_copy.publish_tried;
	const char *known =
		tried ? ", while its manifest was on its way: the step may be there" : "";
	char manifest[CKPT_PATH_MAX] = "";
	const struct ckpt_where where = {.file = manifest};

	if (tried)
		ckpt_name_manifest(
			manifest, restore->pick.chosen.generation, restore->pick.chosen.step);
	if (restore->stop == CKPT_ECLOSED)
		(void)ckpt_fail_at(err, CKPT_ECLOSED, &where,
			"the engine of %s was closed before the end%s", restore->core->parts.label,
			known);
	else
		(void)ckpt_fail_at(
			err, restore->stop, &where, "it was cancelled before the end%s", known);
}

/* A rank may hear that all turn back before it knows from which step. */
static void name_step(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome =
		r->ranks && r->ranks->taken ? ckpt_restore_sync_outcome(r) : NULL;

	if (r->pick.chosen.generation)
		r->error.step = (int64_t)r->pick.chosen.step;
	else if (outcome && outcome->generation)
		r->error.step = (int64_t)outcome->step;
}

/* The outcome is known: reports it, once. */
static void settle(struct ckpt_restore *r)
{
	if (r->ended)
		return;
	r->ended = true;
	if (r->result < 0) {
		if (r->result == r->stop && !(r->ranks && r->ranks->taken))
			ckpt_restore_word_stop(r, &r->error);
		else if (r->why.code)
			r->error = r->why;
		else
			(void)ckpt_fail(&r->error, r->result, "cannot read %s: %s",
				r->core->parts.label, ckpt_code_text(r->result));
		name_step(r);
	}
	ckpt_findings_sort(&r->findings);
	ckpt_core_answer(r->core, &r->latch, CKPT_DONE_END);
}

/* What is damaged for one rank is damaged for all, and rank 0 selects the step. */
bool ckpt_restore_is_damaged_here(const struct ckpt_restore *restore)
{
	const struct ckpt_restore *r = restore;
	const struct ckpt_restore_record *outcome;

	if (!r->ranks)
		return !r->stop && ckpt_code_is_damage(r->result);
	outcome = ckpt_restore_sync_outcome(r);
	return ckpt_core_owns_store(r->core) && ckpt_code_is_damage(outcome->verdict.code) &&
	       outcome->generation == r->pick.chosen.generation &&
	       outcome->step == r->pick.chosen.step;
}

/* Whether this engine acts on damage of this step. */
bool ckpt_restore_is_mine(const struct ckpt_restore *restore)
{
	const struct ckpt_restore *r = restore;

	return r->sink == CKPT_SINK_MEMORY && !r->core->config.read_only &&
	       !r->core->lineage->fenced && r->pick.manifest.ranks &&
	       r->pick.chosen.state == CKPT_STEP_COMMITTED && !r->presence.gone;
}

static bool must_quarantine(const struct ckpt_restore *r)
{
	return ckpt_restore_is_mine(r) && ckpt_restore_is_damaged_here(r);
}

static bool may_find_again(const struct ckpt_restore *r, int code)
{
	const struct ckpt_core *core = r->core;

	return (ckpt_core_owns_store(core) && ckpt_code_is_damage(code)) ||
	       (core->config.rank == 0 && core->config.lost_nodes && code == CKPT_EOTHERNODE);
}

/* The file of an earlier step, with which this one is decoded. Once that step is repaired, this one is good. */
static bool is_in_base(const struct ckpt_restore *r)
{
	char dir[CKPT_PATH_MAX];

	ckpt_name_step(dir, r->pick.chosen.generation, r->pick.chosen.step);
	return r->pick.manifest.base_count > 0 && r->why.file[0] &&
	       strncmp(r->why.file, dir, strlen(dir)) != 0;
}

static void start_quarantine(struct ckpt_restore *r)
{
	r->quarantiner = (struct ckpt_quarantiner){.core = r->core,
		.step = r->pick.chosen,
		.why = &r->why,
		.here = r->unsure || r->result == CKPT_EOTHERNODE || is_in_base(r),
		.waiter = &r->task};
	ckpt_quarantine_start(&r->quarantiner);
}

/* All ranks have opened it, but this one has turned back meanwhile. */
static bool turned_back(const struct ckpt_restore *r)
{
	return r->ranks->part == CKPT_RESTORE_OPENING && ckpt_restore_sync_passed(r);
}

static int go_on(struct ckpt_task *task)
{
	struct ckpt_restore *r = restore_of(task);

	CKPT_TASK_BEGIN(task);
	if (r->ranks)
		ckpt_restore_sync_begin(r);
	for (;;) {
		r->trips++;
		ckpt_restore_attempt_start(r);
		CKPT_AWAIT(task, r->trip.finished);
		if (!ckpt_restore_attempt_again(r))
			break;
		if (r->pick.lock.fd >= 0) {
			ckpt_store_op_init(&r->op, task, NULL);
			ckpt_store_shut(r->core->store, &r->op, &r->pick.lock);
			CKPT_AWAIT(task, r->op.done);
		}
		ckpt_restore_attempt_reset(r);
	}
	if (r->ranks) {
		ckpt_restore_sync_vote(r);
		CKPT_AWAIT(task, ckpt_restore_sync_outcome(r));
		if (turned_back(r)) {
			ckpt_restore_sync_read(r);
			ckpt_restore_sync_vote(r);
			CKPT_AWAIT(task, ckpt_restore_sync_outcome(r));
		}
		ckpt_restore_sync_take(r);
	}
	/* The finding of another rank may be about a step that has been deleted. */
	if (r->ranks && must_quarantine(r)) {
		ckpt_restore_look(r, task);
		CKPT_AWAIT(task, r->presence.task.finished);
	}
	ckpt_restore_repair_start(r);
	CKPT_AWAIT(task, !ckpt_task_active(&r->repair));
	if (r->for_all) {
		ckpt_restore_repair_vote(r);
		CKPT_AWAIT(task, ckpt_restore_sync_repaired(r));
	}
	ckpt_restore_repair_take(r);
	if (ckpt_restore_is_lost(r)) {
		ckpt_restore_lost_start(r);
		CKPT_AWAIT(task, !ckpt_task_active(&r->repair));
	}
	/* Nothing is decided while the step is being repaired, or if that was cancelled. */
	if ((must_quarantine(r) && !r->repaired && !ckpt_restore_repair_is_open(r)) ||
		r->passes_over) {
		start_quarantine(r);
		CKPT_AWAIT(task, r->quarantiner.task.finished);
	}
	settle(r);
	CKPT_AWAIT(task, r->released);
	if (r->pick.lock.fd >= 0) {
		ckpt_store_op_init(&r->op, task, NULL);
		ckpt_store_shut(r->core->store, &r->op, &r->pick.lock);
		CKPT_AWAIT(task, r->op.done);
	}
	CKPT_AWAIT(task, !r->ranks || ckpt_restore_sync_over(r));
	CKPT_AWAIT(task, close_posts(r));
	CKPT_TASK_END(task);
}

/* Applies the outcome of all ranks: ends the restore here, or lets it continue. */
static void look(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome = r->ranks ? ckpt_restore_sync_outcome(r) : NULL;

	if (!outcome)
		return;
	if (outcome->verdict.code == 0)
		ckpt_task_wake(&r->sink_task);
	else if (!r->stop)
		halt(r, outcome->verdict.code);
}

/* It has been stopped, and nothing in flight can change its outcome. */
static bool may_settle(const struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome;

	/* If a manifest may have been published, the outcome depends on that. A recode changes files until it ends. */
	if (!r->stop || r->ended || ckpt_shard_load_copies(&r->load) > 0 ||
		r->step_copy.publish_tried || (r->recode && ckpt_task_active(&r->recode->task)))
		return false;
	if (!r->ranks || r->released)
		return true;
	outcome = ckpt_restore_sync_outcome(r);
	/* A rank that has reported success must not report a failure on its own. */
	if (!outcome)
		return !r->ranks->votes[CKPT_RESTORE_READING].round.passed;
	/* The next restore of the latest must not select the same step. */
	return outcome->verdict.code < 0 && !may_find_again(r, outcome->verdict.code);
}

static int restore_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = restore_of(task);

	look(r);
	if (may_settle(r)) {
		r->result = r->stop;
		if (r->ranks && !r->released && ckpt_restore_sync_outcome(r))
			ckpt_restore_sync_take(r);
		settle(r);
	}
	return go_on(task);
}

static void restore_done(struct ckpt_task *task)
{
	struct ckpt_restore *r = restore_of(task);
	struct ckpt_core *core = r->core;
	struct ckpt_restore **link = &core->restores;

	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	if (r->dest.bucket && core->parts.leave)
		core->parts.leave(core->parts.user, r->dest.bucket);
	ckpt_task_wake(core->closer);
	ckpt_core_answer(core, &r->latch, CKPT_DONE_GONE);
	ckpt_restore_unref(r);
}

void ckpt_restore_fsm_open(struct ckpt_node *node)
{
	struct ckpt_restore *r = CKPT_CONTAINER(node, struct ckpt_restore, open_node);

	r->next = r->core->restores;
	r->core->restores = r;
	if (r->core->closing) {
		r->stop = CKPT_ECLOSED;
		r->repair_stop = CKPT_ECLOSED;
		r->released = true;
	}
	ckpt_task_start(&r->task, &r->core->sched, restore_body, restore_done);
	arrive(r);
}

void ckpt_restore_fsm_start(struct ckpt_node *node)
{
	struct ckpt_restore *r = CKPT_CONTAINER(node, struct ckpt_restore, start_node);

	r->started = true;
	ckpt_task_wake(&r->sink_task);
	arrive(r);
}

void ckpt_restore_fsm_cancel(struct ckpt_node *node)
{
	struct ckpt_restore *r = CKPT_CONTAINER(node, struct ckpt_restore, cancel_node);

	give_up(r, -ECANCELED);
	arrive(r);
}

void ckpt_restore_fsm_release(struct ckpt_node *node)
{
	struct ckpt_restore *r = CKPT_CONTAINER(node, struct ckpt_restore, release_node);

	r->released = true;
	give_up(r, -ECANCELED);
	arrive(r);
}

void ckpt_restore_stop_all(struct ckpt_core *core)
{
	for (struct ckpt_restore *r = core->restores; r; r = r->next) {
		r->released = true;
		give_up(r, CKPT_ECLOSED);
	}
}
