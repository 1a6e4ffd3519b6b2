/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper: one removal after the other, behind everything else. */
#include "engine/keeper.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/removal.h"
#include "engine/sweeper.h"
#include "exchange/node_record.h"

struct ckpt_keeper {
	struct ckpt_core *core;
	struct ckpt_task task;
	struct ckpt_removal removal;
	struct ckpt_sweeper sweeper;
	struct ckpt_error error;
	unsigned want;
	bool stop;
	bool tidy; /* this round is for records of aborted steps only */
	/* Retention: steps up to this one were tried in this round. */
	uint64_t tried_generation;
	uint64_t tried_step;
};

static struct ckpt_keeper *keeper_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_keeper, task);
}

/*
 * How many commits may have come since an undecided step that is to be settled. A node whose store could not
 * take a manifest has such a step, and others hold it as committed: they are asked when the stores are opened,
 * and tell of their newest ones only. Half of these, because no two stores need have the same.
 */
static size_t reach(const struct ckpt_core *core)
{
	return core->config.node_store && core->config.world > 1 ? CKPT_NODE_STEPS / 2 : SIZE_MAX;
}

/* The next step of a dead generation that is undecided; false: none. */
static bool next_unsettled(struct ckpt_keeper *k)
{
	struct ckpt_scan *scan = &k->core->scan;
	size_t newer = 0;

	for (size_t i = 0; i < scan->step_count && newer < reach(k->core); i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		newer += s->state == CKPT_STEP_COMMITTED;
		if (s->generation >= k->core->generation || s->state != CKPT_STEP_PENDING)
			continue;
		k->removal.generation = s->generation;
		k->removal.step = s->step;
		return true;
	}
	return false;
}

/* The oldest step that retention lets go and that this round has not tried; false: none. */
static bool next_expired(struct ckpt_keeper *k)
{
	struct ckpt_core *core = k->core;
	const struct ckpt_retention keep = {.keep_last = k->tidy ? 0 : core->config.keep_last,
		.keep_every = core->config.keep_every,
		.core = core,
		.pins = core->pins,
		.pin_count = core->pin_count};

	ckpt_lineage_mark_rolled_back(&core->scan);
	const struct ckpt_scan_step *s =
		ckpt_retention_next(&core->scan, &keep, k->tried_generation, k->tried_step);
	if (!s)
		return false;
	k->removal.generation = s->generation;
	k->removal.step = s->step;
	return true;
}

static void start(struct ckpt_keeper *k, bool settle)
{
	struct ckpt_removal *r = &k->removal;

	ckpt_error_clear(&k->error);
	*r = (struct ckpt_removal){.core = k->core,
		.waiter = &k->task,
		.err = &k->error,
		.generation = r->generation,
		.step = r->step,
		.settle = settle};
	ckpt_removal_start(r);
}

static void note_settled(struct ckpt_keeper *k)
{
	struct ckpt_core *core = k->core;

	if (k->removal.result < 0)
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"cannot settle step %llu of generation %llu in %s: %s",
			(unsigned long long)k->removal.step,
			(unsigned long long)k->removal.generation, core->parts.label,
			k->error.code ? k->error.message : ckpt_code_text(k->removal.result));
	else
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"settled step %llu of generation %llu in %s: it was never committed",
			(unsigned long long)k->removal.step,
			(unsigned long long)k->removal.generation, core->parts.label);
	/* Tried once: what failed is left to the next generation. */
	ckpt_scan_set_state(&core->scan, k->removal.generation, k->removal.step, CKPT_STEP_ABORTED);
}

static void note_expired(struct ckpt_keeper *k)
{
	struct ckpt_core *core = k->core;
	int r = k->removal.result;

	k->tried_generation = k->removal.generation;
	k->tried_step = k->removal.step;
	if (r == 0) {
		const struct ckpt_scan_step *s =
			ckpt_scan_find(&core->scan, k->removal.generation, k->removal.step);
		core->stats.steps_removed += s && s->state != CKPT_STEP_ABORTED;
		ckpt_scan_drop(&core->scan, k->removal.generation, k->removal.step);
		ckpt_log(core->parts.log, CKPT_LOG_DEBUG, "removed step %llu of %s",
			(unsigned long long)k->removal.step, core->parts.label);
		return;
	}
	ckpt_log(core->parts.log, r == -EBUSY ? CKPT_LOG_DEBUG : CKPT_LOG_WARN,
		"retention keeps step %llu of %s for now: %s", (unsigned long long)k->removal.step,
		core->parts.label, k->error.code ? k->error.message : ckpt_code_text(r));
}

static int keeper_body(struct ckpt_task *task)
{
	struct ckpt_keeper *k = keeper_of(task);
	struct ckpt_core *core = k->core;

	CKPT_TASK_BEGIN(task);
	while (k->want && !k->stop && !core->fenced) {
		if (k->want & CKPT_KEEPER_SETTLE) {
			k->want &= ~CKPT_KEEPER_SETTLE;
			while (!k->stop && !core->fenced && next_unsettled(k)) {
				start(k, true);
				CKPT_AWAIT(task, k->removal.finished);
				note_settled(k);
			}
		} else if (k->want & CKPT_KEEPER_SWEEP) {
			k->want &= ~CKPT_KEEPER_SWEEP;
			k->sweeper = (struct ckpt_sweeper){
				.core = core, .waiter = task, .stop = &k->stop};
			ckpt_sweeper_start(&k->sweeper);
			CKPT_AWAIT(task, k->sweeper.task.finished);
		} else {
			k->tidy = !(k->want & CKPT_KEEPER_RETAIN);
			k->want &= ~(CKPT_KEEPER_RETAIN | CKPT_KEEPER_TIDY);
			k->tried_generation = 0;
			k->tried_step = 0;
			while (!k->stop && !core->fenced && next_expired(k)) {
				start(k, false);
				CKPT_AWAIT(task, k->removal.finished);
				note_expired(k);
			}
		}
	}
	CKPT_TASK_END(task);
}

static void keeper_done(struct ckpt_task *task)
{
	struct ckpt_keeper *k = keeper_of(task);

	k->core->keeper = NULL;
	ckpt_task_wake(k->core->closer);
	ckpt_free(k);
}

void ckpt_keeper_ask(struct ckpt_core *core, unsigned what)
{
	CKPT_ASSERT(core->generation > 0);
	/* One rank of a job keeps the store. */
	if (core->closing || core->fenced || !ckpt_core_owns_store(core))
		return;
	if (core->keeper) {
		core->keeper->want |= what;
		return;
	}
	struct ckpt_keeper *k = ckpt_alloc(sizeof(*k));
	if (!k) {
		ckpt_log(core->parts.log, CKPT_LOG_WARN, "out of memory: nothing is removed now");
		return;
	}
	k->core = core;
	k->want = what;
	k->error.size = sizeof(k->error);
	core->keeper = k;
	ckpt_task_start(&k->task, &core->sched, keeper_body, keeper_done);
}

void ckpt_keeper_stop(struct ckpt_core *core)
{
	if (core->keeper)
		core->keeper->stop = true;
}
