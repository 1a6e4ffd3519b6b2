/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was saved, acknowledged and let go, and what therefore must be there after a crash. Steps have
 * numbers that are used once, and ascend with time.
 */
#ifndef CRASH_PAST_H
#define CRASH_PAST_H

#include "engine/lineage/scan.h"
#include "sim/sim.h"

#define PAST_STEPS 64

struct past_step {
	uint64_t version; /* decides every byte */
	bool acked;
	bool let;    /* may be gone, ... */
	uint64_t by; /* ... if this one was committed; 0: in any case */
	bool gone;
};

struct past {
	uint64_t count;                         /* steps 1 to count were begun */
	struct past_step steps[PAST_STEPS + 1]; /* by number */
	uint64_t edition;                       /* counts what has changed */
};

/* The number of the new step. */
uint64_t past_begin(struct past *past, uint64_t version);
void past_ack(struct past *past, uint64_t step);
void past_let(struct past *past, uint64_t step, uint64_t by);
void past_gone(struct past *past, uint64_t step);
/* `step` was seen to be committed: what it let go may be gone from now on, whatever becomes of it. */
void past_confirm(struct past *past, uint64_t step);
/* Bit by step: what is there. What must not be so is a violation. */
void past_judge(const struct past *past, uint64_t present, struct sim *sim);

#endif
