/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore that has found damage, and a remote store to mend it from. One that is alone mends the step itself. Of
 * several ranks that share a store the one that keeps it does. Where every node has a store of its own, the node leader of
 * each mends what is in it, and then all ranks vote: the step is whole if it is whole on every node.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/upload_queue.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"

/* Once for each step: what is damaged again right away is not to be trusted. */
static bool was_repaired(const struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	const struct ckpt_restorer *restorer = core->restorer;

	return restorer->repaired_generation == generation && restorer->repaired_step == step;
}

static void note_repaired(struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	core->restorer->repaired_generation = generation;
	core->restorer->repaired_step = step;
}

/* All ranks come to the same answer: it depends on the outcome that they have in common. */
static bool is_for_all(const struct ckpt_restore *r)
{
	const struct ckpt_core *core = r->core;

	if (!r->ranks || !core->config.node_store || !core->upload_queue)
		return false;
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_outcome(r);
	return ckpt_code_is_damage(outcome->verdict.code) && outcome->generation > 0 &&
	       !was_repaired(core, outcome->generation, outcome->step);
}

/* What the disk cannot read is as good as damaged for this, though not for a note. */
static bool is_mendable(const struct ckpt_restore *r)
{
	if (r->ranks)
		return ckpt_restore_is_damaged_here(r);
	return !r->stop && (ckpt_code_is_damage(r->result) || ckpt_store_is_unreadable(r->result));
}

static bool can_repair(const struct ckpt_restore *r)
{
	const struct ckpt_core *core = r->core;

	if (!ckpt_restore_is_mine(r) || !is_mendable(r) || !core->upload_queue ||
		core->restorer->repairing || core->restorer->recoding)
		return false;
	if (core->config.node_store && r->ranks)
		return r->for_all;
	return !was_repaired(core, r->pick.chosen.generation, r->pick.chosen.step);
}

static bool gave_up(const struct ckpt_restore *r)
{
	return r->repair_stop && r->repair_stop != -ETIMEDOUT;
}

static void limit_fired(struct ckpt_timer *timer)
{
	struct ckpt_restore *r = CKPT_CONTAINER(timer, struct ckpt_restore, repair_limit);

	if (!r->repair_stop)
		r->repair_stop = -ETIMEDOUT;
	ckpt_task_wake(&r->pick.task);
	if (r->repairer)
		ckpt_repairer_wake(r->repairer);
	ckpt_core_give_up(r->core);
}

void ckpt_restore_repair_limit(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;
	struct ckpt_core *core = r->core;

	r->repair_limit.fire = limit_fired;
	ckpt_core_timer_set(core, &r->repair_limit,
		ckpt_env_now(core->parts.env) +
			(uint64_t)core->config.save_timeout_ms * 1000000 / 2);
}

/* Without memory it does not come to be. */
static void start_repairer(struct ckpt_restore *r)
{
	struct ckpt_core *core = r->core;

	r->repairer = ckpt_alloc(sizeof(*r->repairer));
	if (!r->repairer)
		return;
	r->repairer->core = core;
	r->repairer->source = core->upload_queue->dest;
	r->repairer->pick = &r->pick;
	r->repairer->stop = &r->repair_stop;
	r->repairer->waiter = &r->repair;
	core->restorer->repairing = true;
	ckpt_repairer_start(r->repairer);
}

static void end_repairer(struct ckpt_restore *r)
{
	r->core->restorer->repairing = false;
	r->repair_code = r->repairer ? r->repairer->task.result : -ENOMEM;
}

/* A node leader that heard of the damage before it had read the manifest. */
static bool lacks_manifest(const struct ckpt_restore *r)
{
	return r->for_all && ckpt_core_owns_store(r->core) && !r->pick.manifest.ranks;
}

static void start_pick(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_outcome(r);

	ckpt_select_clear(&r->pick);
	r->pick = (struct ckpt_select){.core = r->core,
		.wanted = r->wanted,
		.stop = &r->repair_stop,
		.err = &r->repair_why,
		.waiter = &r->repair,
		.named = outcome->attempt,
		.chosen = {.generation = outcome->generation,
			.step = outcome->step,
			.state = CKPT_STEP_COMMITTED}};
	ckpt_select_start(&r->pick);
}

static int repair_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, repair);

	CKPT_TASK_BEGIN(task);
	if (lacks_manifest(r)) {
		if (r->pick.lock.fd >= 0) {
			ckpt_store_op_init(&r->op, task, NULL);
			ckpt_store_shut(r->core->store, &r->op, &r->pick.lock);
			CKPT_AWAIT(task, r->op.done);
		}
		start_pick(r);
		CKPT_AWAIT(task, r->pick.task.finished);
		r->repair_code = r->pick.task.result;
		if (r->repair_code < 0)
			return 0;
	}
	if (can_repair(r) && !r->repair_stop) {
		start_repairer(r);
		CKPT_AWAIT(task, !r->repairer || r->repairer->task.finished);
		end_repairer(r);
	} else {
		r->repair_code = r->repair_stop ? r->repair_stop : -EBUSY;
	}
	CKPT_TASK_END(task);
}

static void repair_done(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, repair);

	ckpt_core_timer_clear(r->core, &r->repair_limit);
	ckpt_task_wake(&r->task);
}

/* Why it is not whole again here. */
static const char *why_not(const struct ckpt_restore *r)
{
	if (r->repair_stop == -ETIMEDOUT)
		return "it takes longer than the other ranks wait";
	if (r->repairer && r->repairer->err.code)
		return r->repairer->err.message;
	if (r->repair_why.code)
		return r->repair_why.message;
	if (r->presence.gone)
		return "it was removed meanwhile";
	if (r->core->lineage->fenced)
		return "another start of the job has taken over the store";
	return ckpt_code_text(r->repair_code);
}

/* How it has ended in the store of this rank's node. Of damage that stays the code is one of damage, of the rest none. */
static struct ckpt_verdict verdict_of(const struct ckpt_restore *r)
{
	struct ckpt_verdict verdict = {.code = r->repair_code};

	if (verdict.code == 0)
		return verdict;
	if (r->repairer && r->repairer->lost)
		verdict.code = CKPT_EINTEGRITY;
	else if (ckpt_code_is_damage(verdict.code) || verdict.code == CKPT_ECLOSED)
		verdict.code = -EIO;
	(void)snprintf(verdict.reason, sizeof(verdict.reason), "%.250s", why_not(r));
	return verdict;
}

void ckpt_restore_repair_start(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;
	struct ckpt_core *core = r->core;

	r->for_all = is_for_all(r);
	if (r->for_all)
		ckpt_restore_sync_repair(r);
	r->mends = r->for_all ? ckpt_core_owns_store(core) : can_repair(r) && !r->repair_stop;
	if (!r->mends)
		return;
	ckpt_error_clear(&r->repair_why);
	if (r->ranks)
		ckpt_restore_repair_limit(r);
	ckpt_task_start(&r->repair, &core->sched, repair_body, repair_done);
}

void ckpt_restore_repair_vote(struct ckpt_restore *restore)
{
	struct ckpt_verdict verdict = verdict_of(restore);

	CKPT_ASSERT(restore->for_all);
	ckpt_restore_sync_vote_repaired(restore, &verdict);
}

static void say_not_repaired(const struct ckpt_restore *r, const char *why)
{
	const struct ckpt_core *core = r->core;

	ckpt_log(core->parts.log, CKPT_LOG_ERROR,
		"step %llu of %s is damaged, and %s be repaired from %s%s: %.700s",
		(unsigned long long)(r->for_all ? ckpt_restore_sync_outcome(r)->step
						: r->pick.chosen.step),
		core->parts.label, r->unsure ? "could not" : "cannot",
		core->upload_queue->dest->label, r->unsure ? " this time" : "", why);
}

/* In words. Of a step that was good in this node's store there is nothing to tell but that it is good everywhere now. */
static void tell_repaired(struct ckpt_restore *r)
{
	char found[512];

	if (r->repairer && (r->repairer->repaired > 0 || !r->for_all)) {
		ckpt_repairer_tell(r->repairer, &r->why);
		return;
	}
	(void)snprintf(found, sizeof(found), "%.500s", r->why.message);
	(void)snprintf(r->why.message, sizeof(r->why.message),
		"%s; the step is whole again on all nodes, with what was bad from %.200s: restore "
		"it again",
		found, r->core->upload_queue->dest->label);
	r->why.repaired = 1;
}

/* All ranks have voted: what one node lacks nobody can restore. */
static void take_votes(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_repaired(r);
	char why[400];

	r->repaired = outcome->verdict.code == 0;
	if (r->repaired) {
		note_repaired(r->core, outcome->generation, outcome->step);
		tell_repaired(r);
		return;
	}
	/* Whoever asks again may find that it can be mended now. */
	r->unsure = !ckpt_code_is_damage(outcome->verdict.code);
	(void)snprintf(why, sizeof(why), "rank %u: %s", outcome->rank, outcome->verdict.reason);
	if (ckpt_core_owns_store(r->core))
		say_not_repaired(r, why);
}

void ckpt_restore_repair_take(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;

	if (r->for_all) {
		take_votes(r);
		return;
	}
	if (!r->mends)
		return;
	r->repaired = r->repair_code == 0;
	/* It was given up: whether the step can be mended is for the next one to find out. */
	if (gave_up(r) && !r->repaired)
		return;
	if (!r->repaired) {
		r->unsure = !r->repairer || !r->repairer->lost;
		say_not_repaired(r, why_not(r));
		return;
	}
	note_repaired(r->core, r->pick.chosen.generation, r->pick.chosen.step);
	tell_repaired(r);
}

bool ckpt_restore_repair_is_open(const struct ckpt_restore *restore)
{
	return restore->core->restorer->repairing ||
	       (gave_up(restore) && (restore->for_all || can_repair(restore)));
}
