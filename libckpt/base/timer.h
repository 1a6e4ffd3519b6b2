/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines that one thread (the core's) watches, in an unsorted list, because there are few. The caller passes the
 * time.
 */
#ifndef CKPT_BASE_TIMER_H
#define CKPT_BASE_TIMER_H

#include "base/compiler.h"

struct ckpt_timer {
	struct ckpt_timer *next;
	uint64_t at_ns;
	/* Called once; the timer is no longer in the list then. */
	void (*fire)(struct ckpt_timer *timer);
	bool set;
};

struct ckpt_timers {
	struct ckpt_timer *first;
};

/* `fire` is set. Replaces the deadline of a timer that is set. */
void ckpt_timer_set(struct ckpt_timers *timers, struct ckpt_timer *timer, uint64_t at_ns);
/* Does nothing if it is not set. */
void ckpt_timer_clear(struct ckpt_timers *timers, struct ckpt_timer *timer);
/* A timer that is due, or NULL; and the earliest deadline, UINT64_MAX: none. */
struct ckpt_timer *ckpt_timer_due(
	const struct ckpt_timers *timers, uint64_t now_ns, uint64_t *ret_next_ns);

#endif
