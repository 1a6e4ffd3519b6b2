/* SPDX-License-Identifier: Apache-2.0 */
/* The garbage collector: one deletion after another, with lower priority than all other work. */
#include "engine/gc/gc.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/delete_step.h"
#include "engine/gc/seen_tombstones.h"
#include "engine/gc/sweep.h"
#include "engine/lineage/lineage.h"
#include "exchange/node_messages.h"

struct ckpt_gc {
	struct ckpt_core *core;
	struct ckpt_task task;
	struct ckpt_deletion deletion;
	struct ckpt_gc_sweep gc_sweep;
	struct ckpt_error error;
	unsigned want;
	bool stop;
	bool tidy; /* this round deletes only records of aborted steps */
	/* Retention: steps up to this one were tried in this round. */
	uint64_t tried_generation;
	uint64_t tried_step;
};

static struct ckpt_gc *gc_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_gc, task);
}

/*
 * An undecided step is settled only if at most this many commits may have followed it. A node whose store could not
 * take a manifest has such a step, while other nodes hold it as committed. They are asked when the stores are opened,
 * and report only their newest steps. Half of these, because no two stores need to have the same steps.
 */
static size_t reach(const struct ckpt_core *core)
{
	return core->config.node_store && core->config.world > 1 ? CKPT_NODE_STEPS / 2 : SIZE_MAX;
}

/* The next step of a dead generation that is undecided; false: none. */
static bool next_unsettled(struct ckpt_gc *k)
{
	struct ckpt_scan *scan = &k->core->lineage->scan;
	size_t newer = 0;

	for (size_t i = 0; i < scan->step_count && newer < reach(k->core); i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		newer += s->state == CKPT_STEP_COMMITTED;
		if (s->generation >= k->core->lineage->generation || s->state != CKPT_STEP_PENDING)
			continue;
		k->deletion.generation = s->generation;
		k->deletion.step = s->step;
		return true;
	}
	return false;
}

/* The oldest expired step that was not tried in this round; false: there is none. */
static bool next_expired(struct ckpt_gc *k)
{
	struct ckpt_core *core = k->core;
	const struct ckpt_retention keep = {.keep_last = k->tidy ? 0 : core->config.keep_last,
		.keep_every = core->config.keep_every,
		.core = core,
		.pins = core->pins,
		.pin_count = core->pin_count};

	ckpt_lineage_mark_rolled_back(&core->lineage->scan);
	ckpt_scan_mark_needed(&core->lineage->scan);
	const struct ckpt_scan_step *s = ckpt_retention_next(
		&core->lineage->scan, &keep, k->tried_generation, k->tried_step);
	if (!s)
		return false;
	k->deletion.generation = s->generation;
	k->deletion.step = s->step;
	return true;
}

static void start(struct ckpt_gc *k, bool settle)
{
	struct ckpt_deletion *r = &k->deletion;

	ckpt_error_clear(&k->error);
	*r = (struct ckpt_deletion){.core = k->core,
		.waiter = &k->task,
		.err = &k->error,
		.generation = r->generation,
		.step = r->step,
		.settle = settle};
	ckpt_deletion_start(r);
}

static void note_settled(struct ckpt_gc *k)
{
	struct ckpt_core *core = k->core;

	if (k->deletion.result < 0)
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"cannot settle step %llu of generation %llu in %s: %s",
			(unsigned long long)k->deletion.step,
			(unsigned long long)k->deletion.generation, core->parts.label,
			k->error.code ? k->error.message : ckpt_code_text(k->deletion.result));
	else
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"settled step %llu of generation %llu in %s: it was never committed",
			(unsigned long long)k->deletion.step,
			(unsigned long long)k->deletion.generation, core->parts.label);
	/* Each step is tried once. If it fails, the next generation tries again. */
	ckpt_scan_set_state(
		&core->lineage->scan, k->deletion.generation, k->deletion.step, CKPT_STEP_ABORTED);
}

static void note_expired(struct ckpt_gc *k)
{
	struct ckpt_core *core = k->core;
	int r = k->deletion.result;

	k->tried_generation = k->deletion.generation;
	k->tried_step = k->deletion.step;
	if (r == 0) {
		const struct ckpt_scan_step *s = ckpt_scan_find(
			&core->lineage->scan, k->deletion.generation, k->deletion.step);
		core->stats.steps_removed += s && s->state != CKPT_STEP_ABORTED;
		/* What it needed is older, and may expire now. */
		if (s && s->base_count > 0) {
			k->tried_generation = 0;
			k->tried_step = 0;
		}
		ckpt_scan_drop(&core->lineage->scan, k->deletion.generation, k->deletion.step);
		ckpt_log(core->parts.log, CKPT_LOG_DEBUG, "deleted step %llu of %s",
			(unsigned long long)k->deletion.step, core->parts.label);
		return;
	}
	ckpt_log(core->parts.log, r == -EBUSY ? CKPT_LOG_DEBUG : CKPT_LOG_WARN,
		"retention keeps step %llu of %s for now: %s", (unsigned long long)k->deletion.step,
		core->parts.label, k->error.code ? k->error.message : ckpt_code_text(r));
}

static int gc_body(struct ckpt_task *task)
{
	struct ckpt_gc *k = gc_of(task);
	struct ckpt_core *core = k->core;

	CKPT_TASK_BEGIN(task);
	while (k->want && !k->stop && !core->lineage->fenced) {
		if (k->want & CKPT_GC_SETTLE) {
			k->want &= ~CKPT_GC_SETTLE;
			while (!k->stop && !core->lineage->fenced && next_unsettled(k)) {
				start(k, true);
				CKPT_AWAIT(task, k->deletion.finished);
				note_settled(k);
			}
		} else if (k->want & CKPT_GC_SWEEP) {
			k->want &= ~CKPT_GC_SWEEP;
			k->gc_sweep = (struct ckpt_gc_sweep){
				.core = core, .waiter = task, .stop = &k->stop};
			ckpt_gc_sweep_start(&k->gc_sweep);
			CKPT_AWAIT(task, k->gc_sweep.task.finished);
		} else {
			k->tidy = !(k->want & CKPT_GC_RETAIN);
			k->want &= ~(CKPT_GC_RETAIN | CKPT_GC_TIDY);
			k->tried_generation = 0;
			k->tried_step = 0;
			while (!k->stop && !core->lineage->fenced && next_expired(k)) {
				start(k, false);
				CKPT_AWAIT(task, k->deletion.finished);
				note_expired(k);
			}
		}
	}
	CKPT_TASK_END(task);
}

static void gc_done(struct ckpt_task *task)
{
	struct ckpt_gc *k = gc_of(task);

	k->core->gc = NULL;
	ckpt_task_wake(k->core->closer);
	ckpt_free(k);
}

void ckpt_gc_ask(struct ckpt_core *core, unsigned what)
{
	CKPT_ASSERT(core->lineage->generation > 0);
	/* Only the rank that owns the store collects. */
	if (core->closing || core->lineage->fenced || !ckpt_core_owns_store(core))
		return;
	if (core->gc) {
		core->gc->want |= what;
		return;
	}
	struct ckpt_gc *k = ckpt_alloc(sizeof(*k));
	if (!k) {
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"out of memory: the garbage collector deletes nothing in this round");
		return;
	}
	k->core = core;
	k->want = what;
	k->error.size = sizeof(k->error);
	core->gc = k;
	ckpt_task_start(&k->task, &core->sched, gc_body, gc_done);
}

void ckpt_gc_stop(struct ckpt_core *core)
{
	if (core->gc)
		core->gc->stop = true;
}

int ckpt_gc_open(struct ckpt_core *core)
{
	core->seen_tombstones = ckpt_alloc(sizeof(*core->seen_tombstones));
	return core->seen_tombstones ? 0 : -ENOMEM;
}

void ckpt_gc_close(struct ckpt_core *core)
{
	CKPT_ASSERT(!core->gc);
	if (core->seen_tombstones)
		ckpt_seen_tombstones_clear(core->seen_tombstones);
	ckpt_free(core->seen_tombstones);
	core->seen_tombstones = NULL;
	ckpt_free(core->pins);
	core->pins = NULL;
	core->pin_count = 0;
}
