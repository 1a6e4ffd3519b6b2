/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generation that an engine saves in. A claim may outlive the call that has begun it: that of a save that
 * was refused, or that is asked for a little at a time. If it succeeds it is the engine's; if it fails, that is
 * told to the save it was begun for, and the next one claims anew.
 */
#include <errno.h>

#include "base/error.h"
#include "engine/lineage/claim.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/runtime_state.h"

#define ENDING_MS 100

/* Begins to claim for a save (NULL: for nobody who waits), unless that is under way. -ENOMEM. */
static int begin_claim(struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err)
{
	if (engine->claim)
		return 0;
	engine->claim =
		ckpt_runtime_command(engine, sizeof(struct ckpt_claimer), ckpt_claimer_clear, err);
	if (!engine->claim)
		return -ENOMEM;
	engine->claim_for = save ? ckpt_save_ref(save) : NULL;
	ckpt_command_post(engine->claim, ckpt_claim_body);
	return 0;
}

static void forget_claim(struct ckpt_engine *engine)
{
	ckpt_command_unref(engine->claim);
	engine->claim = NULL;
	ckpt_save_unref(engine->claim_for);
	engine->claim_for = NULL;
}

static bool has_failed(const struct ckpt_engine *engine)
{
	return ckpt_runtime_has_ended(engine->claim, 0) && engine->claim->result < 0;
}

static bool is_anothers(const struct ckpt_engine *engine, const struct ckpt_save *save)
{
	return engine->claim && (!save || engine->claim_for != save);
}

/* It has failed; what was refused meanwhile has its own try, as on all ranks. */
static void drop_claim(struct ckpt_engine *engine)
{
	forget_claim(engine);
	if (engine->claims_owed > 0 && begin_claim(engine, NULL, NULL) == 0)
		engine->claims_owed--;
}

/* What was claimed is the engine's. */
static int take_claim(struct ckpt_engine *engine, struct ckpt_error *err)
{
	struct ckpt_claimer *claimer = CKPT_CONTAINER(engine->claim, struct ckpt_claimer, command);

	int r = ckpt_runtime_result(engine, engine->claim, err);
	if (r < 0) {
		drop_claim(engine);
		return r;
	}
	(void)pthread_mutex_lock(&engine->lock);
	engine->generation = claimer->claim.generation;
	engine->any_step = claimer->claim.parent_generation != 0;
	engine->last_step = claimer->claim.parent_step;
	engine->claims_owed = 0;
	(void)pthread_mutex_unlock(&engine->lock);
	forget_claim(engine);
	return 0;
}

static int await_claim(struct ckpt_engine *engine, struct ckpt_error *err)
{
	if (ckpt_runtime_has_ended(engine->claim, ckpt_runtime_patience_ms(engine)))
		return 0;
	forget_claim(engine);
	return ckpt_runtime_no_answer(engine, err);
}

int ckpt_runtime_claim_in_turn(
	struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err)
{
	int r = 0;

	if (engine->generation)
		return 0;
	while (r == 0 && is_anothers(engine, save)) {
		r = await_claim(engine, err);
		if (r == 0 && !has_failed(engine))
			return take_claim(engine, err);
		if (r == 0)
			drop_claim(engine);
	}
	if (r == 0)
		r = begin_claim(engine, save, err);
	if (r == 0)
		r = await_claim(engine, err);
	return r < 0 ? r : take_claim(engine, err);
}

int ckpt_runtime_claim_ready(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over)
{
	if (engine->generation)
		return 0;
	if (is_anothers(engine, save) && has_failed(engine))
		drop_claim(engine);
	int r = begin_claim(engine, save, err);
	if (r < 0)
		return r;
	*ret_over = ckpt_runtime_has_ended(engine->claim, timeout_ms) &&
		    !(is_anothers(engine, save) && has_failed(engine));
	return *ret_over ? take_claim(engine, err) : -ETIMEDOUT;
}

void ckpt_runtime_claim_refused(struct ckpt_engine *engine, struct ckpt_save *save)
{
	/* It has begun one already, as every other rank does for this step. */
	if (engine->claim && engine->claim_for == save) {
		ckpt_save_unref(engine->claim_for);
		engine->claim_for = NULL;
		return;
	}
	/* One that has failed is heard of elsewhere just before it ends here. */
	if (engine->claim && !engine->claim_for &&
		ckpt_runtime_has_ended(engine->claim, ENDING_MS) && has_failed(engine))
		drop_claim(engine);
	if (engine->claim)
		engine->claims_owed++;
	else
		/* Without memory it goes as if nobody had been there to tell. */
		(void)begin_claim(engine, NULL, NULL);
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
		if (engine->claim && has_failed(engine)) {
			drop_claim(engine);
		} else if (engine->claim && ckpt_runtime_has_ended(engine->claim, 0)) {
			forget_claim(engine);
			engine->claims_owed = 0;
		}
	}
	ckpt_command_unref(command);
	return r;
}

int ckpt_runtime_claim(struct ckpt_engine *engine, struct ckpt_error *err, uint64_t *ret_generation)
{
	int r = ckpt_runtime_take_turn(engine, err);

	if (r < 0)
		return r;
	r = ckpt_runtime_claim_in_turn(engine, NULL, err);
	if (r == 0)
		*ret_generation = engine->generation;
	ckpt_runtime_end_turn(engine);
	return r;
}

int ckpt_runtime_adopt(
	struct ckpt_engine *engine, uint64_t generation, uint64_t step, struct ckpt_error *err)
{
	int r = ckpt_runtime_take_turn(engine, err);

	if (r < 0)
		return r;
	r = adopt_in_turn(engine, generation, step, err);
	ckpt_runtime_end_turn(engine);
	return r;
}
