/* SPDX-License-Identifier: Apache-2.0 */
#include "past.h"

uint64_t past_begin(struct past *past, uint64_t version)
{
	CKPT_ASSERT(past->count < PAST_STEPS - 1);
	past->edition++;
	past->steps[++past->count] = (struct past_step){.version = version};
	return past->count;
}

void past_ack(struct past *past, uint64_t step)
{
	past->edition++;
	past->steps[step].acked = true;
	past_confirm(past, step);
}

void past_let(struct past *past, uint64_t step, uint64_t by)
{
	struct past_step *s = &past->steps[step];

	past->edition++;
	if (s->let && s->by == 0)
		return;
	s->let = true;
	s->by = by;
}

void past_gone(struct past *past, uint64_t step)
{
	past->edition++;
	past->steps[step].gone = true;
}

void past_confirm(struct past *past, uint64_t step)
{
	for (uint64_t i = 1; i <= past->count; i++) {
		if (past->steps[i].by != step)
			continue;
		past->steps[i].by = 0;
		past->edition++;
	}
}

void past_judge(const struct past *past, uint64_t present, struct sim *sim)
{
	for (uint64_t i = 1; i <= past->count; i++) {
		const struct past_step *s = &past->steps[i];
		bool there = present >> i & 1;
		/* It, or one that came after it, shows that it was committed. */
		bool may_miss = !s->acked || (s->let && (!s->by || present >> s->by));
		if (!there && !may_miss)
			sim_violation(sim, "step %llu was acknowledged and is not there",
				(unsigned long long)i);
		if (there && s->gone)
			sim_violation(
				sim, "step %llu was removed and is there", (unsigned long long)i);
	}
}
