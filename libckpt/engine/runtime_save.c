/* SPDX-License-Identifier: Apache-2.0 */
/* What user threads do before the core has a save: the busy policy, the claim, the order of steps. */
#include <errno.h>

#include "base/fail.h"
#include "base/thread.h"
#include "engine/claim.h"
#include "engine/lister.h"
#include "engine/runtime_state.h"
#include "engine/save_ranks.h"

#define PATIENCE_MIN_MS  10000 /* a store with thousands of steps takes a while to read */
/* For a save that has ended and is cleaned up: soon over, if the storage answers at all. */
#define WAIT_PATIENCE_MS 10000
#define SKIP_PATIENCE_MS 1000

struct ckpt_command *ckpt_runtime_command(struct ckpt_engine *engine, size_t size,
	void (*clear)(struct ckpt_command *command), struct ckpt_error *err)
{
	struct ckpt_command *command = ckpt_command_new(&engine->core, size, clear);

	if (!command)
		(void)ckpt_fail(err, -ENOMEM, "out of memory");
	return command;
}

int ckpt_runtime_patience_ms(const struct ckpt_engine *engine)
{
	return (int)ckpt_max_u64(engine->core.config.save_timeout_ms, PATIENCE_MIN_MS);
}

int ckpt_runtime_no_answer(struct ckpt_engine *engine, struct ckpt_error *err)
{
	return ckpt_fail_at(err, -ETIMEDOUT,
		&(struct ckpt_where){.tier = "local", .file = engine->label},
		"the storage of %s has not answered within %d s: see whether its disk hangs",
		engine->label, ckpt_runtime_patience_ms(engine) / 1000);
}

static bool has_ended(struct ckpt_command *command, int timeout_ms)
{
	return (ckpt_latch_wait(&command->latch, CKPT_DONE_END, timeout_ms) & CKPT_DONE_END) != 0;
}

static int take_result(
	struct ckpt_engine *engine, struct ckpt_command *command, struct ckpt_error *err)
{
	int r = command->result;

	if (r < 0 && command->error.code < 0)
		(void)ckpt_error_copy(&command->error, err);
	else if (r < 0)
		(void)ckpt_fail(err, r, "%s: %s", engine->label, ckpt_code_text(r));
	return r;
}

int ckpt_runtime_run(struct ckpt_engine *engine, struct ckpt_command *command, ckpt_task_fn *body,
	struct ckpt_error *err)
{
	CKPT_ASSERT(command->core == &engine->core);
	ckpt_command_post(command, body);
	if (!has_ended(command, ckpt_runtime_patience_ms(engine)))
		return ckpt_runtime_no_answer(engine, err);
	return take_result(engine, command, err);
}

/* One thread at a time goes on from here to end_turn(). */
static bool take_turn_within(struct ckpt_engine *engine, int timeout_ms)
{
	uint64_t deadline = ckpt_deadline(timeout_ms);
	bool mine;

	(void)pthread_mutex_lock(&engine->lock);
	while (engine->turn && ckpt_cond_wait_until(&engine->turn_over, &engine->lock, deadline))
		;
	mine = !engine->turn;
	engine->turn = true;
	(void)pthread_mutex_unlock(&engine->lock);
	return mine;
}

static int take_turn(struct ckpt_engine *engine, struct ckpt_error *err)
{
	return take_turn_within(engine, ckpt_runtime_patience_ms(engine))
		       ? 0
		       : ckpt_runtime_no_answer(engine, err);
}

static void end_turn(struct ckpt_engine *engine)
{
	(void)pthread_mutex_lock(&engine->lock);
	engine->turn = false;
	(void)pthread_cond_signal(&engine->turn_over);
	(void)pthread_mutex_unlock(&engine->lock);
}

/* What follows is of whoever has the turn. */

/* Begins to claim, unless that is under way. -ENOMEM. */
static int begin_claim(struct ckpt_engine *engine, struct ckpt_error *err)
{
	if (engine->claim)
		return 0;
	engine->claim =
		ckpt_runtime_command(engine, sizeof(struct ckpt_claimer), ckpt_claimer_clear, err);
	if (!engine->claim)
		return -ENOMEM;
	ckpt_command_post(engine->claim, ckpt_claim_body);
	return 0;
}

static void forget_claim(struct ckpt_engine *engine)
{
	ckpt_command_unref(engine->claim);
	engine->claim = NULL;
}

/* What was claimed is the engine's. */
static int take_claim(struct ckpt_engine *engine, struct ckpt_error *err)
{
	struct ckpt_claimer *claimer = CKPT_CONTAINER(engine->claim, struct ckpt_claimer, command);

	int r = take_result(engine, engine->claim, err);
	if (r == 0) {
		(void)pthread_mutex_lock(&engine->lock);
		engine->generation = claimer->claim.generation;
		engine->any_step = claimer->claim.parent_generation != 0;
		engine->last_step = claimer->claim.parent_step;
		(void)pthread_mutex_unlock(&engine->lock);
	}
	forget_claim(engine);
	return r;
}

static int claim_in_turn(struct ckpt_engine *engine, struct ckpt_error *err)
{
	if (engine->generation)
		return 0;
	int r = begin_claim(engine, err);
	if (r < 0)
		return r;
	if (has_ended(engine->claim, ckpt_runtime_patience_ms(engine)))
		return take_claim(engine, err);
	forget_claim(engine);
	return ckpt_runtime_no_answer(engine, err);
}

static int adopt_in_turn(
	struct ckpt_engine *engine, uint64_t generation, uint64_t step, struct ckpt_error *err)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_adopter), NULL, err);
	if (!command)
		return -ENOMEM;
	struct ckpt_adopter *adopter = CKPT_CONTAINER(command, struct ckpt_adopter, command);
	adopter->generation = generation;
	adopter->step = step;
	int r = ckpt_runtime_run(engine, command, ckpt_adopter_body, err);
	if (r == 0) {
		(void)pthread_mutex_lock(&engine->lock);
		engine->generation = 0;
		engine->any_step = true;
		engine->last_step = step;
		(void)pthread_mutex_unlock(&engine->lock);
		/* One that still waits for rank 0's is compared with what it finds then. */
		if (engine->claim && has_ended(engine->claim, 0))
			forget_claim(engine);
	}
	ckpt_command_unref(command);
	return r;
}

int ckpt_runtime_claim(struct ckpt_engine *engine, struct ckpt_error *err, uint64_t *ret_generation)
{
	int r = take_turn(engine, err);

	if (r < 0)
		return r;
	r = claim_in_turn(engine, err);
	if (r == 0)
		*ret_generation = engine->generation;
	end_turn(engine);
	return r;
}

int ckpt_runtime_adopt(
	struct ckpt_engine *engine, uint64_t generation, uint64_t step, struct ckpt_error *err)
{
	int r = take_turn(engine, err);

	if (r < 0)
		return r;
	r = adopt_in_turn(engine, generation, step, err);
	end_turn(engine);
	return r;
}

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
	r = claim_in_turn(engine, err);
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
	int r = take_turn(engine, err);

	if (r == 0) {
		r = start_in_turn(engine, save, err);
		end_turn(engine);
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
	/* Whoever has the turn sees to it. Without memory it goes as if nobody had been there to tell. */
	if (engine->core.config.world > 1 && !engine->turn && !engine->generation)
		(void)begin_claim(engine, NULL);
	(void)pthread_mutex_unlock(&engine->lock);
	note_refused(engine, ckpt_save_step(save));
	ckpt_save_refuse(save, why);
}

/* 0, or what the save fails with. -ETIMEDOUT and `*ret_over` false: not yet. */
static int ready_in_turn(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over)
{
	int r = engine->generation ? 0 : begin_claim(engine, err);

	if (r == 0 && engine->claim) {
		*ret_over = has_ended(engine->claim, timeout_ms);
		r = *ret_over ? take_claim(engine, err) : -ETIMEDOUT;
	}
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
	if (!take_turn_within(engine, timeout_ms))
		return -ETIMEDOUT;
	*ret_over = true;
	int r = ready_in_turn(engine, save, timeout_ms, err, ret_over);
	end_turn(engine);
	if (r < 0 && *ret_over) {
		note_refused(engine, ckpt_save_step(save));
		ckpt_save_refuse(save, err);
	}
	return r;
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

int ckpt_runtime_stats(
	struct ckpt_engine *engine, struct ckpt_error *err, struct ckpt_stats *ret_stats)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_reporter), NULL, err);
	if (!command)
		return -ENOMEM;
	int r = ckpt_runtime_run(engine, command, ckpt_reporter_body, err);
	if (r == 0) {
		*ret_stats = CKPT_CONTAINER(command, struct ckpt_reporter, command)->stats;
		ret_stats->threads += ckpt_env_os_threads(engine->env);
		ret_stats->saves_skipped += atomic_load(&engine->saves_skipped);
		ret_stats->saves_waited = atomic_load(&engine->saves_waited);
		ret_stats->saves_waited_ns = atomic_load(&engine->saves_waited_ns);
	}
	ckpt_command_unref(command);
	return r;
}
