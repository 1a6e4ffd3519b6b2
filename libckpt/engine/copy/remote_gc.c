/* SPDX-License-Identifier: Apache-2.0 */
/* Retention in the remote store. */
#include "engine/copy/remote_gc.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/record_writer.h"
#include "engine/copy/upload_entries.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"

#define SECOND_NS   UINT64_C(1000000000)
#define PAUSE_MAX_S 60 /* between tries */

static struct ckpt_remote_gc *remote_gc_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_remote_gc, task);
}

static uint64_t now(const struct ckpt_remote_gc *u)
{
	return ckpt_env_now(u->core->parts.env);
}

uint64_t ckpt_remote_gc_grace_ns(const struct ckpt_core *core)
{
	uint32_t seconds = core->config.remote_grace_s;

	return (seconds ? seconds : CKPT_REMOTE_GC_GRACE_S) * SECOND_NS;
}

uint64_t ckpt_remote_gc_others_grace_ns(const struct ckpt_core *core)
{
	return ckpt_max_u64(
		ckpt_remote_gc_grace_ns(core), CKPT_TWO_PHASE_DELETE_GRACE_S * SECOND_NS);
}

static uint64_t grace_ns(const struct ckpt_remote_gc *u)
{
	return ckpt_remote_gc_grace_ns(u->core);
}

/* A request that somebody else has begun under it may be under way for as long as that. */
static uint64_t over_ns(
	const struct ckpt_remote_gc *u, const struct ckpt_seen_tombstone *seen_tombstone)
{
	bool own = seen_tombstone->mine && !seen_tombstone->taken;

	return seen_tombstone->since_ns +
	       (own ? grace_ns(u) : ckpt_remote_gc_others_grace_ns(u->core));
}

/* When to look. */

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_remote_gc, timer)->task);
}

/* Uploads come first, unless they never end. */
static bool may_look(const struct ckpt_remote_gc *u)
{
	const struct ckpt_core *core = u->core;

	return ckpt_upload_queue_rests(core) ||
	       ((u->urgent || u->came > core->config.remote_keep_last) &&
		       ckpt_upload_queue_sends(core));
}

static bool is_due(struct ckpt_remote_gc *u)
{
	ckpt_core_timer_clear(u->core, &u->timer);
	if (u->stop)
		return true;
	if (u->halted || u->core->lineage->fenced || (!u->asked && u->seen_tombstones.count == 0) ||
		!may_look(u))
		return false;
	if (u->at_ns <= now(u))
		return true;
	u->timer.fire = timer_fired;
	ckpt_core_timer_set(u->core, &u->timer, u->at_ns);
	return false;
}

/* 1, 2, 4 ... 60 seconds. */
static void back_off(struct ckpt_remote_gc *u)
{
	unsigned doublings = ckpt_min_u64(u->failures++, 6);
	uint64_t wait_s = ckpt_min_u64(PAUSE_MAX_S, UINT64_C(1) << doublings);

	u->asked = true;
	u->at_ns = now(u) + wait_s * SECOND_NS;
	ckpt_log(u->core->parts.log, u->failures == 1 ? CKPT_LOG_WARN : CKPT_LOG_DEBUG,
		"retention in %s: try %u failed, the next is in %llu s: %.700s", u->dest->label,
		u->failures, (unsigned long long)wait_s, u->error.message);
}

/* Once a grace, and when one is over. What was left alone though its grace is over has time: somebody else has it. */
static void take_round(struct ckpt_remote_gc *u)
{
	uint64_t pause_ns = ckpt_max_u64(grace_ns(u) / 4, PAUSE_MAX_S * SECOND_NS);
	uint64_t at = now(u) + grace_ns(u);

	u->failures = 0;
	for (size_t i = 0; i < u->seen_tombstones.count; i++) {
		uint64_t over = over_ns(u, &u->seen_tombstones.items[i]);
		at = ckpt_min_u64(at, over > now(u) ? over : now(u) + pause_ns);
	}
	u->at_ns = ckpt_max_u64(at, now(u) + SECOND_NS);
}

/* As soon as the claim of the next generation is there: what it goes on from may be marked. */
static void look_at_once(struct ckpt_remote_gc *u)
{
	u->asked = true;
	u->urgent = true;
	u->at_ns = 0;
}

static void halt(struct ckpt_remote_gc *u)
{
	u->halted = true;
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "nothing is removed from %s any more: %.800s",
		u->dest->label, u->error.message);
}

/* What is there. */

static void start_round(struct ckpt_remote_gc *u)
{
	const struct ckpt_core *core = u->core;

	u->asked = false;
	u->urgent = false;
	u->came = 0;
	u->generation = core->lineage->generation;
	u->sent = core->stats.uploads_done;
	u->settled = ckpt_upload_queue_rests(core);
	ckpt_error_clear(&u->error);
	ckpt_scanner_start(&u->scanner, u->dest, &u->core->sched, &u->task, NULL, &u->error);
}

/* The job goes on from another step: what stays is judged anew, by its next generation. */
static bool is_outdated(const struct ckpt_remote_gc *u)
{
	return u->core->lineage->generation != u->generation;
}

static bool is_claim_of(const struct ckpt_remote_gc *u)
{
	return ckpt_scan_newest_claim(&u->scanner.scan) == u->generation;
}

/* Tombstones that have gone, with their steps or without. */
static void forget_gone(struct ckpt_remote_gc *u)
{
	for (size_t i = u->seen_tombstones.count; i-- > 0;) {
		const struct ckpt_seen_tombstone *seen_tombstone = &u->seen_tombstones.items[i];
		const struct ckpt_scan_step *s = ckpt_scan_find(
			&u->scanner.scan, seen_tombstone->generation, seen_tombstone->step);
		if (!s || !s->deleting)
			ckpt_seen_tombstones_drop(&u->seen_tombstones, seen_tombstone->generation,
				seen_tombstone->step);
	}
}

/* What is to go of it. */
static int judge(struct ckpt_remote_gc *u)
{
	const struct ckpt_core_config *config = &u->core->config;
	struct ckpt_scan *scan = &u->scanner.scan;
	const struct ckpt_retention keep = {.keep_last = config->remote_keep_last,
		.keep_every = config->remote_keep_every,
		.pins = u->core->pins,
		.pin_count = u->core->pin_count,
		.remote = true,
		.settled = u->settled};
	const struct ckpt_scan_step *s = NULL;

	int r = ckpt_lineage_mark(scan, &u->error);
	if (r < 0)
		return r;
	ckpt_lineage_mark_rolled_back(scan);
	ckpt_scan_mark_needed(scan);
	ckpt_free(u->expired);
	u->expired = ckpt_alloc_array(scan->step_count + 1, sizeof(*u->expired));
	if (!u->expired)
		return ckpt_fail(&u->error, -ENOMEM, "out of memory");
	while ((s = ckpt_retention_next(scan, &keep, s ? s->generation : 0, s ? s->step : 0)))
		u->expired[s - scan->steps] = true;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *at = &scan->steps[i];
		/* What a removal that was cut short has left. */
		if (at->deleting && at->state == CKPT_STEP_PENDING)
			u->expired[i] = true;
		/* Not kept, and not let go: the next look may be able to read it. */
		u->asked = u->asked || at->state == CKPT_STEP_BROKEN;
	}
	return 0;
}

static int take_scan(struct ckpt_remote_gc *u)
{
	int r = u->scanner.task.result;

	u->at = 0;
	if (is_outdated(u))
		return 0;
	if (r < 0)
		return u->error.code ? r
				     : ckpt_fail(&u->error, r, "cannot read %s: %s", u->dest->label,
					       ckpt_code_text(r));
	if (!is_claim_of(u))
		return ckpt_fail(
			&u->error, CKPT_EFENCED, "%s has another generation", u->dest->label);
	forget_gone(u);
	u->settled = u->settled && ckpt_upload_queue_rests(u->core) &&
		     u->sent == u->core->stats.uploads_done;
	/* What is under way may be given up. */
	u->asked = u->asked || !u->settled;
	r = judge(u);
	u->at = r < 0 ? 0 : u->scanner.scan.step_count;
	return r;
}

/* What is done about it. */

/* A pin may have come since the judgement. What a removal has begun with is not to be had any more. */
static bool is_pinned(const struct ckpt_remote_gc *u, const struct ckpt_scan_step *s)
{
	const struct ckpt_core *core = u->core;

	for (size_t i = 0; i < core->pin_count && s->state == CKPT_STEP_COMMITTED; i++)
		if (core->pins[i] == s->step)
			return true;
	return false;
}

/* Its manifest could not be read just now: whoever has marked it may have been right. */
static bool is_unknown(const struct ckpt_scan_step *s)
{
	return s->state == CKPT_STEP_BROKEN;
}

/* Of the steps, the oldest first, the next that something is done about; false: none. */
static bool next_act(struct ckpt_remote_gc *u)
{
	while (u->at > 0) {
		u->at--;
		const struct ckpt_scan_step *s = &u->scanner.scan.steps[u->at];
		const struct ckpt_seen_tombstone *seen_tombstone =
			ckpt_seen_tombstones_find(&u->seen_tombstones, s->generation, s->step);
		bool waited = seen_tombstone && over_ns(u, seen_tombstone) <= now(u);
		bool expired = u->expired[u->at];
		if (is_pinned(u, s))
			expired = false;
		if (!s->deleting && !expired)
			continue;
		if (!seen_tombstone) {
			u->two_phase.act = s->deleting ? CKPT_TWO_PHASE_DELETE_WATCH
						       : CKPT_TWO_PHASE_DELETE_MARK;
			return true;
		}
		if (is_unknown(s))
			continue;
		u->two_phase.act =
			expired ? CKPT_TWO_PHASE_DELETE_REMOVE : CKPT_TWO_PHASE_DELETE_UNMARK;
		if (waited || (!expired && seen_tombstone->mine && !seen_tombstone->taken))
			return true;
	}
	return false;
}

static void start_act(struct ckpt_remote_gc *u)
{
	const struct ckpt_scan_step *s = &u->scanner.scan.steps[u->at];

	ckpt_error_clear(&u->act_error);
	u->two_phase = (struct ckpt_two_phase_delete){.core = u->core,
		.store = u->dest,
		.seen_tombstones = &u->seen_tombstones,
		.newest = u->generation,
		.fence = true,
		.whole = s->state == CKPT_STEP_COMMITTED,
		.act = u->two_phase.act,
		.generation = s->generation,
		.step = s->step,
		.err = &u->act_error,
		.waiter = &u->task};
	ckpt_two_phase_delete_start(&u->two_phase);
}

/* What somebody else does to it, or reads it, is looked at again at the next look. */
static void note_removed(struct ckpt_remote_gc *u)
{
	struct ckpt_core *core = u->core;
	const struct ckpt_two_phase_delete *b = &u->two_phase;

	core->stats.remote_steps_removed++;
	/* Of one that is here as well it is told that it is not there. */
	if (ckpt_scan_find(&core->lineage->scan, b->generation, b->step))
		ckpt_record_writer_absent(
			core->upload_queue->record_writer, b->generation, b->step, 0);
}

static void take_act(struct ckpt_remote_gc *u)
{
	static const char *const done[] = {[CKPT_TWO_PHASE_DELETE_MARK] = "is marked in",
		[CKPT_TWO_PHASE_DELETE_WATCH] = "is marked by somebody else in",
		[CKPT_TWO_PHASE_DELETE_REMOVE] = "is removed from",
		[CKPT_TWO_PHASE_DELETE_UNMARK] = "stays after all in"};
	const struct ckpt_two_phase_delete *b = &u->two_phase;
	int r = b->task.result;

	if (r < 0 && r != -EBUSY && r != -EAGAIN && !is_outdated(u)) {
		u->failed = r;
		u->error = u->act_error;
		return;
	}
	if (r == 0 && b->act == CKPT_TWO_PHASE_DELETE_REMOVE)
		note_removed(u);
	ckpt_log(u->core->parts.log,
		r == 0 && b->act == CKPT_TWO_PHASE_DELETE_REMOVE ? CKPT_LOG_INFO : CKPT_LOG_DEBUG,
		"retention: step %llu of generation %llu %s %s%s%.600s",
		(unsigned long long)b->step, (unsigned long long)b->generation,
		r == 0 ? done[b->act] : "is left alone in", u->dest->label, r == 0 ? "" : ": ",
		r == 0 ? "" : u->act_error.message);
}

/* What fails for one step may not for the next; a way there that fails does. */
static bool ends_round(const struct ckpt_remote_gc *u)
{
	return u->stop || u->core->lineage->fenced || is_outdated(u) || u->failed == CKPT_EFENCED ||
	       u->failed == CKPT_ENETWORK || u->failed == CKPT_EAUTH || u->failed == -ETIMEDOUT ||
	       (u->failed < 0 && u->at == 0);
}

static void take_failure(struct ckpt_remote_gc *u)
{
	if (u->stop)
		return;
	if (u->failed == CKPT_EFENCED)
		halt(u);
	else
		back_off(u);
}

static int remote_gc_body(struct ckpt_task *task)
{
	struct ckpt_remote_gc *u = remote_gc_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		CKPT_AWAIT(task, is_due(u));
		if (u->stop)
			return 0;
		start_round(u);
		CKPT_AWAIT(task, u->scanner.task.finished);
		r = take_scan(u);
		u->failed = r;
		while (!ends_round(u) && next_act(u)) {
			start_act(u);
			CKPT_AWAIT(task, u->two_phase.task.finished);
			take_act(u);
		}
		ckpt_scanner_clear(&u->scanner);
		if (is_outdated(u))
			look_at_once(u);
		else if (u->failed < 0)
			take_failure(u);
		else
			take_round(u);
	}
	CKPT_TASK_END(task);
}

static void remote_gc_done(struct ckpt_task *task)
{
	ckpt_task_wake(remote_gc_of(task)->core->closer);
}

/* From outside. */

int ckpt_remote_gc_open(struct ckpt_core *core, struct ckpt_store *dest)
{
	if (core->config.remote_keep_last == 0 || core->config.rank > 0)
		return 0;
	struct ckpt_remote_gc *u = ckpt_alloc(sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->core = core;
	u->dest = dest;
	ckpt_error_clear(&u->error);
	core->remote_gc = u;
	return 0;
}

/* What an earlier process has marked, or not come to, is its to go on with. */
void ckpt_remote_gc_begin(struct ckpt_core *core)
{
	struct ckpt_remote_gc *u = core->remote_gc;

	if (!u)
		return;
	u->asked = true;
	ckpt_task_start(&u->task, &core->sched, remote_gc_body, remote_gc_done);
}

void ckpt_remote_gc_note(struct ckpt_core *core)
{
	if (!core->remote_gc)
		return;
	core->remote_gc->asked = true;
	core->remote_gc->came++;
	ckpt_remote_gc_wake(core);
}

void ckpt_remote_gc_hurry(struct ckpt_core *core)
{
	if (!core->remote_gc)
		return;
	core->remote_gc->asked = true;
	core->remote_gc->urgent = true;
	ckpt_remote_gc_wake(core);
}

void ckpt_remote_gc_note_claim(struct ckpt_core *core)
{
	if (!core->remote_gc)
		return;
	look_at_once(core->remote_gc);
	ckpt_remote_gc_wake(core);
}

void ckpt_remote_gc_wake(struct ckpt_core *core)
{
	if (core->remote_gc)
		ckpt_task_wake(&core->remote_gc->task);
}

void ckpt_remote_gc_stop(struct ckpt_core *core)
{
	if (!core->remote_gc)
		return;
	core->remote_gc->stop = true;
	ckpt_remote_gc_wake(core);
}

bool ckpt_remote_gc_ended(const struct ckpt_core *core)
{
	return !core->remote_gc || !ckpt_task_active(&core->remote_gc->task);
}

void ckpt_remote_gc_close(struct ckpt_core *core)
{
	struct ckpt_remote_gc *u = core->remote_gc;

	if (!u)
		return;
	CKPT_ASSERT(ckpt_remote_gc_ended(core));
	ckpt_core_timer_clear(core, &u->timer);
	ckpt_seen_tombstones_clear(&u->seen_tombstones);
	ckpt_free(u->expired);
	ckpt_free(u);
	core->remote_gc = NULL;
}

void ckpt_remote_gc_report(const struct ckpt_core *core, struct ckpt_stats *stats)
{
	if (core->remote_gc)
		stats->remote_steps_deleting = core->remote_gc->seen_tombstones.count;
}
