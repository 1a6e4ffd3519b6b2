/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a store, in memory. */
#include "engine/lineage/scan.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

void ckpt_scan_clear(struct ckpt_scan *scan)
{
	ckpt_free(scan->gens);
	ckpt_free(scan->steps);
	*scan = (struct ckpt_scan){0};
}

uint64_t ckpt_scan_newest(const struct ckpt_scan *scan)
{
	return scan->gen_count ? scan->gens[scan->gen_count - 1].generation : 0;
}

uint64_t ckpt_scan_newest_claim(const struct ckpt_scan *scan)
{
	for (size_t i = scan->gen_count; i > 0; i--)
		if (scan->gens[i - 1].claimed)
			return scan->gens[i - 1].generation;
	return 0;
}

struct ckpt_scan_gen *ckpt_scan_gen(struct ckpt_scan *scan, uint64_t generation)
{
	for (size_t i = 0; i < scan->gen_count; i++)
		if (scan->gens[i].generation == generation)
			return &scan->gens[i];
	return NULL;
}

/* Newest first. */
static int step_order(const struct ckpt_scan_step *a, uint64_t generation, uint64_t step)
{
	if (a->generation != generation)
		return a->generation > generation ? -1 : 1;
	if (a->step != step)
		return a->step > step ? -1 : 1;
	return 0;
}

/* The index of the step, or where it would be inserted. */
static size_t step_place(const struct ckpt_scan *scan, uint64_t generation, uint64_t step)
{
	size_t low = 0;
	size_t high = scan->step_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (step_order(&scan->steps[middle], generation, step) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct ckpt_scan_step *ckpt_scan_find(struct ckpt_scan *scan, uint64_t generation, uint64_t step)
{
	size_t place = step_place(scan, generation, step);

	if (place < scan->step_count && step_order(&scan->steps[place], generation, step) == 0)
		return &scan->steps[place];
	return NULL;
}

int ckpt_scan_put(struct ckpt_scan *scan, const struct ckpt_scan_step *step)
{
	struct ckpt_scan_step *old = ckpt_scan_find(scan, step->generation, step->step);

	if (old) {
		*old = *step;
		return 0;
	}
	struct ckpt_scan_step *steps =
		ckpt_realloc_array(scan->steps, scan->step_count + 1, sizeof(*steps));
	if (!steps)
		return -ENOMEM;
	scan->steps = steps;
	size_t place = step_place(scan, step->generation, step->step);
	memmove(&steps[place + 1], &steps[place], (scan->step_count - place) * sizeof(*steps));
	steps[place] = *step;
	scan->step_count++;
	return 0;
}

void ckpt_scan_set_state(
	struct ckpt_scan *scan, uint64_t generation, uint64_t step, enum ckpt_step_state state)
{
	struct ckpt_scan_step *s = ckpt_scan_find(scan, generation, step);

	if (s)
		s->state = state;
}

void ckpt_scan_drop(struct ckpt_scan *scan, uint64_t generation, uint64_t step)
{
	struct ckpt_scan_step *old = ckpt_scan_find(scan, generation, step);

	if (!old)
		return;
	size_t place = (size_t)(old - scan->steps);
	scan->step_count--;
	memmove(old, old + 1, (scan->step_count - place) * sizeof(*old));
}

bool ckpt_scan_may_be_good(const struct ckpt_scan_step *step)
{
	return step->code == CKPT_EVERSION || step->code == CKPT_ENETWORK ||
	       step->code == CKPT_EAUTH || step->code == CKPT_ENOSTORE ||
	       step->code == CKPT_EUNSUPPORTED ||
	       (step->code > CKPT_EINTEGRITY && !ckpt_store_is_no_file(step->code));
}

/*
 * The steps that one may need of which it is not known: right behind it, from scan->steps[first] on. Returns where they
 * end.
 */
static size_t find_unknown_bases(const struct ckpt_scan *scan, size_t at, size_t *ret_first)
{
	const struct ckpt_scan_step *s = &scan->steps[at];
	size_t end = at + 1;
	unsigned count = 0;

	*ret_first = end;
	if (s->state != CKPT_STEP_BROKEN || !ckpt_scan_may_be_good(s))
		return end;
	while (end < scan->step_count && count < CKPT_BASES_MAX)
		count += scan->steps[end++].state != CKPT_STEP_ABORTED;
	return end;
}

void ckpt_scan_mark_needed(struct ckpt_scan *scan)
{
	size_t at;

	for (size_t i = 0; i < scan->step_count; i++)
		scan->steps[i].needed = false;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];

		for (unsigned k = 0; k < s->base_count; k++) {
			struct ckpt_scan_step *base =
				ckpt_scan_find(scan, s->bases[k].generation, s->bases[k].step);
			if (base)
				base->needed = true;
		}
		for (size_t end = find_unknown_bases(scan, i, &at); at < end; at++)
			scan->steps[at].needed = true;
	}
}

const struct ckpt_scan_step *ckpt_scan_needs(
	const struct ckpt_scan *scan, uint64_t generation, uint64_t step)
{
	size_t at;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];

		for (unsigned k = 0; k < s->base_count; k++)
			if (s->bases[k].generation == generation && s->bases[k].step == step)
				return s;
		for (size_t end = find_unknown_bases(scan, i, &at); at < end; at++)
			if (scan->steps[at].generation == generation &&
				scan->steps[at].step == step)
				return s;
	}
	return NULL;
}

int ckpt_scan_put_gen(struct ckpt_scan *scan, const struct ckpt_scan_gen *gen)
{
	struct ckpt_scan_gen *old = ckpt_scan_gen(scan, gen->generation);

	if (old) {
		*old = *gen;
		return 0;
	}
	struct ckpt_scan_gen *gens =
		ckpt_realloc_array(scan->gens, scan->gen_count + 1, sizeof(*gens));
	if (!gens)
		return -ENOMEM;
	scan->gens = gens;
	size_t place = scan->gen_count;
	while (place > 0 && gens[place - 1].generation > gen->generation)
		place--;
	memmove(&gens[place + 1], &gens[place], (scan->gen_count - place) * sizeof(*gens));
	gens[place] = *gen;
	scan->gen_count++;
	return 0;
}
