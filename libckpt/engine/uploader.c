/* SPDX-License-Identifier: Apache-2.0 */
/* What is uploaded next, and what becomes of it. */
#include "engine/uploader.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/keeper.h"
#include "engine/undertaker.h"

#define SECOND_NS    UINT64_C(1000000000)
#define PAUSE_MAX_S  60                                      /* between tries */
#define OTHERS_NS    (UINT64_C(4) * PAUSE_MAX_S * SECOND_NS) /* others have tried again by then */
#define LOOK_S       2 /* between looks for what others send */
#define LOOK_NS      (LOOK_S * SECOND_NS)
#define HELD_S       30 /* without change, and who does not try for ever has looked enough */
#define FAILURES_MAX 5  /* of one step, of what is here */
#define GOING_GRACES 4  /* in which a removal ends, or a mark is taken away */

static struct ckpt_uploader *uploader_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_uploader, task);
}

static bool before(const struct ckpt_upload_entry *e, uint64_t generation, uint64_t step)
{
	return e->generation < generation || (e->generation == generation && e->step < step);
}

/* The place in the list of a step, or where it would be. */
static struct ckpt_upload_entry **find(struct ckpt_uploader *u, uint64_t generation, uint64_t step)
{
	struct ckpt_upload_entry **link = &u->first;

	while (*link && before(*link, generation, step))
		link = &(*link)->next;
	return link;
}

/* Takes over a hold on `e`. */
static void put(struct ckpt_uploader *u, struct ckpt_upload_entry *e, uint64_t generation,
	uint64_t step, uint64_t bytes)
{
	struct ckpt_upload_entry **link = find(u, generation, step);

	CKPT_ASSERT(!*link || (*link)->generation != generation || (*link)->step != step);
	e->generation = generation;
	e->step = step;
	e->bytes = bytes;
	e->next = *link;
	*link = e;
	u->count++;
}

/* What is durable here goes by itself the next time, and whoever waits for all is told that it does not now. */
static void leave_out(struct ckpt_uploader *u, const struct ckpt_scan_step *s)
{
	struct ckpt_error why = {.size = sizeof(why)};

	(void)ckpt_fail(&why, -ENOMEM,
		"out of memory: step %llu of %s is uploaded when the job is started again",
		(unsigned long long)s->step, u->core->parts.label);
	why.step = (int64_t)s->step;
	if (u->lost.code == 0)
		u->lost = why;
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "%s", why.message);
	ckpt_scribe_unsent(&u->scribe, s->generation, s->step);
}

/* A step that was there before. NULL: it is left out. */
static struct ckpt_upload_entry *put_found(struct ckpt_uploader *u, const struct ckpt_scan_step *s)
{
	struct ckpt_upload_entry *e = ckpt_upload_entry_new();

	if (!e) {
		leave_out(u, s);
		return NULL;
	}
	e->all = true;
	put(u, e, s->generation, s->step, s->bytes);
	return e;
}

/* Its outcome is known; `error` has it. */
static void end_entry(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	struct ckpt_upload_entry **link = find(u, e->generation, e->step);

	CKPT_ASSERT(*link == e);
	*link = e->next;
	u->count--;
	e->error.step = (int64_t)e->step;
	ckpt_leavings_free(e->left);
	e->left = NULL;
	ckpt_core_answer(u->core, &e->latch, CKPT_DONE_END);
	ckpt_upload_entry_unref(e);
	ckpt_undertaker_wake(u->core);
}

static void end_all(struct ckpt_uploader *u, const struct ckpt_error *why)
{
	while (u->first) {
		if (!u->first->known)
			ckpt_scribe_unsent(&u->scribe, u->first->generation, u->first->step);
		u->first->error = *why;
		end_entry(u, u->first);
	}
}

/* What is kept for it no longer is. */
static void ask_retention(struct ckpt_uploader *u)
{
	if (u->core->generation > 0)
		ckpt_keeper_ask(u->core, CKPT_KEEPER_RETAIN);
}

/* Trying again. */

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_uploader, timer)->task);
}

static void pause_until(struct ckpt_uploader *u, uint64_t at_ns)
{
	u->timer.fire = timer_fired;
	ckpt_core_timer_set(u->core, &u->timer, at_ns);
}

static uint64_t now(const struct ckpt_uploader *u)
{
	return ckpt_env_now(u->core->parts.env);
}

/* 1, 2, 4 ... 60 seconds, each less up to a half, so that the ranks of a job do not come back as one. */
static uint64_t pause_ns(struct ckpt_uploader *u, unsigned failures)
{
	uint64_t seconds = failures > 6 ? PAUSE_MAX_S : UINT64_C(1) << (failures - 1);
	uint64_t whole = ckpt_min_u64(seconds, PAUSE_MAX_S) * SECOND_NS;

	return whole - ckpt_env_random(u->core->parts.env) % (whole / 2);
}

/* It will never be otherwise: whoever runs the job has to see to it. */
static bool is_final(int code)
{
	return code == CKPT_EFENCED || code == CKPT_EMISMATCH || code == -EEXIST ||
	       code == CKPT_EUNSUPPORTED;
}

/* Of the way there, and not of the step. */
static bool is_outside(const struct ckpt_error *error)
{
	return error->code == -ENOMEM || strcmp(error->tier, "remote") == 0;
}

/* What is damaged here, or cannot be sent as it is. */
static bool is_of_step(const struct ckpt_error *error, int code)
{
	bool damage = code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT ||
		      code == CKPT_EVERSION;

	return (damage && !is_outside(error)) || code == -EFBIG || code == -EINVAL;
}

static void note_lost(struct ckpt_uploader *u)
{
	if (u->lost.code == 0)
		u->lost = u->error;
}

/* For whoever waits, -ETIMEDOUT means that it may come yet. */
static void word_end(struct ckpt_uploader *u)
{
	if (u->error.code == -ETIMEDOUT)
		u->error.code = CKPT_ENETWORK;
}

static void halt(struct ckpt_uploader *u, int code)
{
	word_end(u);
	note_lost(u);
	u->halted = code;
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "nothing of %s is uploaded any more: %.800s",
		u->core->parts.label, u->error.message);
	ckpt_scribe_failed(&u->scribe, &u->error, u->failures + 1, 0);
	end_all(u, &u->error);
	ask_retention(u);
}

/* Seconds since the newest step that is there was sent, as far as is known; -1: none is. */
static int64_t newest_age_s(const struct ckpt_uploader *u)
{
	uint64_t wall_ms = ckpt_env_wall_ms(u->core->parts.env);

	if (u->scribe.there_generation == 0)
		return -1;
	return (int64_t)((wall_ms - ckpt_min_u64(wall_ms, u->scribe.there_wall_ms)) / 1000);
}

/* Says the first of a row loudly. */
static void back_off(struct ckpt_uploader *u)
{
	char newest[80] = "none has been sent yet";
	int64_t age_s = newest_age_s(u);

	if (age_s >= 0)
		(void)snprintf(newest, sizeof(newest), "the newest sent is step %llu, %lld s ago",
			(unsigned long long)u->scribe.there_step, (long long)age_s);
	uint64_t wait_ns = pause_ns(u, ++u->failures);

	u->pause_ns = now(u) + wait_ns;
	u->core->stats.uploads_retried++;
	ckpt_scribe_failed(&u->scribe, &u->error, u->failures, u->pause_ns);
	ckpt_log(u->core->parts.log, u->failures == 1 ? CKPT_LOG_ERROR : CKPT_LOG_WARN,
		"uploading %s: try %u failed, the next is in %.0f s, %zu steps wait, %s: %.700s",
		u->core->parts.label, u->failures, (double)wait_ns / SECOND_NS, u->count, newest,
		u->error.message);
}

/* Whoever waits for it wants to know, rather than to wait. */
static bool has_tried_enough(struct ckpt_uploader *u)
{
	return u->core->config.remote_tries > 0 && u->failures + 1 >= u->core->config.remote_tries;
}

static void fail_entry(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	word_end(u);
	u->core->stats.uploads_failed++;
	u->error.step = (int64_t)e->step;
	note_lost(u);
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "step %llu of %s is not uploaded: %.800s",
		(unsigned long long)e->step, u->core->parts.label, u->error.message);
	e->error = u->error;
	ckpt_scribe_absent(&u->scribe, e->generation, e->step, u->error.code);
	end_entry(u, e);
	ask_retention(u);
}

/* The step will not be there, and the others may. */
static bool is_lost(const struct ckpt_uploader *u, struct ckpt_upload_entry *e, int code)
{
	if (is_of_step(&u->error, code) || code == CKPT_ENOSTEP)
		return true;
	return !is_outside(&u->error) && ++e->failures >= FAILURES_MAX;
}

/* Whoever has completed or swept what was on its way has the step there by now, or will have. */
static bool is_ended(struct ckpt_upload_entry *e, int code)
{
	if (code != -ESTALE || !e || e->ended)
		return false;
	e->ended = true;
	return true;
}

/* Who has asked for just that is told whom it waits for. */
static void word_held(struct ckpt_uploader *u, const struct ckpt_upload_entry *e)
{
	const struct ckpt_error was = u->error;

	ckpt_error_clear(&u->error);
	(void)ckpt_fail_at(&u->error, CKPT_EINUSE,
		&(struct ckpt_where){.tier = was.tier, .file = was.file},
		"step %llu was not sent within %u s: %.800s", (unsigned long long)e->step, HELD_S,
		was.message);
	u->error.rank = was.rank;
}

/* Somebody else sends what is next, and ranks go in order. False: without an end in sight. */
static bool await_holder(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	if (e->held_ns == 0 || e->held_rank != u->upload.rank)
		e->held_ns = now(u);
	e->held_rank = u->upload.rank;
	uint64_t waited_ns = now(u) - e->held_ns;
	if (u->core->config.remote_tries > 0 && waited_ns >= HELD_S * SECOND_NS) {
		word_held(u, e);
		return false;
	}
	u->pause_ns = now(u) + LOOK_NS;
	ckpt_scribe_failed(&u->scribe, &u->error, 1 + waited_ns / LOOK_NS, u->pause_ns);
	if (!e->held)
		ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
			"step %llu waits, and is looked at again every %u s: %.800s",
			(unsigned long long)e->step, LOOK_S, u->error.message);
	e->held = true;
	return true;
}

/* u->error, of which nothing can be done but what its kind allows. `e` NULL: of the place. */
static void take_failure(struct ckpt_uploader *u, struct ckpt_upload_entry *e, int code)
{
	if (u->stop)
		return;
	if (code == -EAGAIN || is_ended(e, code)) {
		/* Somebody else is about to do what is lacking. */
		u->pause_ns = now(u) + LOOK_NS;
		return;
	}
	if (u->error.code == 0)
		(void)ckpt_fail(&u->error, code, "cannot upload %s: %s", u->core->parts.label,
			ckpt_code_text(code));
	bool held = e && code == CKPT_EINUSE;
	if (held && await_holder(u, e))
		return;
	bool lost = e && !held && is_lost(u, e, code);
	if (is_final(code) || held || (!lost && has_tried_enough(u)))
		halt(u, code);
	else if (lost)
		fail_entry(u, e);
	else
		back_off(u);
}

/* One that has not all its parts, though a later one has: a rank has given its part up. */
static void overtake(struct ckpt_uploader *u, const struct ckpt_upload_entry *by)
{
	for (struct ckpt_upload_entry *e = u->first; e; e = e->next)
		e->overtaken = e->overtaken || before(e, by->generation, by->step);
}

static void take_success(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	struct ckpt_core *core = u->core;

	overtake(u, e);
	core->stats.uploads_done++;
	ckpt_scribe_there(&u->scribe, e->generation, e->step);
	ckpt_log(core->parts.log, CKPT_LOG_INFO, "step %llu of %s is in %s, %zu wait",
		(unsigned long long)e->step, core->parts.label, u->dest->label, u->count - 1);
	end_entry(u, e);
	ask_retention(u);
	ckpt_undertaker_note(core);
}

/* The later it is, the more seldom. */
static void look_later(struct ckpt_uploader *u, struct ckpt_upload_entry *e, uint64_t *since_ns)
{
	if (*since_ns == 0)
		*since_ns = now(u);
	e->retry_ns = now(u) + ckpt_min_u64(ckpt_max_u64(LOOK_NS, (now(u) - *since_ns) / 4),
				       PAUSE_MAX_S * SECOND_NS);
}

/* Retention here takes the tombstone of what the job goes on from away again; somebody else's removal ends. */
static bool is_awaited(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	if (!e->parent)
		return false;
	look_later(u, e, &e->going_ns);
	e->buried = now(u) - e->going_ns < GOING_GRACES * ckpt_undertaker_others_grace_ns(u->core);
	if (e->buried)
		ckpt_undertaker_hurry(u->core);
	return e->buried;
}

/*
 * Nobody ends the removal, and as long as nothing of this generation is there the step is all that it would go on from:
 * somebody may end it yet.
 */
static bool is_needed(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	uint64_t generation = u->core->generation;

	if (!e->parent || generation == 0 || u->scribe.there_generation >= generation)
		return false;
	e->buried = true;
	if (!e->stuck)
		ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
			"step %llu, from which the job goes on, is not in %s: its removal there "
			"was "
			"begun and has not ended. `ckpt prune` ends it; then the step is sent",
			(unsigned long long)e->step, u->dest->label);
	e->stuck = true;
	return true;
}

/* It will not be there; `error` says why. */
static void end_absent(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	ckpt_log(u->core->parts.log, CKPT_LOG_INFO, "%s", u->error.message);
	e->error = u->error;
	ckpt_scribe_absent(&u->scribe, e->generation, e->step, 0);
	end_entry(u, e);
	ask_retention(u);
}

/* What lets it go there is not for this job to undo. */
static void take_going(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	if (is_awaited(u, e))
		return;
	/* Nobody goes on with the removal, and whoever comes to do so sees the claim first, if there is one. */
	if (u->upload.found && e->parent) {
		take_success(u, e);
		return;
	}
	if (is_needed(u, e))
		return;
	(void)ckpt_fail_at(&u->error, CKPT_ENOSTEP, &(struct ckpt_where){.tier = "remote"},
		"step %llu is being removed from %s, and is not sent again",
		(unsigned long long)e->step, u->dest->label);
	end_absent(u, e);
}

/* Whether others' parts will not come any more. What the job goes on from may have a tombstone for them still. */
static bool is_given_up(const struct ckpt_uploader *u, const struct ckpt_upload_entry *e)
{
	uint64_t wait_ns = e->parent ? GOING_GRACES * ckpt_undertaker_others_grace_ns(u->core) : 0;

	/* Where nobody else is at work, nobody else's part will come. */
	if (e->all && u->core->config.world == 1)
		return true;
	return e->overtaken && now(u) - e->since_ns >= wait_ns;
}

/*
 * All parts of an older step are there. Rank 0 has sent later ones, and would have published this one by now if its own
 * store had it: that has let it go when it was there, and a removal that was broken off took the manifest alone.
 */
static bool is_left_over(const struct ckpt_uploader *u, const struct ckpt_upload_entry *e)
{
	uint64_t wait_ns = ckpt_max_u64(
		OTHERS_NS, e->parent ? GOING_GRACES * ckpt_undertaker_others_grace_ns(u->core) : 0);

	return u->upload.complete && e->all && u->core->config.rank > 0 && e->overtaken &&
	       now(u) - e->since_ns >= wait_ns;
}

static void take_left_over(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	(void)ckpt_fail_at(&u->error, CKPT_ENOSTEP, &(struct ckpt_where){.tier = "remote"},
		"all parts of step %llu are in %s, and rank 0 has it no longer and publishes no "
		"manifest",
		(unsigned long long)e->step, u->dest->label);
	end_absent(u, e);
}

/* A claim of this very job is heard of long before that, and what rank 0 had begun to publish is there by then. */
static bool is_taken_over(const struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	uint64_t since_ns = e->outdone_ns ? e->outdone_ns : now(u);

	e->outdone_ns = u->upload.outdone ? since_ns : 0;
	return u->upload.outdone && now(u) - since_ns >= OTHERS_NS;
}

/* This rank has done its part, and others have not, or rank 0 has not published. */
static void take_part(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	look_later(u, e, &e->since_ns);
	if (is_taken_over(u, e)) {
		(void)ckpt_fail_at(&u->error, CKPT_EFENCED,
			&(struct ckpt_where){.tier = "remote", .file = CKPT_NAME_GENS},
			"a later generation has taken over %s, and step %llu was not published "
			"there",
			u->dest->label, (unsigned long long)e->step);
		fail_entry(u, e);
		return;
	}
	if (is_left_over(u, e)) {
		take_left_over(u, e);
		return;
	}
	if (!u->upload.complete && is_given_up(u, e)) {
		(void)ckpt_fail_at(&u->error, CKPT_EINCOMPLETE,
			&(struct ckpt_where){.tier = "local"},
			"rank %u has not uploaded its part of it, or that is in the store of "
			"another node",
			u->upload.missing);
		fail_entry(u, e);
	}
}

static void succeed(struct ckpt_uploader *u)
{
	u->failures = 0;
	ckpt_scribe_succeeded(&u->scribe);
}

/* Memory that changed, or worse: it is no harm, because every byte is compared, but nothing that should be. */
static void forget_left(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	u->misled++;
	ckpt_leavings_free(e->left);
	e->left = NULL;
	ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
		"what staging memory has of step %llu of %s differs from what was saved: its file "
		"is uploaded",
		(unsigned long long)e->step, u->core->parts.label);
}

/* A claim has come since, which may go on from this very step: what was seen before says nothing then. */
static bool is_outdated(const struct ckpt_uploader *u, const struct ckpt_upload_entry *e)
{
	return e->parent && u->current_generation != ckpt_scan_newest_claim(&u->core->scan);
}

static void take_upload(struct ckpt_uploader *u)
{
	struct ckpt_upload_entry *e = u->current;
	int r = u->upload.task.result;

	u->current = NULL;
	if (u->upload.misled)
		forget_left(u, e);
	if (r != CKPT_EINUSE)
		e->held_ns = 0;
	if (r < 0) {
		take_failure(u, e, r);
		return;
	}
	succeed(u);
	if (!u->upload.going)
		e->going_ns = 0;
	if (is_outdated(u, e))
		return;
	if (u->upload.committed)
		take_success(u, e);
	else if (u->upload.going)
		take_going(u, e);
	else
		take_part(u, e);
}

/* Steps. */

static bool must_place(const struct ckpt_uploader *u)
{
	return !u->placed || u->placed_generation != ckpt_scan_newest_claim(&u->core->scan);
}

static void start_place(struct ckpt_uploader *u)
{
	ckpt_error_clear(&u->error);
	u->placed = false;
	u->placed_generation = ckpt_scan_newest_claim(&u->core->scan);
	u->place = (struct ckpt_upload_place){.core = u->core,
		.dest = u->dest,
		.stop = &u->stop,
		.err = &u->error,
		.waiter = &u->task};
	ckpt_upload_place_start(&u->place);
}

/* Only of what is here of earlier generations: nobody waits for it. */
static bool must_sieve(const struct ckpt_uploader *u)
{
	const struct ckpt_upload_entry *e = u->first;

	while (e && !e->all)
		e = e->next;
	return e && !u->sieved && u->core->config.remote_keep_last > 0;
}

static void start_sieve(struct ckpt_uploader *u)
{
	ckpt_error_clear(&u->error);
	u->sieve = (struct ckpt_sieve){
		.core = u->core, .dest = u->dest, .err = &u->error, .waiter = &u->task};
	ckpt_sieve_start(&u->sieve);
}

static void take_sieve(struct ckpt_uploader *u)
{
	struct ckpt_upload_entry *e = u->first;
	int r = u->sieve.task.result;

	if (r < 0)
		take_failure(u, NULL, r);
	while (r == 0 && e) {
		struct ckpt_upload_entry *next = e->next;
		if (e->all && !e->parent &&
			ckpt_sieve_holds_back(&u->sieve, e->generation, e->step)) {
			ckpt_log(u->core->parts.log, CKPT_LOG_INFO,
				"step %llu of %s is not sent: retention in %s has newer ones",
				(unsigned long long)e->step, u->core->parts.label, u->dest->label);
			ckpt_scribe_absent(&u->scribe, e->generation, e->step, 0);
			end_entry(u, e);
		}
		e = next;
	}
	u->sieved = r == 0;
	ckpt_sieve_clear(&u->sieve);
	ask_retention(u);
}

static void start_upload(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	ckpt_error_clear(&u->error);
	u->current = e;
	e->buried = false;
	u->begun = atomic_load(&u->bytes);
	u->current_generation = u->placed_generation;
	u->upload = (struct ckpt_upload){.core = u->core,
		.dest = u->dest,
		.generation = e->generation,
		.step = e->step,
		.all = e->all,
		.parent = e->parent || e->newest,
		.left = e->left,
		.bytes_left = &u->bytes_left,
		.stop = &u->stop,
		.err = &u->error,
		.counter = &u->bytes,
		.pacer = u->core->parts.remote.bucket ? NULL : &u->pacer,
		.waiter = &u->task};
	ckpt_upload_start(&u->upload);
}

/* The oldest that may be tried now; NULL: none, and `ret_at` says when one may. */
static struct ckpt_upload_entry *next_entry(struct ckpt_uploader *u, uint64_t *ret_at)
{
	uint64_t at = UINT64_MAX;

	for (struct ckpt_upload_entry *e = u->first; e; e = e->next) {
		if (e->retry_ns <= now(u))
			return e;
		at = ckpt_min_u64(at, e->retry_ns);
	}
	*ret_at = at;
	return NULL;
}

/* Somebody else has the store: what is in it is his to upload. */
static void look_at_fence(struct ckpt_uploader *u)
{
	if (!u->core->fenced || u->halted || u->stop)
		return;
	ckpt_error_clear(&u->error);
	halt(u, ckpt_fail(&u->error, CKPT_EFENCED, "a later generation has taken over the store %s",
			u->core->parts.label));
}

/* Whether there is something to do now; else the timer is set for when there may be. */
static bool is_due(struct ckpt_uploader *u)
{
	uint64_t at = UINT64_MAX;
	bool work = must_place(u) ? u->first || u->core->generation : next_entry(u, &at) != NULL;

	ckpt_core_timer_clear(u->core, &u->timer);
	if (u->stop)
		return true;
	look_at_fence(u);
	if (u->halted)
		return false;
	if (work && u->pause_ns <= now(u))
		return true;
	if (work)
		at = u->pause_ns;
	if (at < UINT64_MAX)
		pause_until(u, ckpt_max_u64(at, u->pause_ns));
	return false;
}

static int uploader_body(struct ckpt_task *task)
{
	struct ckpt_uploader *u = uploader_of(task);
	uint64_t at;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		CKPT_AWAIT(task, is_due(u));
		if (u->stop)
			return u->stop;
		if (must_place(u)) {
			start_place(u);
			CKPT_AWAIT(task, u->place.task.finished);
			u->placed = u->place.task.result == 0;
			if (!u->placed)
				take_failure(u, NULL, u->place.task.result);
			else
				succeed(u);
			ckpt_undertaker_wake(u->core);
			continue;
		}
		if (must_sieve(u)) {
			start_sieve(u);
			CKPT_AWAIT(task, u->sieve.task.finished);
			take_sieve(u);
			continue;
		}
		start_upload(u, next_entry(u, &at));
		CKPT_AWAIT(task, u->upload.task.finished);
		take_upload(u);
	}
	CKPT_TASK_END(task);
}

static void word_closed(const struct ckpt_uploader *u, struct ckpt_error *err)
{
	ckpt_error_clear(err);
	(void)ckpt_fail(err, CKPT_ECLOSED,
		"the engine of %s was closed before it was uploaded: that is done when the job is "
		"started again, or by `ckpt upload`",
		u->core->parts.label);
}

static void uploader_done(struct ckpt_task *task)
{
	struct ckpt_uploader *u = uploader_of(task);
	struct ckpt_error closed;

	ckpt_scribe_stop(&u->scribe);
	word_closed(u, &closed);
	end_all(u, &closed);
	ckpt_task_wake(u->core->closer);
}

/* From outside. */

static void wake(struct ckpt_uploader *u)
{
	ckpt_task_wake(&u->task);
}

int ckpt_uploader_open(struct ckpt_core *core, uint64_t every)
{
	if (!core->parts.remote.label)
		return 0;
	struct ckpt_uploader *u = ckpt_alloc(sizeof(*u));
	if (!u)
		return -ENOMEM;
	int r = ckpt_core_open_store(core, &core->parts.remote, &u->dest);
	if (r < 0) {
		ckpt_free(u);
		return r;
	}
	u->dest->tier = "remote";
	u->core = core;
	u->every = every;
	ckpt_pacer_init(&u->pacer, core, core->config.remote_bytes_per_s);
	ckpt_error_clear(&u->error);
	ckpt_error_clear(&u->lost);
	ckpt_error_clear(&u->scribe.error);
	core->uploader = u;
	return ckpt_undertaker_open(core, u->dest);
}

/* Steps of earlier generations: whoever keeps a store sends what is there. */
void ckpt_uploader_begin(struct ckpt_core *core)
{
	struct ckpt_uploader *u = core->uploader;
	const struct ckpt_scan *scan = &core->scan;

	if (!u)
		return;
	for (size_t i = 0; i < scan->step_count && ckpt_core_keeps(core); i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->state != CKPT_STEP_COMMITTED || !s->in_lineage ||
			!ckpt_uploader_takes(core, s->step))
			continue;
		struct ckpt_upload_entry *e = put_found(u, s);
		if (e)
			e->newest = u->count == 1;
	}
	ckpt_scribe_start(&u->scribe, core);
	ckpt_task_start(&u->task, &core->sched, uploader_body, uploader_done);
	ckpt_undertaker_begin(core);
}

void ckpt_uploader_add(struct ckpt_core *core, struct ckpt_upload_entry *e, uint64_t generation,
	uint64_t step, uint64_t bytes, struct ckpt_leavings *left)
{
	struct ckpt_uploader *u = core->uploader;

	CKPT_ASSERT(ckpt_uploader_takes(core, step) == (e != NULL));
	if (!e) {
		ckpt_leavings_free(left);
		return;
	}
	atomic_fetch_add(&e->owners, 1);
	put(u, e, generation, step, bytes);
	u->yielded = false;
	e->left = left;
	if (u->stop || u->halted) {
		if (u->stop)
			word_closed(u, &e->error);
		else
			e->error = u->error;
		ckpt_scribe_unsent(&u->scribe, generation, step);
		end_entry(u, e);
	}
	ckpt_scribe_touch(&u->scribe);
	wake(u);
}

void ckpt_uploader_yield(struct ckpt_core *core)
{
	struct ckpt_uploader *u = core->uploader;

	if (!u || u->yielded || !u->first)
		return;
	u->yielded = true;
	ckpt_log(core->parts.log, CKPT_LOG_ERROR,
		"%s is full: of the %zu steps that are not in %s yet, retention removes what it "
		"would have removed without it",
		core->parts.label, u->count, u->dest->label);
	ask_retention(u);
}

/* The newest of the lineage that goes there. If none does, what the job goes on from: something of it is to be there. */
static const struct ckpt_scan_step *find_parent(struct ckpt_core *core)
{
	struct ckpt_scan *scan = &core->scan;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->in_lineage && s->state == CKPT_STEP_COMMITTED &&
			ckpt_uploader_takes(core, s->step))
			return s;
	}
	return ckpt_scan_find(scan, core->parent_generation, core->parent_step);
}

/*
 * What the sieve has held back, or retention there removed, by the lineage before. If it is there that costs one
 * request.
 */
static void put_parent(struct ckpt_uploader *u)
{
	struct ckpt_core *core = u->core;
	const struct ckpt_scan_step *s = find_parent(core);

	if (!s || s->state != CKPT_STEP_COMMITTED || !ckpt_core_keeps(core) || u->stop || u->halted)
		return;
	struct ckpt_upload_entry *e = *find(u, s->generation, s->step);
	if (!e || e->generation != s->generation || e->step != s->step)
		e = put_found(u, s);
	if (!e)
		return;
	e->parent = true;
	e->since_ns = 0;
}

void ckpt_uploader_note_claim(struct ckpt_core *core)
{
	if (!core->uploader)
		return;
	put_parent(core->uploader);
	ckpt_undertaker_note_claim(core);
	ckpt_scribe_claimed(&core->uploader->scribe);
	wake(core->uploader);
}

bool ckpt_uploader_sends(const struct ckpt_core *core)
{
	const struct ckpt_uploader *u = core->uploader;

	return core->generation > 0 && u->placed && u->placed_generation == core->generation &&
	       !u->halted;
}

bool ckpt_uploader_rests(const struct ckpt_core *core)
{
	const struct ckpt_upload_entry *e = core->uploader->first;

	while (e && e->buried)
		e = e->next;
	return !e && ckpt_uploader_sends(core);
}

void ckpt_uploader_stop(struct ckpt_core *core)
{
	struct ckpt_uploader *u = core->uploader;

	if (!u)
		return;
	ckpt_undertaker_stop(core);
	u->stop = CKPT_ECLOSED;
	ckpt_task_wake(&u->upload.fetch.task);
	wake(u);
}

bool ckpt_uploader_ended(const struct ckpt_core *core)
{
	return !core->uploader ||
	       (!ckpt_task_active(&core->uploader->task) && ckpt_undertaker_ended(core) &&
		       ckpt_scribe_ended(&core->uploader->scribe));
}

void ckpt_uploader_close(struct ckpt_core *core)
{
	struct ckpt_uploader *u = core->uploader;

	if (!u)
		return;
	CKPT_ASSERT(ckpt_uploader_ended(core));
	ckpt_undertaker_close(core);
	ckpt_core_timer_clear(core, &u->timer);
	ckpt_scribe_close(&u->scribe);
	ckpt_store_close(u->dest);
	ckpt_free(u);
	core->uploader = NULL;
}
