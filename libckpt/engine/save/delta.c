/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that are stored as the difference to the last one. The base is taken before the first block is copied, and let go of
 * once the shard is sealed. What was staged becomes the base of the next step when this one is committed.
 *
 * Any of it may be missing: then the step is stored by itself, and no save fails.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/gc/delete_step.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

size_t ckpt_save_staging_blocks(const struct ckpt_save *save)
{
	return save->plan->block_count * (save->core->config.delta ? 2 : 1);
}

/* Steps that are kept for long, or go elsewhere, need no other one. */
static bool stands_alone(const struct ckpt_save *save)
{
	uint64_t every = save->core->config.keep_every;

	return save->upload || (every > 0 && save->step % every == 0);
}

/* Nobody has found damage in it, nor removed it, nor is about to. */
static bool is_good(const struct ckpt_core *core, const struct ckpt_base_step *step)
{
	const struct ckpt_scan_step *found =
		ckpt_scan_find(&core->lineage->scan, step->generation, step->step);

	for (const struct ckpt_deletion *d = core->deletions; d; d = d->next)
		if (d->generation == step->generation && d->step == step->step)
			return false;
	return found && found->state == CKPT_STEP_COMMITTED && !found->deleting && !found->going;
}

/*
 * So are the last step and all that it needs, as far as this rank knows. Whoever does not own the store knows its last step only;
 * rank 0 owns it, and decides.
 */
static bool is_good_run(const struct ckpt_core *core, const struct ckpt_delta_run *run)
{
	bool good = is_good(core, &run->last);

	for (unsigned i = 0; ckpt_core_owns_store(core) && i < run->count; i++)
		good = good && is_good(core, &run->steps[i]);
	return good;
}

/* Both states fit: the base's slots are free so far, and the save needs as many others. */
static bool has_room(const struct ckpt_save *save)
{
	return ckpt_pool_free(save->core->parts.pool) >= 2 * save->plan->block_count;
}

/* A pool that grows says itself how large it cannot become. */
static void say_no_room(const struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_saver *saver = core->saver;

	if (saver->no_room_told || core->config.sharers > 0 ||
		ckpt_pool_slots(core->parts.pool) >= ckpt_save_staging_blocks(save))
		return;
	saver->no_room_told = true;
	ckpt_log(core->parts.log, CKPT_LOG_WARN,
		"%s: staging memory has no room for two states of this rank: this step is stored "
		"by itself, and so may be later ones; pool_bytes sets another size",
		core->parts.label);
}

void ckpt_save_take_base(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_saver *saver = core->saver;
	struct ckpt_staged_base *base = saver->base;

	CKPT_ASSERT(!save->base);
	if (!core->config.delta || !saver->run.open || stands_alone(save) ||
		saver->run.last.generation != core->lineage->generation ||
		!is_good_run(core, &saver->run))
		return;
	if (!save->hold || !base || !has_room(save))
		say_no_room(save);
	else if (ckpt_staged_base_fits(base, save->plan) && ckpt_staged_base_take(base))
		save->base = base;
}

void ckpt_save_drop_base(struct ckpt_save *save)
{
	if (save->base)
		ckpt_staged_base_put(save->base);
	save->base = NULL;
}

void ckpt_save_note_next_base(struct ckpt_save *save, const struct ckpt_encoded *table)
{
	struct ckpt_core *core = save->core;

	if (!core->config.delta || !save->hold || save->code)
		return;
	struct ckpt_staged_shard *staged = ckpt_pipeline_staged_shard(save);
	if (!staged)
		return;
	save->next_base = ckpt_staged_base_new(save->plan, table, core->parts.pool, staged);
	if (!save->next_base)
		ckpt_staged_shard_free(staged);
}

uint64_t ckpt_save_base_step(const struct ckpt_save *save)
{
	return save->based ? 1 + save->core->saver->run.last.step : 0;
}

static bool may_be_based(const struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;
	const struct ckpt_delta_run *run = &core->saver->run;

	return run->open && run->last.generation == core->lineage->generation &&
	       is_good_run(core, run);
}

/* Rank 0 keeps it for long, or sends it on: it would be better by itself. */
static void say_not_alone(const struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;

	if (core->saver->not_alone_told || !stands_alone(save))
		return;
	core->saver->not_alone_told = true;
	ckpt_log(core->parts.log, CKPT_LOG_WARN,
		"%s: step %llu is one of those that keep_every or remote_every choose, but some "
		"ranks have stored it as the difference to an earlier step: give all ranks the "
		"same keep_every and remote_every",
		core->parts.label, (unsigned long long)save->step);
}

int ckpt_save_judge_run(struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;
	struct ckpt_save_commit *x = save->ranks;
	uint64_t stored = x ? x->stored : ckpt_save_file_bytes(save);
	bool based = x ? x->based : save->based;

	if (!core->config.delta && !based)
		return 0;
	if (based && !may_be_based(save))
		return ckpt_fail_at(&save->work, CKPT_EABORTED,
			&(struct ckpt_where){.tier = "local"},
			"step %llu fails on all ranks: some have stored it as the difference to an "
			"earlier step, which rank 0 does not allow: that step, or one that it "
			"needs, was removed or is damaged, or too many follow each other; the next "
			"step is stored by itself",
			(unsigned long long)save->step);
	if (based)
		say_not_alone(save);
	save->run = ckpt_delta_run_add(
		&core->saver->run, core->lineage->generation, save->step, based, stored);
	if (x)
		x->outcome.follow = save->run.open;
	return 0;
}

void ckpt_save_take_run(struct ckpt_save *save, const struct ckpt_manifest *manifest)
{
	struct ckpt_delta_run *run = &save->run;

	run->count = manifest->base_count;
	memcpy(run->steps, manifest->bases, sizeof(run->steps));
}

void ckpt_save_end_run(struct ckpt_save *save)
{
	struct ckpt_saver *saver = save->core->saver;
	const struct ckpt_save_commit *x = save->ranks;

	CKPT_ASSERT(!save->base);
	ckpt_staged_base_free(saver->base);
	saver->base = NULL;
	/* The last committed step stays what it was: a rank that did not begin this one may still have it as its base. */
	if (!save->committed) {
		ckpt_staged_base_free(save->next_base);
		save->next_base = NULL;
		return;
	}
	saver->base = save->next_base;
	save->next_base = NULL;
	/* Rank 0 has judged it. */
	if (x && save->core->config.rank > 0) {
		save->run.last = (struct ckpt_base_step){
			.generation = save->core->lineage->generation, .step = save->step};
		save->run.open = x->outcome.follow;
	}
	saver->run = save->run;
	if (!saver->base)
		return;
	struct ckpt_manifest_rank own;
	ckpt_save_own_rank(save, &own);
	ckpt_staged_base_name(saver->base, &own, saver->run.last.generation, save->step);
}

void ckpt_save_note_unknown(struct ckpt_save *save)
{
	save->run.open = false;
	if (save->ranks)
		save->ranks->outcome.follow = false;
	if (save->run.count > 0)
		save->core->lineage->scan.lacks = true;
}

bool ckpt_save_needs(const struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	const struct ckpt_delta_run *run = &core->saver->run;

	/* Once it is committed, its manifest says what it needs. */
	return core->save && !core->save->committed && run->open &&
	       run->last.generation == core->lineage->generation &&
	       ckpt_delta_run_has(run, generation, step);
}
