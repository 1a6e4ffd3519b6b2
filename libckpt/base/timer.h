/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines that one thread watches: the core's. In a list sorted by nothing: there are few. The clock is
 * that of whoever fires them.
 */
#ifndef CKPT_BASE_TIMER_H
#define CKPT_BASE_TIMER_H

#include "base/compiler.h"

struct ckpt_timer {
	struct ckpt_timer *next;
	uint64_t at_ns;
	void (*fire)(struct ckpt_timer *timer); /* once; the timer is off the list by then */
	bool set;
};

struct ckpt_timers {
	struct ckpt_timer *first;
};

/* `fire` is set. One that is set already is set anew. */
void ckpt_timer_set(struct ckpt_timers *timers, struct ckpt_timer *timer, uint64_t at_ns);
/* Harmless when it is not set. */
void ckpt_timer_clear(struct ckpt_timers *timers, struct ckpt_timer *timer);
/* One that is due, or NULL; and the earliest of all, UINT64_MAX: none. */
struct ckpt_timer *ckpt_timer_due(
	const struct ckpt_timers *timers, uint64_t now_ns, uint64_t *ret_next_ns);

#endif
