/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore that has found damage, and a remote store to mend it from. One that is alone mends the step itself. Of
 * several ranks that share a store the one that keeps it does. Where every node has a store of its own, the keeper of
 * each mends what is in it, and then all ranks vote: the step is whole if it is whole on every node.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/restore_state.h"
#include "engine/uploader.h"

static bool is_damage(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT;
}

/* Once for each step: what is damaged again right away is not to be trusted. */
static bool was_repaired(const struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	return core->repaired_generation == generation && core->repaired_step == step;
}

/* All ranks come to the same answer: it depends on the outcome that they have in common. */
static bool is_for_all(const struct ckpt_restore *r)
{
	const struct ckpt_core *core = r->core;

	if (!r->ranks || !core->config.node_store || !core->uploader)
		return false;
	const struct ckpt_restore_record *outcome = ckpt_restore_ranks_outcome(r);
	return is_damage(outcome->verdict.code) && outcome->generation > 0 &&
	       !was_repaired(core, outcome->generation, outcome->step);
}

/* What the disk cannot read is as good as damaged for this, though not for a note. */
static bool is_mendable(const struct ckpt_restore *r)
{
	if (r->ranks)
		return ckpt_restore_is_damaged_here(r);
	return !r->stop && (is_damage(r->result) || ckpt_store_is_unreadable(r->result));
}

static bool can_mend(const struct ckpt_restore *r)
{
	const struct ckpt_core *core = r->core;

	if (!ckpt_restore_is_mine(r) || !is_mendable(r) || !core->uploader || core->mending)
		return false;
	if (core->config.node_store && r->ranks)
		return r->for_all;
	return !was_repaired(core, r->pick.chosen.generation, r->pick.chosen.step);
}

static bool gave_up(const struct ckpt_restore *r)
{
	return r->mend_stop && r->mend_stop != -ETIMEDOUT;
}

static void limit_fired(struct ckpt_timer *timer)
{
	struct ckpt_restore *r = CKPT_CONTAINER(timer, struct ckpt_restore, mend_limit);

	if (!r->mend_stop)
		r->mend_stop = -ETIMEDOUT;
	ckpt_task_wake(&r->pick.task);
	if (r->mender)
		ckpt_task_wake(&r->mender->fetch.task);
	ckpt_core_give_up(r->core);
}

void ckpt_restore_mend_limit(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;
	struct ckpt_core *core = r->core;

	r->mend_limit.fire = limit_fired;
	ckpt_core_timer_set(core, &r->mend_limit,
		ckpt_env_now(core->parts.env) +
			(uint64_t)core->config.save_timeout_ms * 1000000 / 2);
}

/* Without memory it does not come to be. */
static void start_mender(struct ckpt_restore *r)
{
	struct ckpt_core *core = r->core;

	r->mender = ckpt_alloc(sizeof(*r->mender));
	if (!r->mender)
		return;
	r->mender->core = core;
	r->mender->source = core->uploader->dest;
	r->mender->pick = &r->pick;
	r->mender->stop = &r->mend_stop;
	r->mender->waiter = &r->mend;
	core->mending = true;
	ckpt_mender_start(r->mender);
}

static void end_mender(struct ckpt_restore *r)
{
	r->core->mending = false;
	r->mend_code = r->mender ? r->mender->task.result : -ENOMEM;
}

/* A keeper that heard of the damage before it had read the manifest. */
static bool lacks_manifest(const struct ckpt_restore *r)
{
	return r->for_all && ckpt_core_owns_store(r->core) && !r->pick.manifest.ranks;
}

static void start_pick(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_ranks_outcome(r);

	ckpt_pick_clear(&r->pick);
	r->pick = (struct ckpt_pick){.core = r->core,
		.wanted = r->wanted,
		.stop = &r->mend_stop,
		.err = &r->mend_why,
		.waiter = &r->mend,
		.named = outcome->attempt,
		.chosen = {.generation = outcome->generation,
			.step = outcome->step,
			.state = CKPT_STEP_COMMITTED}};
	ckpt_pick_start(&r->pick);
}

static int mend_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, mend);

	CKPT_TASK_BEGIN(task);
	if (lacks_manifest(r)) {
		if (r->pick.lock.fd >= 0) {
			ckpt_store_op_init(&r->op, task, NULL);
			ckpt_store_shut(r->core->store, &r->op, &r->pick.lock);
			CKPT_AWAIT(task, r->op.done);
		}
		start_pick(r);
		CKPT_AWAIT(task, r->pick.task.finished);
		r->mend_code = r->pick.task.result;
		if (r->mend_code < 0)
			return 0;
	}
	if (can_mend(r) && !r->mend_stop) {
		start_mender(r);
		CKPT_AWAIT(task, !r->mender || r->mender->task.finished);
		end_mender(r);
	} else {
		r->mend_code = r->mend_stop ? r->mend_stop : -EBUSY;
	}
	CKPT_TASK_END(task);
}

static void mend_done(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, mend);

	ckpt_core_timer_clear(r->core, &r->mend_limit);
	ckpt_task_wake(&r->task);
}

/* Why it is not whole again here. */
static const char *why_not(const struct ckpt_restore *r)
{
	if (r->mend_stop == -ETIMEDOUT)
		return "it takes longer than the other ranks wait";
	if (r->mender && r->mender->err.code)
		return r->mender->err.message;
	if (r->mend_why.code)
		return r->mend_why.message;
	if (r->presence.gone)
		return "it was removed meanwhile";
	if (r->core->fenced)
		return "another start of the job has taken over the store";
	return ckpt_code_text(r->mend_code);
}

/* How it has ended in the store of this rank's node. Of damage that stays the code is one of damage, of the rest none. */
static struct ckpt_verdict verdict_of(const struct ckpt_restore *r)
{
	struct ckpt_verdict verdict = {.code = r->mend_code};

	if (verdict.code == 0)
		return verdict;
	if (r->mender && r->mender->lost)
		verdict.code = CKPT_EINTEGRITY;
	else if (is_damage(verdict.code) || verdict.code == CKPT_ECLOSED)
		verdict.code = -EIO;
	(void)snprintf(verdict.reason, sizeof(verdict.reason), "%.250s", why_not(r));
	return verdict;
}

void ckpt_restore_mend_start(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;
	struct ckpt_core *core = r->core;

	r->for_all = is_for_all(r);
	if (r->for_all)
		ckpt_restore_ranks_mend(r);
	r->mends = r->for_all ? ckpt_core_owns_store(core) : can_mend(r) && !r->mend_stop;
	if (!r->mends)
		return;
	ckpt_error_clear(&r->mend_why);
	if (r->ranks)
		ckpt_restore_mend_limit(r);
	ckpt_task_start(&r->mend, &core->sched, mend_body, mend_done);
}

void ckpt_restore_mend_vote(struct ckpt_restore *restore)
{
	struct ckpt_verdict verdict = verdict_of(restore);

	CKPT_ASSERT(restore->for_all);
	ckpt_restore_ranks_vote_mended(restore, &verdict);
}

static void say_not_repaired(const struct ckpt_restore *r, const char *why)
{
	const struct ckpt_core *core = r->core;

	ckpt_log(core->parts.log, CKPT_LOG_ERROR,
		"step %llu of %s is damaged, and %s be mended from %s%s: %.700s",
		(unsigned long long)(r->for_all ? ckpt_restore_ranks_outcome(r)->step
						: r->pick.chosen.step),
		core->parts.label, r->unsure ? "could not" : "cannot", core->uploader->dest->label,
		r->unsure ? " this time" : "", why);
}

/* In words. Of a step that was good in this node's store there is nothing to tell but that it is good everywhere now. */
static void tell_repaired(struct ckpt_restore *r)
{
	char found[512];

	if (r->mender && (r->mender->repaired > 0 || !r->for_all)) {
		ckpt_mender_tell(r->mender, &r->why);
		return;
	}
	(void)snprintf(found, sizeof(found), "%.500s", r->why.message);
	(void)snprintf(r->why.message, sizeof(r->why.message),
		"%s; the step is whole again on all nodes, with what was bad from %.200s: restore "
		"it again",
		found, r->core->uploader->dest->label);
	r->why.repaired = 1;
}

/* All ranks have voted: what one node lacks nobody can restore. */
static void take_votes(struct ckpt_restore *r)
{
	const struct ckpt_restore_record *outcome = ckpt_restore_ranks_mended(r);
	char why[400];

	r->repaired = outcome->verdict.code == 0;
	if (r->repaired) {
		r->core->repaired_generation = outcome->generation;
		r->core->repaired_step = outcome->step;
		tell_repaired(r);
		return;
	}
	/* Whoever asks again may find that it can be mended now. */
	r->unsure = !is_damage(outcome->verdict.code);
	(void)snprintf(why, sizeof(why), "rank %u: %s", outcome->rank, outcome->verdict.reason);
	if (ckpt_core_owns_store(r->core))
		say_not_repaired(r, why);
}

void ckpt_restore_mend_take(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;
	struct ckpt_core *core = r->core;

	if (r->for_all) {
		take_votes(r);
		return;
	}
	if (!r->mends)
		return;
	r->repaired = r->mend_code == 0;
	/* It was given up: whether the step can be mended is for the next one to find out. */
	if (gave_up(r) && !r->repaired)
		return;
	if (!r->repaired) {
		r->unsure = !r->mender || !r->mender->lost;
		say_not_repaired(r, why_not(r));
		return;
	}
	core->repaired_generation = r->pick.chosen.generation;
	core->repaired_step = r->pick.chosen.step;
	tell_repaired(r);
}

bool ckpt_restore_mend_is_open(const struct ckpt_restore *restore)
{
	return restore->core->mending ||
	       (gave_up(restore) && (restore->for_all || can_mend(restore)));
}
