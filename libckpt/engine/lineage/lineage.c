/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps a restore may choose. */
#include "engine/lineage/lineage.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"

static bool may_restore(const struct ckpt_scan_step *step)
{
	return step->state == CKPT_STEP_COMMITTED || step->state == CKPT_STEP_QUARANTINED;
}

static void mark_upto(struct ckpt_scan *scan, uint64_t generation, uint64_t limit)
{
	for (size_t i = 0; i < scan->step_count; i++) {
		struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation == generation && s->step <= limit && may_restore(s))
			s->in_lineage = true;
	}
}

/*
 * A generation is claimed before its first commit, and claims are never deleted. So a commit without a claim means that
 * the claim was lost. Checks generations `from` to `to`, up to step `limit`.
 */
static int check_lost(
	struct ckpt_scan *scan, uint64_t from, uint64_t to, uint64_t limit, struct ckpt_error *err)
{
	char path[CKPT_PATH_MAX];

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation < from || s->generation > to || s->step > limit ||
			!may_restore(s) || s->later)
			continue;
		ckpt_name_claim(path, s->generation);
		return ckpt_fail_at(err, CKPT_EINCOMPLETE,
			&(struct ckpt_where){.tier = "local", .file = path},
			"%s is missing, though step %llu was committed in generation %llu, so "
			"it is unknown which steps belong to the lineage: put the file back from a "
			"copy",
			path, (unsigned long long)s->step, (unsigned long long)s->generation);
	}
	return 0;
}

int ckpt_lineage_mark(struct ckpt_scan *scan, struct ckpt_error *err)
{
	uint64_t limit = CKPT_STEP_MAX;
	uint64_t generation = 0;

	for (size_t i = 0; i < scan->step_count; i++)
		scan->steps[i].in_lineage = false;
	/* A directory without claim and commit is no generation. */
	for (size_t i = 0; i < scan->gen_count; i++)
		if (scan->gens[i].claimed)
			generation = scan->gens[i].generation;
	int r = check_lost(scan, generation + 1, UINT64_MAX, CKPT_STEP_MAX, err);
	if (r < 0)
		return r;
	while (generation) {
		const struct ckpt_scan_gen *gen = ckpt_scan_gen(scan, generation);
		/* An exported store contains only its last generation. */
		if (!gen || !gen->claimed)
			return check_lost(scan, generation, generation, limit, err);
		/* Its own steps are known by name; only the steps before it need its claim. */
		mark_upto(scan, generation, limit);
		if (gen->broken) {
			char path[CKPT_PATH_MAX];
			ckpt_name_claim(path, generation);
			return ckpt_fail_at(err, CKPT_EINTEGRITY,
				&(struct ckpt_where){.tier = "local", .file = path},
				"%s does not verify, so it is unknown which steps came before "
				"generation %llu: put the file back from a copy",
				path, (unsigned long long)generation);
		}
		/* The decoder has checked that a parent is older. */
		CKPT_ASSERT(gen->claim.parent_generation < generation);
		limit = gen->claim.parent_step;
		generation = gen->claim.parent_generation;
	}
	return 0;
}

/* The first generation of the run of `generation`; 0: a claim in between is missing, or there is none. */
static uint64_t beginning(struct ckpt_scan *scan, uint64_t generation)
{
	for (;;) {
		const struct ckpt_scan_gen *gen = ckpt_scan_gen(scan, generation);
		if (!gen || !gen->claimed || gen->broken)
			return 0;
		if (gen->claim.parent_generation == 0)
			return generation;
		generation = gen->claim.parent_generation;
	}
}

void ckpt_lineage_mark_rolled_back(struct ckpt_scan *scan)
{
	uint64_t newest = ckpt_scan_newest_claim(scan);
	uint64_t first = beginning(scan, newest);

	for (size_t i = 0; i < scan->step_count; i++) {
		struct ckpt_scan_step *s = &scan->steps[i];
		s->rolled_back = first > 0 && !s->in_lineage && may_restore(s) &&
				 s->generation < newest && beginning(scan, s->generation) == first;
	}
}

bool ckpt_lineage_holds(struct ckpt_scan *scan, uint64_t generation, uint64_t step)
{
	uint64_t from = ckpt_scan_newest_claim(scan);
	uint64_t limit = CKPT_STEP_MAX;

	for (;;) {
		const struct ckpt_scan_gen *gen = ckpt_scan_gen(scan, from);
		if (!gen || !gen->claimed)
			return false;
		if (from == generation)
			return step <= limit;
		if (gen->broken)
			return false;
		limit = gen->claim.parent_step;
		from = gen->claim.parent_generation;
	}
}

static struct ckpt_scan_step *choose_number(struct ckpt_scan *scan, uint64_t step)
{
	for (size_t i = 0; i < scan->step_count; i++)
		if (scan->steps[i].in_lineage && scan->steps[i].step == step)
			return &scan->steps[i];
	return NULL;
}

/* The step that is `back` places behind the newest, among those with or without a tombstone. Counts `back` down. */
static struct ckpt_scan_step *choose_back(
	struct ckpt_scan *scan, bool deleting, uint64_t *back, unsigned *passed)
{
	for (size_t i = 0; i < scan->step_count; i++) {
		struct ckpt_scan_step *s = &scan->steps[i];
		if (!s->in_lineage || s->deleting != deleting)
			continue;
		if (s->state == CKPT_STEP_QUARANTINED)
			(*passed)++;
		else if ((*back)-- == 0)
			return s;
	}
	return NULL;
}

struct ckpt_scan_step *ckpt_lineage_choose(
	struct ckpt_scan *scan, uint64_t step, unsigned *ret_passed)
{
	uint64_t back = UINT64_MAX - step;
	unsigned passed = 0;

	if (back > UINT32_MAX)
		return choose_number(scan, step);
	/* If there is no other, a step with a tombstone is chosen. */
	struct ckpt_scan_step *found = choose_back(scan, false, &back, &passed);
	if (!found)
		found = choose_back(scan, true, &back, &passed);
	if (found && ret_passed)
		*ret_passed = passed;
	return found;
}

size_t ckpt_lineage_count(const struct ckpt_scan *scan)
{
	size_t count = 0;

	for (size_t i = 0; i < scan->step_count; i++)
		if (scan->steps[i].in_lineage && scan->steps[i].state == CKPT_STEP_COMMITTED)
			count++;
	return count;
}

int ckpt_lineage_open(struct ckpt_core *core)
{
	core->lineage = ckpt_alloc(sizeof(*core->lineage));
	if (!core->lineage)
		return -ENOMEM;
	core->lineage->holder.fd = -1;
	return 0;
}

void ckpt_lineage_close(struct ckpt_core *core)
{
	if (!core->lineage)
		return;
	ckpt_scan_clear(&core->lineage->scan);
	ckpt_free(core->lineage->sessions.names);
	ckpt_free(core->lineage);
	core->lineage = NULL;
}
