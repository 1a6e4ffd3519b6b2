/* SPDX-License-Identifier: Apache-2.0 */
/* A list of deadlines. */
#include "base/timer.h"

void ckpt_timer_set(struct ckpt_timers *timers, struct ckpt_timer *timer, uint64_t at_ns)
{
	CKPT_ASSERT(timer->fire != NULL);
	ckpt_timer_clear(timers, timer);
	timer->at_ns = at_ns;
	timer->set = true;
	timer->next = timers->first;
	timers->first = timer;
}

void ckpt_timer_clear(struct ckpt_timers *timers, struct ckpt_timer *timer)
{
	if (!timer->set)
		return;
	struct ckpt_timer **link = &timers->first;
	while (*link && *link != timer)
		link = &(*link)->next;
	CKPT_ASSERT(*link == timer);
	*link = timer->next;
	timer->set = false;
}

struct ckpt_timer *ckpt_timer_due(
	const struct ckpt_timers *timers, uint64_t now_ns, uint64_t *ret_next_ns)
{
	struct ckpt_timer *due = NULL;

	*ret_next_ns = UINT64_MAX;
	for (struct ckpt_timer *t = timers->first; t; t = t->next) {
		if (t->at_ns <= now_ns)
			due = t;
		*ret_next_ns = ckpt_min_u64(*ret_next_ns, t->at_ns);
	}
	return due;
}
