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

int ckpt_runtime_run(struct ckpt_engine *engine, struct ckpt_command *command, ckpt_task_fn *body,
	struct ckpt_error *err)
{
	CKPT_ASSERT(command->core == &engine->core);
	ckpt_command_post(command, body);
	uint32_t bits =
		ckpt_latch_wait(&command->latch, CKPT_DONE_END, ckpt_runtime_patience_ms(engine));
	if (!(bits & CKPT_DONE_END))
		return ckpt_runtime_no_answer(engine, err);
	int r = command->result;
	if (r < 0 && command->error.code < 0)
		(void)ckpt_error_copy(&command->error, err);
	else if (r < 0)
		(void)ckpt_fail(err, r, "%s: %s", engine->label, ckpt_code_text(r));
	return r;
}

/* One thread at a time goes on from here to end_turn(). */
static int take_turn(struct ckpt_engine *engine, struct ckpt_error *err)
{
	uint64_t deadline = ckpt_deadline(ckpt_runtime_patience_ms(engine));
	bool mine;

	(void)pthread_mutex_lock(&engine->lock);
	while (engine->turn && ckpt_cond_wait_until(&engine->turn_over, &engine->lock, deadline))
		;
	mine = !engine->turn;
	engine->turn = true;
	(void)pthread_mutex_unlock(&engine->lock);
	return mine ? 0 : ckpt_runtime_no_answer(engine, err);
}

static void end_turn(struct ckpt_engine *engine)
{
	(void)pthread_mutex_lock(&engine->lock);
	engine->turn = false;
	(void)pthread_cond_signal(&engine->turn_over);
	(void)pthread_mutex_unlock(&engine->lock);
}

/* What follows is of whoever has the turn. */

static int claim_in_turn(struct ckpt_engine *engine, struct ckpt_error *err)
{
	if (engine->generation)
		return 0;
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_claimer), ckpt_claimer_clear, err);
	if (!command)
		return -ENOMEM;
	struct ckpt_claimer *claimer = CKPT_CONTAINER(command, struct ckpt_claimer, command);
	int r = ckpt_runtime_run(engine, command, ckpt_claim_body, err);
	if (r == 0) {
		(void)pthread_mutex_lock(&engine->lock);
		engine->generation = claimer->claim.generation;
		engine->any_step = claimer->claim.parent_generation != 0;
		engine->last_step = claimer->claim.parent_step;
		(void)pthread_mutex_unlock(&engine->lock);
	}
	ckpt_command_unref(command);
	return r;
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

/* Policy CKPT_BUSY_SKIP, and the last save still runs: rank 0 says what becomes of this step. */
static int wait_for_rank_0(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	bool closed = ckpt_save_gate_closed(engine->last);
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_skipper), NULL, err);

	if (!command)
		return -ENOMEM;
	struct ckpt_skipper *skipper = CKPT_CONTAINER(command, struct ckpt_skipper, command);
	skipper->step = step;
	/* Before this thread gives up waiting for the answer. */
	skipper->patience_ns = (closed ? SKIP_PATIENCE_MS
				       : (uint64_t)engine->core.config.save_timeout_ms / 4 * 3) *
			       1000000;
	int r = ckpt_runtime_run(engine, command, ckpt_skipper_body, err);
	ckpt_command_unref(command);
	if (r == CKPT_ESKIPPED)
		atomic_fetch_add(&engine->saves_skipped, 1);
	if (r < 0 || ckpt_latch_get(ckpt_save_latch(engine->last)) & CKPT_DONE_GONE)
		return r;
	return closed ? last_waits_for_fence(engine, step, err)
		      : last_still_held(engine, step, err);
}

/* The last save has let go of everything, or the policy says no. */
static int wait_for_last(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err)
{
	struct ckpt_latch *latch = engine->last ? ckpt_save_latch(engine->last) : NULL;

	if (!latch || (ckpt_latch_get(latch) & CKPT_DONE_GONE))
		return 0;
	if (engine->busy == CKPT_BUSY_SKIP && engine->core.config.rank > 0)
		return wait_for_rank_0(engine, step, err);
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
