/* SPDX-License-Identifier: Apache-2.0 */
#include "mill.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "sim/sim_memory.h"

#define SLOTS 8

void mill_init(struct mill *mill, const struct mill_setup *setup)
{
	*mill = (struct mill){.sim = setup->sim,
		.owner = setup->owner,
		.advance = setup->advance,
		.stepped = setup->stepped};
	int r = ckpt_inbox_init(&mill->inbox);
	CKPT_ASSERT(r == 0);
	sim_env_init(&mill->env, setup->sim, &mill->inbox, setup->owner, 0);
	sim_device_init(&mill->device, &mill->env);
	mill->pool = sim_pool_open(SLOTS, setup->block_bytes);
}

/* Until a latch has one of the bits. False: it has died. */
static bool wait_for(struct mill *mill, struct ckpt_latch *latch, uint32_t wanted)
{
	while (!mill->dead && !(ckpt_latch_get(latch) & wanted)) {
		if (!mill->inbox.head) {
			mill->advance(mill);
			continue;
		}
		sim_memory_enter(mill->owner);
		(void)ckpt_core_step(&mill->core);
		sim_memory_enter(0);
		if (mill->stepped)
			mill->stepped(mill);
	}
	return !mill->dead;
}

/* What was posted and has no answer to wait for. */
static void run_posted(struct mill *mill)
{
	sim_memory_enter(mill->owner);
	(void)ckpt_core_step(&mill->core);
	sim_memory_enter(0);
}

void mill_advance(struct mill *mill)
{
	struct sim *sim = mill->sim;
	unsigned requests = sim_io_ready(mill->io);
	unsigned jobs = sim_env_ready(&mill->env);

	if (requests + jobs == 0) {
		uint64_t next_ns = ckpt_min_u64(sim_io_next(mill->io), sim_env_next(&mill->env));
		if (next_ns == UINT64_MAX) {
			sim_violation(sim, "a call waits, and nothing is under way");
			mill->dead = true;
			return;
		}
		sim->now_ns = next_ns;
		return;
	}
	unsigned n = (unsigned)sim_below(sim, requests + jobs);
	if (n < requests)
		sim_io_finish(mill->io, n);
	else
		sim_env_finish(&mill->env, n - requests);
}

bool mill_drain(struct mill *mill)
{
	while (!mill->dead && (mill->inbox.head || sim_io_in_flight(mill->io) || mill->env.head)) {
		if (mill->inbox.head) {
			run_posted(mill);
			if (mill->stepped)
				mill->stepped(mill);
		} else {
			mill->advance(mill);
		}
	}
	return !mill->dead;
}

static int run_command(struct mill *mill, struct ckpt_command *command, ckpt_task_fn *body)
{
	sim_memory_enter(mill->owner);
	ckpt_command_post(command, body);
	sim_memory_enter(0);
	return wait_for(mill, &command->latch, CKPT_DONE_END) ? command->result : MILL_DEAD;
}

static void init_command(struct mill *mill, struct ckpt_command *command)
{
	sim_memory_enter(mill->owner);
	int r = ckpt_command_init(command, &mill->core);
	sim_memory_enter(0);
	CKPT_ASSERT(r == 0);
}

int mill_open(struct mill *mill, const struct mill_setup *setup, struct ckpt_io *io)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_opener opener = {0};
	struct ckpt_core_parts parts = {.env = &mill->env.env,
		.io = io,
		.root = MILL_ROOT,
		.label = "/store",
		.devices = &mill->device.devices,
		.pool = mill->pool};
	struct ckpt_core_config config = {.block_bytes = setup->block_bytes,
		.chunk_bytes = setup->chunk_bytes,
		.keep_last = setup->keep_last,
		.save_timeout_ms = 600000,
		.read_only = setup->read_only,
		.new_start = setup->anew,
		.node = "sim"};

	sim_memory_enter(mill->owner);
	int r = ckpt_modules_open(&mill->core, &parts, &config, &err);
	sim_memory_enter(0);
	CKPT_ASSERT(r == 0);
	init_command(mill, &opener.command);
	r = run_command(mill, &opener.command, ckpt_open_body);
	if (r == MILL_DEAD)
		return r;
	sim_memory_enter(mill->owner);
	ckpt_command_fini(&opener.command);
	ckpt_opener_clear(&opener.command);
	sim_memory_enter(0);
	return r;
}

static int64_t run_restore(struct mill *mill, struct ckpt_restore *restore, struct sim_state *into)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_target targets[SIM_TENSORS_MAX];
	struct ckpt_latch *latch = ckpt_restore_latch(restore);

	ckpt_restore_post_open(restore);
	if (!wait_for(mill, latch, CKPT_DONE_OPENED | CKPT_DONE_END))
		return MILL_DEAD;
	if (!(ckpt_latch_get(latch) & CKPT_DONE_END)) {
		sim_state_poison(into);
		sim_state_targets(into, targets);
		sim_memory_enter(mill->owner);
		int r = ckpt_restore_add_targets(restore, targets, into->shape->count, &err);
		sim_memory_enter(0);
		if (r < 0)
			sim_violation(mill->sim, "binding: %s", err.message);
		ckpt_restore_post_start(restore);
		if (!wait_for(mill, latch, CKPT_DONE_END))
			return MILL_DEAD;
	}
	const struct ckpt_error *failure = ckpt_restore_failure(restore);
	return failure->code < 0 ? failure->code : (int64_t)ckpt_restore_chosen_step(restore);
}

int64_t mill_restore(
	struct mill *mill, uint64_t step, struct sim_state *into, uint64_t *ret_generation)
{
	struct ckpt_restore *restore = NULL;

	sim_memory_enter(mill->owner);
	int r = ckpt_restore_new(&mill->core, NULL, step, CKPT_SINK_MEMORY, &restore);
	sim_memory_enter(0);
	CKPT_ASSERT(r == 0);
	int64_t chosen = run_restore(mill, restore, into);
	if (mill->dead)
		return MILL_DEAD;
	if (ret_generation)
		*ret_generation = ckpt_restore_chosen_generation(restore);
	ckpt_restore_post_release(restore);
	if (!wait_for(mill, ckpt_restore_latch(restore), CKPT_DONE_GONE))
		return MILL_DEAD;
	sim_memory_enter(mill->owner);
	ckpt_restore_unref(restore);
	sim_memory_enter(0);
	return chosen;
}

int mill_adopt(struct mill *mill, uint64_t generation, uint64_t step)
{
	struct ckpt_adopter adopter = {.generation = generation, .step = step};

	init_command(mill, &adopter.command);
	int r = run_command(mill, &adopter.command, ckpt_adopter_body);
	if (r != MILL_DEAD)
		ckpt_command_fini(&adopter.command);
	return r;
}

int mill_claim(struct mill *mill)
{
	struct ckpt_claimer claimer = {0};

	init_command(mill, &claimer.command);
	int r = run_command(mill, &claimer.command, ckpt_claim_body);
	if (r == MILL_DEAD)
		return r;
	sim_memory_enter(mill->owner);
	ckpt_command_fini(&claimer.command);
	ckpt_claimer_clear(&claimer.command);
	sim_memory_enter(0);
	return r;
}

int mill_remove(struct mill *mill, uint64_t step)
{
	sim_memory_enter(mill->owner);
	struct ckpt_command *remover = ckpt_delete_command_new(&mill->core, step);
	sim_memory_enter(0);
	CKPT_ASSERT(remover != NULL);
	int r = run_command(mill, remover, ckpt_delete_command_body);
	if (r == MILL_DEAD)
		return r;
	sim_memory_enter(mill->owner);
	ckpt_command_unref(remover);
	sim_memory_enter(0);
	return r;
}

static int prepare_save(struct mill *mill, uint64_t step, const struct sim_state *state,
	struct ckpt_save **ret_save)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_tensor tensors[SIM_TENSORS_MAX];

	sim_memory_enter(mill->owner);
	int r = ckpt_save_new(&mill->core, NULL, step, false, 0, ret_save);
	CKPT_ASSERT(r == 0);
	sim_state_tensors(state, tensors);
	r = ckpt_save_put_tensors(*ret_save, tensors, state->shape->count, &err);
	if (r == 0)
		r = ckpt_save_prepare(*ret_save, &mill->cache, &err);
	sim_memory_enter(0);
	return r;
}

int mill_save(struct mill *mill, uint64_t step, const struct sim_state *state,
	void (*acked)(struct mill *mill, uint64_t step))
{
	struct ckpt_save *save = NULL;

	int r = prepare_save(mill, step, state, &save);
	CKPT_ASSERT(r == 0);
	struct ckpt_latch *latch = ckpt_save_latch(save);
	ckpt_save_post(save);
	if (!wait_for(mill, latch, CKPT_DONE_LOCAL | CKPT_DONE_END))
		return MILL_DEAD;
	if (ckpt_latch_get(latch) & CKPT_DONE_LOCAL)
		acked(mill, step);
	if (!wait_for(mill, latch, CKPT_DONE_END))
		return MILL_DEAD;
	r = ckpt_save_failure(save)->code;
	if (!wait_for(mill, latch, CKPT_DONE_GONE))
		return MILL_DEAD;
	sim_memory_enter(mill->owner);
	mill->cache = ckpt_save_take_plan(save);
	ckpt_save_unref(save);
	sim_memory_enter(0);
	return r;
}

int mill_close(struct mill *mill)
{
	struct ckpt_closer closer = {0};

	init_command(mill, &closer.command);
	int r = run_command(mill, &closer.command, ckpt_closer_body);
	if (r == MILL_DEAD)
		return r;
	run_posted(mill);
	CKPT_ASSERT(ckpt_core_idle(&mill->core));
	sim_memory_enter(mill->owner);
	ckpt_command_fini(&closer.command);
	ckpt_plan_free(mill->cache);
	ckpt_modules_close(&mill->core);
	sim_memory_enter(0);
	return r;
}

void mill_sweep(struct mill *mill)
{
	sim_memory_enter(0);
	sim_pool_sweep(mill->pool);
	sim_memory_sweep(mill->owner);
	sim_env_die(&mill->env);
	(void)ckpt_inbox_take(&mill->inbox);
	ckpt_inbox_destroy(&mill->inbox);
}
