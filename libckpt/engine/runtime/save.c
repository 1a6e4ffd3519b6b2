/* SPDX-License-Identifier: Apache-2.0 */
/* What user threads do before the core has a save: the busy policy, the order of steps. */
#include <errno.h>

#include "base/error.h"
#include "base/thread.h"
#include "engine/copy/upload_queue.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/runtime_state.h"
#include "engine/save/commit.h"

/* For a save that has ended and is cleaned up: soon over, if the storage answers at all. */
#define WAIT_PATIENCE_MS 10000
#define SKIP_PATIENCE_MS 1000

static int check_step_locked(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	if (step > CKPT_STEP_MAX)
		return ckpt_fail(err, -EINVAL, "step %llu is over %llu", (unsigned long long)step,
			(unsigned long long)CKPT_STEP_MAX);
	if (engine->any_step && step <= engine->last_step)
		return ckpt_fail(err, CKPT_ESTEP,
			"step %llu is not after step %llu, the last one of this run: resume from "
			"an "
			"older step to save it again",
			(unsigned long long)step, (unsigned long long)engine->last_step);
	return 0;
}

int ckpt_runtime_check_step(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	(void)pthread_mutex_lock(&engine->lock);
	int r = check_step_locked(engine, step, err);
	(void)pthread_mutex_unlock(&engine->lock);
	return r;
}

static int last_waits_for_fence(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	return ckpt_fail(err, -EDEADLK,
		"step %llu cannot start: that of step %llu waits for ckpt_save_fence()",
		(unsigned long long)step, (unsigned long long)ckpt_save_step(engine->last));
}

static int last_still_held(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	return ckpt_fail(err, -ETIMEDOUT,
		"step %llu cannot start: the storage still holds that of step %llu",
		(unsigned long long)step, (unsigned long long)ckpt_save_step(engine->last));
}

/* CKPT_ESKIPPED: rank 0 has said so. 0: the last save is over, or neither within the time. */
static int ask_rank_0(
	struct ckpt_engine *engine, uint64_t step, uint64_t patience_ms, struct ckpt_error *err)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_skipper), NULL, err);

	if (!command)
		return -ENOMEM;
	struct ckpt_skipper *skipper = CKPT_CONTAINER(command, struct ckpt_skipper, command);
	skipper->step = step;
	skipper->patience_ns = patience_ms * 1000000;
	int r = ckpt_runtime_run(engine, command, ckpt_skipper_body, err);
	ckpt_command_unref(command);
	if (r == CKPT_ESKIPPED)
		atomic_fetch_add(&engine->saves_skipped, 1);
	return r;
}

static bool last_is_gone(struct ckpt_engine *engine)
{
	return !engine->last || (ckpt_latch_get(ckpt_save_latch(engine->last)) & CKPT_DONE_GONE);
}

/* Policy CKPT_BUSY_SKIP, and the last save still runs: rank 0 says what becomes of this step. */
static int wait_for_rank_0(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	bool closed = ckpt_save_gate_closed(engine->last);
	/* Before this thread gives up waiting for the answer. */
	uint64_t patience_ms =
		closed ? SKIP_PATIENCE_MS : (uint64_t)engine->core.config.save_timeout_ms / 4 * 3;

	int r = ask_rank_0(engine, step, patience_ms, err);
	if (r < 0 || last_is_gone(engine))
		return r;
	return closed ? last_waits_for_fence(engine, step, err)
		      : last_still_held(engine, step, err);
}

/* The last save has let go of everything, or the policy says no. */
static int wait_for_last(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	if (last_is_gone(engine))
		return 0;
	if (engine->busy == CKPT_BUSY_SKIP && engine->core.config.rank > 0)
		return wait_for_rank_0(engine, step, err);
	struct ckpt_latch *latch = ckpt_save_latch(engine->last);
	/* What has ended is only cleaned up, unless the storage hangs. */
	bool ended = ckpt_latch_get(latch) & CKPT_DONE_END;
	uint64_t patience_ms = engine->core.config.save_timeout_ms;
	if (engine->busy == CKPT_BUSY_SKIP)
		patience_ms = ended ? ckpt_min_u64(patience_ms, SKIP_PATIENCE_MS) : 0;
	else if (ended)
		patience_ms = ckpt_min_u64(patience_ms, WAIT_PATIENCE_MS);
	else if (ckpt_save_gate_closed(engine->last))
		return last_waits_for_fence(engine, step, err);
	uint64_t before_ns = ckpt_clock_ns();
	uint32_t bits = ckpt_latch_wait(latch, CKPT_DONE_GONE, (int)patience_ms);
	if (!(bits & CKPT_DONE_GONE) && engine->busy == CKPT_BUSY_SKIP) {
		atomic_fetch_add(&engine->saves_skipped, 1);
		return ckpt_fail(err, CKPT_ESKIPPED,
			"step %llu was skipped: the save of step %llu still runs",
			(unsigned long long)step, (unsigned long long)ckpt_save_step(engine->last));
	}
	atomic_fetch_add(&engine->saves_waited, 1);
	atomic_fetch_add(&engine->saves_waited_ns, ckpt_clock_ns() - before_ns);
	return bits & CKPT_DONE_GONE ? 0 : last_still_held(engine, step, err);
}

static int start_in_turn(struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err)
{
	uint64_t step = ckpt_save_step(save);

	int r = wait_for_last(engine, step, err);
	if (r < 0)
		return r;
	r = ckpt_runtime_claim_in_turn(engine, save, err);
	if (r < 0)
		return r;
	r = ckpt_runtime_check_step(engine, step, err);
	if (r < 0)
		return r;
	struct ckpt_plan *plan = engine->last ? ckpt_save_take_plan(engine->last) : NULL;
	r = ckpt_save_prepare(save, &plan, err);
	(void)pthread_mutex_lock(&engine->lock);
	ckpt_save_unref(engine->last);
	engine->last = NULL;
	if (r == 0) {
		engine->any_step = true;
		engine->last_step = step;
		engine->last = ckpt_save_ref(save);
		ckpt_save_post(save);
	}
	(void)pthread_mutex_unlock(&engine->lock);
	return r;
}

/* The other ranks are told that this step is of no rank: it cannot be tried again. */
static void note_refused(struct ckpt_engine *engine, uint64_t step)
{
	if (engine->core.config.world == 1)
		return;
	(void)pthread_mutex_lock(&engine->lock);
	if (engine->generation && (!engine->any_step || step > engine->last_step)) {
		engine->any_step = true;
		engine->last_step = step;
	}
	(void)pthread_mutex_unlock(&engine->lock);
}

int ckpt_runtime_start(struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err)
{
	int r = ckpt_runtime_take_turn(engine, err);

	if (r == 0) {
		r = start_in_turn(engine, save, err);
		ckpt_runtime_end_turn(engine);
	}
	if (r < 0) {
		note_refused(engine, ckpt_save_step(save));
		ckpt_save_refuse(save, err);
	}
	return r;
}

void ckpt_runtime_refuse(
	struct ckpt_engine *engine, struct ckpt_save *save, const struct ckpt_error *why)
{
	(void)pthread_mutex_lock(&engine->lock);
	/* Whoever has the turn sees to it. */
	if (engine->core.config.world > 1 && !engine->turn && !engine->generation)
		ckpt_runtime_claim_refused(engine, save);
	(void)pthread_mutex_unlock(&engine->lock);
	note_refused(engine, ckpt_save_step(save));
	ckpt_save_refuse(save, why);
}

/* 0, or what the save fails with. -ETIMEDOUT and `*ret_over` false: not yet. */
static int ready_in_turn(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over)
{
	int r = ckpt_runtime_claim_ready(engine, save, timeout_ms, err, ret_over);

	if (r < 0 || last_is_gone(engine) || ckpt_save_gate_closed(engine->last))
		return r;
	if (engine->busy == CKPT_BUSY_SKIP && engine->core.config.rank == 0)
		return 0;
	if (engine->busy == CKPT_BUSY_SKIP)
		r = ask_rank_0(engine, ckpt_save_step(save), (uint64_t)timeout_ms, err);
	else
		(void)ckpt_latch_wait(ckpt_save_latch(engine->last), CKPT_DONE_GONE, timeout_ms);
	*ret_over = r < 0 || last_is_gone(engine);
	return r < 0 || *ret_over ? r : -ETIMEDOUT;
}

int ckpt_runtime_ready(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over)
{
	*ret_over = false;
	if (!ckpt_runtime_take_turn_within(engine, timeout_ms))
		return -ETIMEDOUT;
	*ret_over = true;
	int r = ready_in_turn(engine, save, timeout_ms, err, ret_over);
	ckpt_runtime_end_turn(engine);
	if (r < 0 && *ret_over) {
		note_refused(engine, ckpt_save_step(save));
		ckpt_save_refuse(save, err);
	}
	return r;
}

static struct ckpt_upload_entry *last_upload(
	struct ckpt_engine *engine, struct ckpt_error *err, int *ret_code)
{
	struct ckpt_upload_entry *entry = NULL;
	struct ckpt_command *command = ckpt_runtime_command(
		engine, sizeof(struct ckpt_last_upload), ckpt_last_upload_clear, err);

	if (!command) {
		*ret_code = -ENOMEM;
		return NULL;
	}
	struct ckpt_last_upload *last = CKPT_CONTAINER(command, struct ckpt_last_upload, command);
	*ret_code = ckpt_runtime_run(engine, command, ckpt_last_upload_body, err);
	if (*ret_code == 0) {
		entry = last->entry;
		last->entry = NULL;
	}
	ckpt_command_unref(command);
	return entry;
}

int ckpt_runtime_drain_remote(struct ckpt_engine *engine, int timeout_ms, struct ckpt_error *err)
{
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);

	if (!engine->remote.label)
		return ckpt_fail(err, CKPT_ELEVEL, "%s has no remote store", engine->label);
	for (;;) {
		int r = 0;
		struct ckpt_upload_entry *entry = last_upload(engine, err, &r);
		if (!entry)
			return r;
		uint32_t bits = ckpt_latch_wait_until(&entry->latch, CKPT_DONE_END, deadline_ns);
		unsigned long long step = entry->step;
		ckpt_upload_entry_unref(entry);
		if (!(bits & CKPT_DONE_END))
			return ckpt_fail(err, -ETIMEDOUT,
				"step %llu is not in %s yet; if that fails, the log says why", step,
				engine->remote.label);
	}
}

int ckpt_runtime_drain(struct ckpt_engine *engine, int timeout_ms, struct ckpt_error *err)
{
	(void)pthread_mutex_lock(&engine->lock);
	struct ckpt_save *last = engine->last ? ckpt_save_ref(engine->last) : NULL;
	(void)pthread_mutex_unlock(&engine->lock);
	if (!last)
		return 0;
	uint32_t bits = ckpt_latch_wait(ckpt_save_latch(last), CKPT_DONE_END, timeout_ms);
	unsigned long long step = ckpt_save_step(last);
	ckpt_save_unref(last);
	if (bits & CKPT_DONE_END)
		return 0;
	return ckpt_fail(err, -ETIMEDOUT, "the save of step %llu still runs", step);
}
