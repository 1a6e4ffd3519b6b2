/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt of a restore: a step is selected, opened and read, and looked for again if that fails. If a process whose
 * locks do not work here has deleted it, it is not damaged: another step is selected, unless the caller has been given
 * this one.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/restore/restore_state.h"

static struct ckpt_restore *restore_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_restore, trip);
}

static void start_pick(struct ckpt_restore *r)
{
	r->pick.core = r->core;
	r->pick.wanted = r->wanted;
	r->pick.stop = &r->stop;
	r->pick.err = &r->why;
	r->pick.waiter = &r->trip;
	ckpt_select_start(&r->pick);
}

static void take_pick(struct ckpt_restore *r)
{
	r->result = r->pick.task.result ? r->pick.task.result : r->stop;
	atomic_store(&r->chosen_step, r->pick.chosen.step);
	atomic_store(&r->chosen_generation, r->pick.chosen.generation);
	/* A manifest that does not verify is a finding of a verification. */
	bool found = r->result == CKPT_EINTEGRITY || r->result == CKPT_EFORMAT ||
		     r->result == CKPT_EVERSION;
	if (found && r->sink == CKPT_SINK_NONE && r->pick.chosen.generation) {
		struct ckpt_error why = r->why;
		(void)ckpt_sink_note(r);
		r->why = why;
	}
}

static bool follows(const struct ckpt_restore *r)
{
	return r->ranks && r->core->config.rank > 0;
}

static bool leads(const struct ckpt_restore *r)
{
	return r->ranks && r->core->config.rank == 0;
}

static void sink_task_done(struct ckpt_task *task)
{
	ckpt_task_wake(&CKPT_CONTAINER(task, struct ckpt_restore, sink_task)->trip);
}

void ckpt_restore_look(struct ckpt_restore *restore, struct ckpt_task *waiter)
{
	restore->presence = (struct ckpt_step_exists){
		.core = restore->core, .pick = &restore->pick, .waiter = waiter};
	ckpt_step_exists_start(&restore->presence);
}

static bool is_doubtful(const struct ckpt_restore *r)
{
	return !r->stop && r->pick.manifest.ranks && r->pick.task.result == 0 &&
	       !r->step_copy.publish_tried && ckpt_step_exists_is_doubtful(r->result);
}

/* The step is gone: the errors of reading it do not apply. */
static int word_gone(struct ckpt_restore *r)
{
	bool latest = r->wanted == CKPT_STEP_LATEST;

	ckpt_findings_clear(&r->findings);
	ckpt_error_clear(&r->why);
	/* A caller that asks for the latest and is told that there is none starts from nothing. */
	return ckpt_fail_at(&r->why, latest ? -EBUSY : CKPT_ENOSTEP,
		&(struct ckpt_where){.tier = ckpt_store_tier(r->core->store), .file = r->pick.path},
		"step %llu of %s was deleted while it was read%s",
		(unsigned long long)r->pick.chosen.step, r->core->parts.label,
		latest ? ": ask for the latest again" : "");
}

static int trip_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = restore_of(task);

	CKPT_TASK_BEGIN(task);
	if (follows(r)) {
		CKPT_AWAIT(task, r->ranks->call.task.finished);
		r->result = ckpt_restore_sync_heard(r);
	}
	if (r->result == 0) {
		start_pick(r);
		CKPT_AWAIT(task, r->pick.task.finished);
		take_pick(r);
	}
	if (leads(r) && r->result == 0) {
		ckpt_restore_sync_tell(r);
		CKPT_AWAIT(task, r->ranks->call.task.finished);
		r->result = r->stop ? r->stop : ckpt_restore_sync_told(r);
	}
	if (r->result == 0) {
		ckpt_task_start(
			&r->sink_task, &r->core->sched, ckpt_sink_of(r->sink), sink_task_done);
		CKPT_AWAIT(task, r->sink_task.finished);
		r->result = r->sink_task.result;
	}
	if (is_doubtful(r)) {
		ckpt_restore_look(r, task);
		CKPT_AWAIT(task, r->presence.task.finished);
		/* A caller that was told the end may be reading the findings. */
		if (r->presence.gone && !r->stop)
			r->result = word_gone(r);
	}
	/* The error is that of a cancelled request. */
	if (r->stop && r->result == -ECANCELED)
		r->result = r->stop;
	CKPT_TASK_END(task);
}

static void trip_done(struct ckpt_task *task)
{
	ckpt_task_wake(&restore_of(task)->task);
}

void ckpt_restore_attempt_start(struct ckpt_restore *restore)
{
	ckpt_task_start(&restore->trip, &restore->core->sched, trip_body, trip_done);
}

bool ckpt_restore_attempt_again(const struct ckpt_restore *restore)
{
	/* With other ranks, all hear that the step is gone and ask again; so does the caller of an export. */
	bool alone = !restore->ranks && restore->sink != CKPT_SINK_STORE &&
		     restore->sink != CKPT_SINK_RECODE;
	bool opened = ckpt_latch_get((struct ckpt_latch *)&restore->latch) & CKPT_DONE_OPENED;

	return restore->presence.gone && alone && !opened && !restore->stop &&
	       ckpt_select_is_relative(restore->wanted) && restore->trips < CKPT_SELECT_TRIES;
}

void ckpt_restore_attempt_reset(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;

	ckpt_log(r->core->parts.log, CKPT_LOG_WARN,
		"step %llu of %s was deleted while it was opened: choosing another one",
		(unsigned long long)r->pick.chosen.step, r->core->parts.label);
	ckpt_shard_load_clear(&r->load);
	r->load = (struct ckpt_shard_load){0};
	ckpt_replica_check_clear(&r->replicas);
	r->differ[0] = 0;
	ckpt_shard_location_clear(&r->elsewhere);
	ckpt_catalog_map_reader_free(r->catalog);
	r->catalog = NULL;
	ckpt_select_clear(&r->pick);
	r->pick = (struct ckpt_select){.lock = {.fd = -1}};
	ckpt_error_clear(&r->why);
	atomic_store(&r->bytes_done, 0);
	atomic_store(&r->bytes_total, 0);
	r->presence.gone = false;
	r->result = 0;
	r->code = 0;
}
