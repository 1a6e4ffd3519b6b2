/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of one training do to one store, one after the other: saves one by one and
 * overlapping, retention, removal, a way back to an older step, a new start, a step that is damaged and
 * put into quarantine, death in the middle. A seed decides what; the machine decides when. Steps have
 * numbers that are used once.
 */
#ifndef CRASH_LIFE_H
#define CRASH_LIFE_H

#include "kill/workload.h"
#include "lib/prng.h"

#define LIFE_STEPS 800

/* The steps of the lineage, oldest first. */
struct life_line {
	unsigned steps[LIFE_STEPS];
	uint64_t generations[LIFE_STEPS];
	bool let[LIFE_STEPS];
	unsigned count;
};

struct life {
	struct workload workload;
	struct prng prng;
	struct life_line line;
	/* Shared with the processes. */
	struct life_shared {
		unsigned next_step;
		unsigned marks;          /* for deed.tell */
		unsigned by[LIFE_STEPS]; /* with which step retention may take this one; 0: none */
	} * shared;
};

void life_init(struct life *life, const char *root, uint64_t seed);
void life_free(struct life *life);
/* One process, in this one: it may end it. */
void life_phase(struct life *life, bool may_die);
/* Some, each in a child. Ends the program if one of them fails. */
void life_phases(struct life *life, unsigned count);
/* Returns after so many microseconds: a moment that was drawn. A process dies then, and whatever it has done is right. */
void life_pause(uint64_t us);

#endif
