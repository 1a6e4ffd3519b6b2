/* SPDX-License-Identifier: Apache-2.0 */
/* Selects one manifest. */
#include "engine/lineage/select_step.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "format/sealed.h"

/* Longest time until what rank 0 has seen must be visible here, and the interval of checks. */
#define UNSEEN_MAX_NS   UINT64_C(10000000000)
#define UNSEEN_PAUSE_NS UINT64_C(50000000)
/* A deletion that holds a manifest's lock for longer than this counts as one that will delete the step. */
#define GOING_MAX_NS    UINT64_C(1000000000)
#define GOING_PAUSE_NS  UINT64_C(20000000)

bool ckpt_select_is_relative(uint64_t wanted)
{
	return UINT64_MAX - wanted <= UINT32_MAX;
}

/* "the latest step", "step 100", "the step 2 before the latest" */
static const char *wanted_text(uint64_t wanted, char *out, size_t size)
{
	if (wanted == CKPT_STEP_LATEST)
		(void)snprintf(out, size, "the latest step");
	else if (ckpt_select_is_relative(wanted))
		(void)snprintf(out, size, "the step %llu before the latest",
			(unsigned long long)(UINT64_MAX - wanted));
	else
		(void)snprintf(out, size, "step %llu", (unsigned long long)wanted);
	return out;
}

/*
 * The broken step that `wanted` may mean: of those newer than `chosen`, which are counted, the newest that may be good,
 * else the newest. A step whose manifest does not verify is in no lineage. By its generation and number it belonged to
 * this one, so the caller must hear that it is broken, not that it does not exist.
 */
static struct ckpt_scan_step *find_broken(struct ckpt_scan *scan, uint64_t wanted,
	const struct ckpt_scan_step *chosen, unsigned *ret_count)
{
	struct ckpt_scan_step *found = NULL;

	for (size_t i = 0; i < scan->step_count; i++) {
		struct ckpt_scan_step *s = &scan->steps[i];
		if (s == chosen)
			break;
		if (s->state != CKPT_STEP_BROKEN ||
			!ckpt_lineage_holds(scan, s->generation, s->step))
			continue;
		if (!ckpt_select_is_relative(wanted) && s->step != wanted)
			continue;
		if (!found || (ckpt_select_may_be_good(s) && !ckpt_select_may_be_good(found)))
			found = s;
		*ret_count += 1;
	}
	return found;
}

/* Steps that this engine knows to be bad stay so, even if no note could be written. */
static void overlay(struct ckpt_scan *scan, struct ckpt_scan *known)
{
	for (size_t i = 0; i < scan->step_count; i++) {
		struct ckpt_scan_step *s = &scan->steps[i];
		const struct ckpt_scan_step *k = ckpt_scan_find(known, s->generation, s->step);
		if (k && k->state == CKPT_STEP_QUARANTINED && s->state == CKPT_STEP_COMMITTED &&
			strcmp(k->attempt, s->attempt) == 0)
			s->state = CKPT_STEP_QUARANTINED;
	}
}

/*
 * Only a deletion locks a manifest exclusively. Its storage may hang while the manifest still exists: for LATEST the
 * step counts as deleted.
 */
static unsigned pass_going(struct ckpt_select *p)
{
	unsigned passed = 0;

	for (unsigned i = 0; i < p->going_count; i++) {
		struct ckpt_scan_step *s = ckpt_scan_find(
			&p->scanner.scan, p->deleting[i].generation, p->deleting[i].step);
		if (s) {
			s->state = CKPT_STEP_PENDING;
			passed++;
		}
	}
	return passed;
}

/* A caller that asks for the latest and is told that there is none starts from nothing, so that must be true. */
static int fail_none(struct ckpt_select *p, unsigned deleting)
{
	const struct ckpt_scan *scan = &p->scanner.scan;
	unsigned held = 0;
	char text[64];

	for (size_t i = 0; scan->steps && i < scan->step_count; i++)
		held += scan->steps[i].in_lineage;
	/* Steps in the lineage that do not count are quarantined. */
	if (ckpt_select_is_relative(p->wanted) && held > 0 && ckpt_lineage_count(scan) == 0)
		return ckpt_fail(p->err, CKPT_EQUARANTINED,
			"%s holds committed steps, but all of them (%u) %s: `ckpt ls` says why; "
			"bring a copy back, name a step, or start anew",
			p->core->parts.label, held,
			p->core->config.lost_nodes
				? "are quarantined, or were skipped because nodes were lost"
				: "failed verification and are quarantined");
	if (p->wanted == CKPT_STEP_LATEST && deleting > 0)
		return ckpt_fail(p->err, -EBUSY,
			"%s holds steps, but all that could be opened are locked by another "
			"process, which deletes them: try again when it has ended",
			p->core->parts.label);
	/* A good step of the lineage would have been chosen, so it has none. */
	if (p->wanted == CKPT_STEP_LATEST && p->core->lineage->elsewhere)
		return ckpt_fail(p->err, CKPT_EOTHERNODE,
			"%s holds no step that can be restored, and the store of another node "
			"does: make one of its ranks rank 0, or copy its steps here",
			p->core->parts.label);
	if (p->wanted == CKPT_STEP_LATEST)
		return ckpt_fail(p->err, CKPT_ENOSTEP, "%s holds no step that can be restored",
			p->core->parts.label);
	return ckpt_fail(p->err, CKPT_ENOSTEP, "the lineage of %s does not hold %s",
		p->core->parts.label, wanted_text(p->wanted, text, sizeof(text)));
}

/* It is unknown which step is the k-th before the latest if a newer one may be good or not. */
static int fail_untold(struct ckpt_select *p, const struct ckpt_scan_step *step)
{
	char path[CKPT_PATH_MAX];
	char text[64];

	ckpt_name_manifest(path, step->generation, step->step);
	ckpt_error_clear(p->err);
	/* The error record names it. */
	p->chosen = *step;
	return ckpt_fail_at(p->err, step->code,
		&(struct ckpt_where){.tier = ckpt_store_tier(p->core->store), .file = path},
		"it is unknown which is %s of %s: cannot read %s: %s",
		wanted_text(p->wanted, text, sizeof(text)), p->core->parts.label, path, step->note);
}

static int choose(struct ckpt_select *p)
{
	struct ckpt_scan *scan = &p->scanner.scan;
	unsigned passed = 0;
	unsigned broken = 0;
	char text[64];

	/* This failure is not about the step of an earlier try. */
	p->chosen = (struct ckpt_scan_step){0};
	overlay(scan, &p->core->lineage->scan);
	unsigned deleting = pass_going(p);
	int r = ckpt_lineage_mark(scan, p->err);
	struct ckpt_scan_step *step = ckpt_lineage_choose(scan, p->wanted, &passed);
	struct ckpt_scan_step *bad = find_broken(scan, p->wanted, step, &broken);
	bool in_the_way = bad && (!step || ckpt_select_may_be_good(bad));
	if (in_the_way && ckpt_select_is_relative(p->wanted) && p->wanted != CKPT_STEP_LATEST)
		return fail_untold(p, bad);
	if (in_the_way)
		step = bad;
	if (!step)
		return r < 0 ? r : fail_none(p, deleting);
	/* Steps before the known part of the lineage are all older, so they do not matter. */
	if (r < 0) {
		ckpt_log(p->core->parts.log, CKPT_LOG_WARN, "%s", p->err->message);
		ckpt_error_clear(p->err);
	}
	p->chosen = *step;
	if (step != bad && passed + broken > 0)
		ckpt_log(p->core->parts.log, CKPT_LOG_WARN,
			"%s of %s is step %llu: %u quarantined%s and %u broken newer steps were "
			"skipped; `ckpt ls` says why",
			wanted_text(p->wanted, text, sizeof(text)), p->core->parts.label,
			(unsigned long long)step->step, passed,
			p->core->config.lost_nodes ? " or lost" : "", broken);
	return 0;
}

static int vanish(struct ckpt_select *p)
{
	p->vanished = true;
	if (p->wanted == CKPT_STEP_LATEST && p->tries + 1 >= CKPT_SELECT_TRIES)
		return ckpt_fail(p->err, -EBUSY,
			"%u steps of %s were deleted while they were opened: try again when "
			"the process that deletes them has ended",
			CKPT_SELECT_TRIES, p->core->parts.label);
	return ckpt_fail_at(p->err, CKPT_ENOSTEP,
		&(struct ckpt_where){.tier = ckpt_store_tier(p->core->store), .file = p->path},
		"step %llu of %s has just been deleted", (unsigned long long)p->chosen.step,
		p->core->parts.label);
}

/* The lock keeps retention away. Where locks do not work, no retention may run either. */
static int take_lock(struct ckpt_select *p)
{
	switch (p->op.result) {
	case -EAGAIN:
		ckpt_log(p->core->parts.log, CKPT_LOG_WARN, "step %llu of %s is being deleted",
			(unsigned long long)p->chosen.step, p->core->parts.label);
		CKPT_ASSERT(p->going_count < CKPT_SELECT_TRIES);
		p->deleting[p->going_count++] = (struct ckpt_select_going){
			.generation = p->chosen.generation, .step = p->chosen.step};
		return vanish(p);
	case -ENOENT:
		return vanish(p);
	case -ENOLCK:
	case -EROFS:
		ckpt_log(p->core->parts.log, CKPT_LOG_WARN,
			"cannot lock %s of %s (%s): make sure that no process deletes the step "
			"while it is read",
			p->path, p->core->parts.label, ckpt_code_text(p->op.result));
		return 0;
	default:
		break;
	}
	if (p->op.result < 0)
		return ckpt_fail_at(p->err, p->op.result,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(p->core->store), .file = p->path},
			"cannot lock %s of %s: %s", p->path, p->core->parts.label,
			ckpt_code_text(p->op.result));
	return 0;
}

/* If the scan could not read the manifest, it has not been compared with the known bad steps. */
static bool is_known_bad(const struct ckpt_select *p)
{
	const struct ckpt_scan_step *known =
		ckpt_scan_find(&p->core->lineage->scan, p->manifest.generation, p->manifest.step);

	return p->chosen.state == CKPT_STEP_BROKEN && ckpt_select_is_relative(p->wanted) && known &&
	       known->state == CKPT_STEP_QUARANTINED &&
	       strcmp(known->attempt, p->manifest.attempt) == 0;
}

static int take_manifest(struct ckpt_select *p)
{
	struct ckpt_where where = {.tier = ckpt_store_tier(p->core->store), .file = p->path};
	const struct ckpt_manifest *m = &p->manifest;

	if (p->op.result == -ENOENT)
		return vanish(p);
	if (p->op.result < 0 && ckpt_fail_said(p->err, p->op.result, &where, &p->said))
		return p->op.result;
	if (p->op.result < 0)
		return ckpt_fail_at(p->err, p->op.result, &where, "cannot read %s of %s: %s",
			p->path, p->core->parts.label, ckpt_code_text(p->op.result));
	p->manifest_bytes = p->op.data;
	p->manifest_length = p->op.length;
	p->op.data = NULL;
	int r = ckpt_manifest_decode(
		p->manifest_bytes, p->manifest_length, p->path, p->err, &p->manifest);
	if (r < 0)
		return r;
	if (m->generation != p->chosen.generation || m->step != p->chosen.step ||
		strcmp(m->run_id, p->marker.run_id) != 0)
		return ckpt_fail_at(p->err, CKPT_EINTEGRITY, &where,
			"%s is the manifest of generation %llu, step %llu of run %s: it was copied "
			"here from elsewhere",
			p->path, (unsigned long long)m->generation, (unsigned long long)m->step,
			m->run_id);
	p->vanished = is_known_bad(p);
	if (p->vanished)
		return ckpt_fail_at(p->err, CKPT_EQUARANTINED, &where,
			"step %llu failed verification before", (unsigned long long)m->step);
	memcpy(p->chosen.attempt, m->attempt, sizeof(p->chosen.attempt));
	if (p->chosen.state == CKPT_STEP_BROKEN)
		p->chosen.state = CKPT_STEP_COMMITTED;
	p->vanished = m->kind != CKPT_MANIFEST_COMMIT;
	if (p->vanished)
		return ckpt_fail_at(p->err, CKPT_ENOSTEP, &where, "step %llu was aborted: %s",
			(unsigned long long)m->step, m->reason);
	return 0;
}

static void take_scan(struct ckpt_select *p)
{
	p->marker = p->scanner.marker;
	ckpt_scanner_clear(&p->scanner);
}

/* Clears what was found of a step that has disappeared. */
static void forget(struct ckpt_select *p)
{
	p->vanished = false;
	ckpt_manifest_clear(&p->manifest);
	ckpt_free(p->manifest_bytes);
	p->manifest_bytes = NULL;
	ckpt_error_clear(p->err);
}

/* A step given by number is gone; for LATEST there is another one. */
static bool try_again(struct ckpt_select *p)
{
	if (!p->vanished || !ckpt_select_is_relative(p->wanted) || ++p->tries >= CKPT_SELECT_TRIES)
		return false;
	forget(p);
	return true;
}

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_select, timer)->task);
}

static void set_pause(struct ckpt_select *p, uint64_t end_ns)
{
	p->timer.fire = timer_fired;
	ckpt_core_timer_set(p->core, &p->timer, end_ns);
}

/*
 * A deletion that will be refused, because its process has been fenced, releases the lock when it finds out. Choosing
 * an older step meanwhile could lose this one. The limit is for all tried steps together.
 */
static bool may_let_go(struct ckpt_select *p)
{
	uint64_t now = ckpt_env_now(p->core->parts.env);

	/* The kernel breaks a lease when another process opens the file. */
	if ((p->op.result != -EAGAIN && p->op.result != -EBUSY) || *p->stop)
		return false;
	if (!p->give_up_ns)
		p->give_up_ns = now + GOING_MAX_NS;
	return now < p->give_up_ns;
}

static int pick_body(struct ckpt_task *task)
{
	struct ckpt_select *p = CKPT_CONTAINER(task, struct ckpt_select, task);
	struct ckpt_store *store = p->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		if (p->lock.fd >= 0) {
			ckpt_store_shut(store, &p->op, &p->lock);
			CKPT_AWAIT(task, p->op.done);
		}
		ckpt_scanner_start(&p->scanner, store, &p->core->sched, task, p->stop, p->err);
		CKPT_AWAIT(task, p->scanner.task.finished);
		r = p->scanner.task.result;
		if (r == 0)
			r = choose(p);
		take_scan(p);
		if (r == 0)
			r = *p->stop;
		if (r < 0)
			return r;
		ckpt_name_manifest(p->path, p->chosen.generation, p->chosen.step);
		ckpt_store_lock(store, &p->op, p->path, true, &p->lock);
		CKPT_AWAIT(task, p->op.done);
		while (may_let_go(p)) {
			set_pause(p, ckpt_env_now(p->core->parts.env) + GOING_PAUSE_NS);
			CKPT_AWAIT(task, !p->timer.set || *p->stop);
			ckpt_core_timer_clear(p->core, &p->timer);
			ckpt_store_lock(store, &p->op, p->path, true, &p->lock);
			CKPT_AWAIT(task, p->op.done);
		}
		r = take_lock(p);
		if (r == 0)
			r = *p->stop;
		if (r == 0) {
			/* Read under the lock: it stays from now on. */
			ckpt_store_get(store, &p->op, p->path, CKPT_SEALED_MAX);
			CKPT_AWAIT(task, p->op.done);
			r = take_manifest(p);
		}
	} while (r < 0 && try_again(p));
	return r;
	CKPT_TASK_END(task);
}

static int unseen(struct ckpt_select *p)
{
	ckpt_error_clear(p->err);
	return ckpt_fail_at(p->err, -ETIMEDOUT,
		&(struct ckpt_where){.tier = ckpt_store_tier(p->core->store), .file = p->path},
		"rank %u does not see step %llu of generation %llu in %s, which rank 0 has opened: "
		"check that all ranks have the same directory",
		p->core->config.rank, (unsigned long long)p->chosen.step,
		(unsigned long long)p->chosen.generation, p->core->parts.label);
}

/*
 * If this node had any file of the step, it was copied here when the stores were opened, so it has been deleted since.
 * No rank can restore it any more, and another step must be selected.
 */
static int lacks(struct ckpt_select *p)
{
	ckpt_error_clear(p->err);
	return ckpt_fail_at(p->err, CKPT_EINCOMPLETE,
		&(struct ckpt_where){.tier = ckpt_store_tier(p->core->store), .file = p->path},
		"step %llu of generation %llu, which rank 0 has opened, is no longer in %s, the "
		"store of node %s: use another step, or copy that node's files of it into its "
		"store",
		(unsigned long long)p->chosen.step, (unsigned long long)p->chosen.generation,
		p->core->parts.label, p->core->config.node);
}

/* Takes the manifest, or finds that it is not visible yet, because directories are cached. */
static int take_named(struct ckpt_select *p)
{
	int r = take_manifest(p);

	if (r == 0 && strcmp(p->named, p->manifest.attempt) != 0)
		r = ckpt_fail_at(p->err, CKPT_EMISMATCH,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(p->core->store), .file = p->path},
			"%s of %s is of attempt %s, but rank 0 has opened attempt %s: check that "
			"all ranks have the same directory",
			p->path, p->core->parts.label, p->manifest.attempt, p->named);
	return r;
}

/* The step was selected by another rank, so the store need not be scanned. */
static int named_body(struct ckpt_task *task)
{
	struct ckpt_select *p = CKPT_CONTAINER(task, struct ckpt_select, task);
	struct ckpt_core *core = p->core;
	int r;

	CKPT_TASK_BEGIN(task);
	p->marker = core->lineage->marker;
	p->give_up_ns =
		ckpt_env_now(core->parts.env) +
		ckpt_min_u64((uint64_t)core->config.save_timeout_ms * 1000000 / 4, UNSEEN_MAX_NS);
	ckpt_name_manifest(p->path, p->chosen.generation, p->chosen.step);
	for (;;) {
		ckpt_store_lock(core->store, &p->op, p->path, true, &p->lock);
		CKPT_AWAIT(task, p->op.done);
		p->going_count = 0;
		r = take_lock(p);
		if (r == 0 && !*p->stop) {
			ckpt_store_get(core->store, &p->op, p->path, CKPT_SEALED_MAX);
			CKPT_AWAIT(task, p->op.done);
			r = take_named(p);
		}
		if (*p->stop || !p->vanished)
			return *p->stop ? *p->stop : r;
		/* This job's own step may lack its manifest here; the next start copies it. */
		if (core->config.node_store && core->lineage->generation == 0 &&
			p->going_count == 0)
			return lacks(p);
		if (ckpt_env_now(core->parts.env) >= p->give_up_ns)
			return unseen(p);
		forget(p);
		if (p->lock.fd >= 0) {
			ckpt_store_shut(core->store, &p->op, &p->lock);
			CKPT_AWAIT(task, p->op.done);
		}
		set_pause(p, ckpt_min_u64(ckpt_env_now(core->parts.env) + UNSEEN_PAUSE_NS,
				     p->give_up_ns));
		CKPT_AWAIT(task, !p->timer.set || *p->stop);
		ckpt_core_timer_clear(core, &p->timer);
	}
	CKPT_TASK_END(task);
}

static void pick_done(struct ckpt_task *task)
{
	struct ckpt_select *p = CKPT_CONTAINER(task, struct ckpt_select, task);

	ckpt_task_wake(p->waiter);
}

void ckpt_select_start(struct ckpt_select *pick)
{
	pick->lock.fd = -1;
	ckpt_error_clear(&pick->said);
	ckpt_store_op_init(&pick->op, &pick->task, &pick->said);
	pick->op.quiet = true;
	pick->op.stop = pick->stop;
	ckpt_task_start(
		&pick->task, &pick->core->sched, pick->named ? named_body : pick_body, pick_done);
}

void ckpt_select_clear(struct ckpt_select *pick)
{
	CKPT_ASSERT(!ckpt_task_active(&pick->task) && pick->lock.fd < 0);
	ckpt_manifest_clear(&pick->manifest);
	ckpt_free(pick->manifest_bytes);
	pick->manifest_bytes = NULL;
}
