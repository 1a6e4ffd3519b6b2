/* SPDX-License-Identifier: Apache-2.0 */
#include "recovery.h"

#include "engine/lineage/lineage.h"

#include <ckpt/error.h>
#include <stdlib.h>

#include "sim/sim_memory.h"
#include "view_io.h"

#define BLOCK 4096
#define CHUNK 1024

/* What a reader needs of workers: at once. */
static void advance_now(struct mill *mill)
{
	uint64_t next_ns = sim_env_next(&mill->env);

	if (next_ns == UINT64_MAX) {
		sim_violation(mill->sim, "a reader waits, and nothing is under way");
		mill->dead = true;
		return;
	}
	mill->sim->now_ns = ckpt_max_u64(mill->sim->now_ns, next_ns);
	sim_env_finish(&mill->env, 0);
}

/* Restores what `asked` says, which must be `step`, as it was saved. */
static void restore(struct recovery *r, struct mill *mill, uint64_t asked, uint64_t step,
	uint64_t *ret_generation)
{
	int64_t chosen = mill_restore(mill, asked, &r->into, ret_generation);

	if (chosen != (int64_t)step) {
		sim_violation(r->sim, "step %llu is committed, and restoring gives %lld",
			(unsigned long long)step, (long long)chosen);
		return;
	}
	if (sim_state_check(&r->into, r->past->steps[step].version))
		sim_violation(r->sim, "step %llu is not what was saved", (unsigned long long)step);
}

/* All that is committed, newest first. Bit by step; `ret_generation`: of the newest. */
static uint64_t restore_all(struct recovery *r, struct mill *mill, uint64_t *ret_generation)
{
	const struct ckpt_scan *scan = &mill->core.lineage->scan;
	uint64_t present = 0;

	for (size_t i = 0; i < scan->step_count && !r->sim->failed; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->state == CKPT_STEP_BROKEN || s->state == CKPT_STEP_QUARANTINED)
			sim_violation(r->sim, "step %llu is half there: %s",
				(unsigned long long)s->step, s->note);
		if (s->state != CKPT_STEP_COMMITTED || !s->in_lineage)
			continue;
		if (s->step > r->past->count)
			sim_violation(r->sim, "step %llu was saved by nobody",
				(unsigned long long)s->step);
		else
			restore(r, mill, present ? s->step : CKPT_STEP_LATEST, s->step,
				present ? NULL : ret_generation);
		present |= UINT64_C(1) << s->step;
	}
	if (present == 0 && !r->sim->failed) {
		int64_t chosen = mill_restore(mill, CKPT_STEP_LATEST, &r->into, NULL);
		if (chosen != CKPT_ENOSTEP)
			sim_violation(r->sim, "there is nothing, and the latest is %lld",
				(long long)chosen);
	}
	return present;
}

static void judge_open(struct recovery *r, struct mill *mill, int code)
{
	uint64_t present = 0;

	if (code == 0)
		present = restore_all(r, mill, NULL);
	else if (code != CKPT_ENOSTORE)
		sim_violation(r->sim, "the store cannot be opened: %d", code);
	past_judge(r->past, present, r->sim);
}

void recovery_read(struct recovery *recovery, const struct states *states)
{
	/* Its own, so that the history is that of what came before. */
	static struct sim sim;
	struct mill_setup setup = {.sim = &sim,
		.owner = RECOVERY_READER,
		.read_only = true,
		.block_bytes = BLOCK,
		.chunk_bytes = CHUNK,
		.advance = advance_now};
	struct mill mill;
	struct view_io view;

	if (!sim.seed)
		sim_start(&sim, 1, &(struct sim_options){0});
	sim.now_ns = recovery->sim->now_ns;
	mill_init(&mill, &setup);
	view_io_init(&view, &mill.inbox, &states->variants, states->root);
	judge_open(recovery, &mill, mill_open(&mill, &setup, &view.io));
	if (!mill.dead && mill_close(&mill) < 0)
		sim_violation(recovery->sim, "a reader cannot be closed");
	if (!mill.dead && (view_io_open_count(&view) || sim_memory_blocks(RECOVERY_READER)))
		sim_violation(recovery->sim, "a reader leaves files open or memory behind");
	mill_sweep(&mill);
	if (sim.failed)
		sim_violation(recovery->sim, "%s", sim.why);
}

static void no_matter(struct mill *mill, uint64_t step)
{
	(void)mill;
	(void)step;
}

/* What a training does: from the latest, or from nothing. */
static void resume_and_save(struct recovery *r, struct mill *mill, struct past *past)
{
	uint64_t generation = 0;
	uint64_t version = sim_random(mill->sim) >> 16;
	struct sim_state state;
	uint64_t present = restore_all(r, mill, &generation);

	if (present && mill_adopt(mill, generation, (uint64_t)(63 - __builtin_clzll(present))) < 0)
		sim_violation(r->sim, "the latest cannot be gone on from");
	int code = r->sim->failed ? 0 : mill_claim(mill);
	/* Only what was let go is there, in a branch that was left: a start of its own goes on. */
	if (code == CKPT_ENOTRESUMED && !present)
		return;
	if (code < 0)
		sim_violation(r->sim, "a successor cannot claim: %d", code);
	if (r->sim->failed)
		return;
	sim_state_init(&state, r->shape);
	sim_state_fill(&state, version);
	uint64_t step = past_begin(past, version);
	code = mill_save(mill, step, &state, no_matter);
	if (code < 0)
		sim_violation(r->sim, "a successor cannot save: %d", code);
	past_ack(past, step);
	(void)mill_drain(mill);
	sim_state_free(&state);
}

/* One process on `disk`. */
static void run_on(
	struct recovery *r, struct sim *sim, struct sim_disk *disk, bool writes, struct past *past)
{
	struct mill_setup setup = {.sim = sim,
		.owner = RECOVERY_WRITER,
		.read_only = !writes,
		.block_bytes = BLOCK,
		.chunk_bytes = CHUNK,
		.advance = mill_advance};
	struct mill mill;

	mill_init(&mill, &setup);
	struct sim_io_config io = {
		.inbox = &mill.inbox, .owner = RECOVERY_WRITER, .root = MILL_ROOT, .align = 512};
	mill.io = sim_io_new(sim, disk, &io);
	int code = mill_open(&mill, &setup, sim_io_of(mill.io));
	if (!writes)
		judge_open(r, &mill, code);
	else if (code < 0)
		sim_violation(r->sim, "a successor cannot open the store: %d", code);
	else
		resume_and_save(r, &mill, past);
	if (!mill.dead && !r->sim->failed)
		(void)mill_close(&mill);
	sim_io_forget(mill.io);
	mill_sweep(&mill);
}

void recovery_go_on(struct recovery *recovery, const struct states *states, uint64_t seed)
{
	static struct sim sim;
	struct past past = *recovery->past;
	struct recovery r = *recovery;

	sim_start(&sim, seed, &(struct sim_options){0});
	struct sim_disk *disk = variants_copy(&states->variants, states->root, &sim);
	r.past = &past;
	run_on(&r, &sim, disk, true, &past);
	if (!r.sim->failed)
		run_on(&r, &sim, disk, false, &past);
	if (sim.failed)
		sim_violation(recovery->sim, "%s", sim.why);
	sim_disk_free(disk);
	recovery->went_on++;
}
