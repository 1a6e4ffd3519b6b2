/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/delta_run.h"

#include <string.h>

struct ckpt_delta_run ckpt_delta_run_add(const struct ckpt_delta_run *run, uint64_t generation,
	uint64_t step, bool based, uint64_t stored)
{
	struct ckpt_delta_run next = {
		.last = {.generation = generation, .step = step}, .whole = stored, .open = true};

	if (!based)
		return next;
	CKPT_ASSERT(run->open && run->count < CKPT_BASES_MAX);
	memcpy(next.steps, run->steps, run->count * sizeof(next.steps[0]));
	next.count = run->count;
	next.steps[next.count++] = run->last;
	next.whole = run->whole;
	if (__builtin_add_overflow(run->log, stored, &next.log))
		next.log = UINT64_MAX;
	next.open = next.count < CKPT_BASES_MAX && next.log < next.whole;
	return next;
}

static bool is(const struct ckpt_base_step *s, uint64_t generation, uint64_t step)
{
	return s->generation == generation && s->step == step;
}

bool ckpt_delta_run_has(const struct ckpt_delta_run *run, uint64_t generation, uint64_t step)
{
	for (unsigned i = 0; i < run->count; i++)
		if (is(&run->steps[i], generation, step))
			return true;
	return is(&run->last, generation, step);
}
