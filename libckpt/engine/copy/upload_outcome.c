/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a try to upload a step: it is there, is tried again, or will never be there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/copy/record_writer.h"
#include "engine/copy/remote_gc.h"
#include "engine/copy/upload_queue.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"

#define SECOND_NS    UINT64_C(1000000000)
#define PAUSE_MAX_S  60                                      /* between tries */
#define OTHERS_NS    (UINT64_C(4) * PAUSE_MAX_S * SECOND_NS) /* others have tried again by then */
#define LOOK_S       2 /* between looks for what others send */
#define LOOK_NS      (LOOK_S * SECOND_NS)
#define HELD_S       30 /* without change, and who does not try for ever has looked enough */
#define FAILURES_MAX 5  /* of one step, of what is here */
#define GOING_GRACES 4  /* in which a removal ends, or a mark is taken away */

static uint64_t now(const struct ckpt_upload_queue *u)
{
	return ckpt_env_now(u->core->parts.env);
}

/* What is kept for it no longer is. */
void ckpt_upload_queue_ask_retention(struct ckpt_upload_queue *u)
{
	if (u->core->lineage->generation > 0)
		ckpt_gc_ask(u->core, CKPT_GC_RETAIN);
}

/* 1, 2, 4 ... 60 seconds, each less up to a half, so that the ranks of a job do not come back as one. */
static uint64_t pause_ns(struct ckpt_upload_queue *u, unsigned failures)
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
	bool damage = ckpt_code_is_damage(code) || code == CKPT_EVERSION;

	return (damage && !is_outside(error)) || code == -EFBIG || code == -EINVAL;
}

static void note_lost(struct ckpt_upload_queue *u)
{
	if (u->lost.code == 0)
		u->lost = u->error;
}

/* For whoever waits, -ETIMEDOUT means that it may come yet. */
static void word_end(struct ckpt_upload_queue *u)
{
	if (u->error.code == -ETIMEDOUT)
		u->error.code = CKPT_ENETWORK;
}

void ckpt_upload_queue_end_all(struct ckpt_upload_queue *u, const struct ckpt_error *why)
{
	while (u->first) {
		if (!u->first->known)
			ckpt_record_writer_unsent(
				u->record_writer, u->first->generation, u->first->step);
		u->first->error = *why;
		ckpt_upload_queue_end_entry(u, u->first);
	}
}

void ckpt_upload_queue_halt(struct ckpt_upload_queue *u, int code)
{
	word_end(u);
	note_lost(u);
	u->halted = code;
	u->core->stats.uploads_failed += u->count;
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "nothing of %s is uploaded any more: %.800s",
		u->core->parts.label, u->error.message);
	ckpt_record_writer_failed(u->record_writer, &u->error, u->failures + 1, 0);
	ckpt_upload_queue_end_all(u, &u->error);
	ckpt_upload_queue_ask_retention(u);
}

/* Seconds since the newest step that is there was sent, as far as is known; -1: none is. */
static int64_t newest_age_s(const struct ckpt_upload_queue *u)
{
	uint64_t wall_ms = ckpt_env_wall_ms(u->core->parts.env);

	if (u->record_writer->uploaded_generation == 0)
		return -1;
	return (int64_t)((wall_ms - ckpt_min_u64(wall_ms, u->record_writer->uploaded_wall_ms)) /
			 1000);
}

/* Says the first of a row loudly. */
static void back_off(struct ckpt_upload_queue *u)
{
	char newest[80] = "none has been sent yet";
	int64_t age_s = newest_age_s(u);

	if (age_s >= 0)
		(void)snprintf(newest, sizeof(newest), "the newest sent is step %llu, %lld s ago",
			(unsigned long long)u->record_writer->uploaded_step, (long long)age_s);
	uint64_t wait_ns = pause_ns(u, ++u->failures);

	u->pause_ns = now(u) + wait_ns;
	u->core->stats.uploads_retried++;
	ckpt_record_writer_failed(u->record_writer, &u->error, u->failures, u->pause_ns);
	ckpt_log(u->core->parts.log, u->failures == 1 ? CKPT_LOG_ERROR : CKPT_LOG_WARN,
		"uploading %s: try %u failed, the next is in %.0f s, %zu steps wait, %s: %.700s",
		u->core->parts.label, u->failures, (double)wait_ns / SECOND_NS, u->count, newest,
		u->error.message);
}

/* Whoever waits for it wants to know, rather than to wait. */
static bool has_tried_enough(struct ckpt_upload_queue *u)
{
	return u->core->config.remote_tries > 0 && u->failures + 1 >= u->core->config.remote_tries;
}

static void fail_entry(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	word_end(u);
	u->core->stats.uploads_failed++;
	u->error.step = (int64_t)e->step;
	note_lost(u);
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "step %llu of %s is not uploaded: %.800s",
		(unsigned long long)e->step, u->core->parts.label, u->error.message);
	e->error = u->error;
	ckpt_record_writer_absent(u->record_writer, e->generation, e->step, u->error.code);
	ckpt_upload_queue_end_entry(u, e);
	ckpt_upload_queue_ask_retention(u);
}

/* The step will not be there, and the others may. */
static bool is_lost(const struct ckpt_upload_queue *u, struct ckpt_upload_entry *e, int code)
{
	if (is_of_step(&u->error, code) || code == CKPT_ENOSTEP || u->upload.differs)
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
static void word_held(struct ckpt_upload_queue *u, const struct ckpt_upload_entry *e)
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
static bool await_holder(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
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
	ckpt_record_writer_failed(
		u->record_writer, &u->error, 1 + waited_ns / LOOK_NS, u->pause_ns);
	if (!e->held)
		ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
			"step %llu waits, and is looked at again every %u s: %.800s",
			(unsigned long long)e->step, LOOK_S, u->error.message);
	e->held = true;
	return true;
}

/* u->error, of which nothing can be done but what its kind allows. `e` NULL: of the place. */
void ckpt_upload_queue_take_failure(
	struct ckpt_upload_queue *u, struct ckpt_upload_entry *e, int code)
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
		ckpt_upload_queue_halt(u, code);
	else if (lost)
		fail_entry(u, e);
	else
		back_off(u);
}

/* One that has not all its parts, though a later one has: a rank has given its part up. */
static void overtake(struct ckpt_upload_queue *u, const struct ckpt_upload_entry *by)
{
	for (struct ckpt_upload_entry *e = u->first; e; e = e->next)
		e->overtaken =
			e->overtaken || ckpt_upload_entry_before(e, by->generation, by->step);
}

static void take_success(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	struct ckpt_core *core = u->core;

	overtake(u, e);
	core->stats.uploads_done++;
	ckpt_record_writer_there(u->record_writer, e->generation, e->step);
	ckpt_log(core->parts.log, CKPT_LOG_INFO, "step %llu of %s is in %s, %zu wait",
		(unsigned long long)e->step, core->parts.label, u->dest->label, u->count - 1);
	ckpt_upload_queue_end_entry(u, e);
	ckpt_upload_queue_ask_retention(u);
	ckpt_remote_gc_note(core);
}

/* The later it is, the more seldom. */
static void look_later(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e, uint64_t *since_ns)
{
	if (*since_ns == 0)
		*since_ns = now(u);
	e->retry_ns = now(u) + ckpt_min_u64(ckpt_max_u64(LOOK_NS, (now(u) - *since_ns) / 4),
				       PAUSE_MAX_S * SECOND_NS);
}

/* Retention here takes the tombstone of what the job goes on from away again; somebody else's removal ends. */
static bool is_awaited(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	if (!e->parent)
		return false;
	look_later(u, e, &e->going_ns);
	e->buried = now(u) - e->going_ns < GOING_GRACES * ckpt_remote_gc_others_grace_ns(u->core);
	if (e->buried)
		ckpt_remote_gc_hurry(u->core);
	return e->buried;
}

/*
 * Nobody ends the removal, and as long as nothing of this generation is there the step is all that it would go on from:
 * somebody may end it yet.
 */
static bool is_needed(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	uint64_t generation = u->core->lineage->generation;

	if (!e->parent || generation == 0 || u->record_writer->uploaded_generation >= generation)
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
static void end_absent(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	ckpt_log(u->core->parts.log, CKPT_LOG_INFO, "%s", u->error.message);
	e->error = u->error;
	ckpt_record_writer_absent(u->record_writer, e->generation, e->step, 0);
	ckpt_upload_queue_end_entry(u, e);
	ckpt_upload_queue_ask_retention(u);
}

bool ckpt_upload_queue_is_lost(const struct ckpt_upload_queue *u, const struct ckpt_upload_entry *e)
{
	struct ckpt_core *core = u->core;

	if (!core->config.lost_nodes || core->lineage->generation == 0 ||
		e->generation == core->lineage->generation || e->parent)
		return false;
	const struct ckpt_scan_step *s =
		ckpt_scan_find(&core->lineage->scan, e->generation, e->step);
	return s && !s->in_lineage;
}

void ckpt_upload_queue_end_lost(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	ckpt_error_clear(&u->error);
	(void)ckpt_fail_at(&u->error, CKPT_ENOSTEP, &(struct ckpt_where){.tier = "local"},
		"step %llu of generation %llu is not uploaded: the job goes on without it, because "
		"a node was lost",
		(unsigned long long)e->step, (unsigned long long)e->generation);
	end_absent(u, e);
}

/* What lets it go there is not for this job to undo. */
static void take_going(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
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
static bool is_given_up(const struct ckpt_upload_queue *u, const struct ckpt_upload_entry *e)
{
	uint64_t wait_ns = e->parent ? GOING_GRACES * ckpt_remote_gc_others_grace_ns(u->core) : 0;

	/* Where nobody else is at work, nobody else's part will come. */
	if (e->all && u->core->config.world == 1)
		return true;
	return e->overtaken && now(u) - e->since_ns >= wait_ns;
}

/*
 * All parts of an older step are there. Rank 0 has sent later ones, and would have published this one by now if its own
 * store had it: that has let it go when it was there, and a removal that was broken off took the manifest alone.
 */
static bool is_left_over(const struct ckpt_upload_queue *u, const struct ckpt_upload_entry *e)
{
	uint64_t wait_ns = ckpt_max_u64(
		OTHERS_NS, e->parent ? GOING_GRACES * ckpt_remote_gc_others_grace_ns(u->core) : 0);

	return u->upload.complete && e->all && u->core->config.rank > 0 && e->overtaken &&
	       now(u) - e->since_ns >= wait_ns;
}

static void take_left_over(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	(void)ckpt_fail_at(&u->error, CKPT_ENOSTEP, &(struct ckpt_where){.tier = "remote"},
		"all parts of step %llu are in %s, and rank 0 has it no longer and publishes no "
		"manifest",
		(unsigned long long)e->step, u->dest->label);
	end_absent(u, e);
}

/* A claim of this very job is heard of long before that, and what rank 0 had begun to publish is there by then. */
static bool is_taken_over(const struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	uint64_t since_ns = e->outdone_ns ? e->outdone_ns : now(u);

	e->outdone_ns = u->upload.outdone ? since_ns : 0;
	return u->upload.outdone && now(u) - since_ns >= OTHERS_NS;
}

/* This rank has done its part, and others have not, or rank 0 has not published. */
static void take_part(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	look_later(u, e, &e->since_ns);
	if (ckpt_upload_queue_is_lost(u, e)) {
		ckpt_upload_queue_end_lost(u, e);
		return;
	}
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

void ckpt_upload_queue_succeed(struct ckpt_upload_queue *u)
{
	u->failures = 0;
	ckpt_record_writer_succeeded(u->record_writer);
}

/* Memory that changed, or worse: it is no harm, because every byte is compared, but nothing that should be. */
static void forget_left(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	u->misled++;
	ckpt_staged_shard_free(e->left);
	e->left = NULL;
	ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
		"what staging memory has of step %llu of %s differs from what was saved: its file "
		"is uploaded",
		(unsigned long long)e->step, u->core->parts.label);
}

/* A claim has come since, which may go on from this very step: what was seen before says nothing then. */
static bool is_outdated(const struct ckpt_upload_queue *u, const struct ckpt_upload_entry *e)
{
	return e->parent &&
	       u->current_generation != ckpt_scan_newest_claim(&u->core->lineage->scan);
}

void ckpt_upload_queue_take_upload(struct ckpt_upload_queue *u)
{
	struct ckpt_upload_entry *e = u->current;
	int r = u->upload.task.result;

	u->current = NULL;
	/* Retention could not have it while it was being sent. */
	if (u->yielded)
		ckpt_upload_queue_ask_retention(u);
	if (u->upload.misled)
		forget_left(u, e);
	if (r != CKPT_EINUSE)
		e->held_ns = 0;
	if (r < 0) {
		ckpt_upload_queue_take_failure(u, e, r);
		return;
	}
	ckpt_upload_queue_succeed(u);
	if (!u->upload.deleting)
		e->going_ns = 0;
	if (is_outdated(u, e))
		return;
	if (u->upload.committed)
		take_success(u, e);
	else if (u->upload.deleting)
		take_going(u, e);
	else
		take_part(u, e);
}
