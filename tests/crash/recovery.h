/* SPDX-License-Identifier: Apache-2.0 */
/* What the real engine makes of a state of the disk, and whether that is right. */
#ifndef CRASH_RECOVERY_H
#define CRASH_RECOVERY_H

#include "mill.h"
#include "past.h"
#include "states.h"

#define RECOVERY_READER 900 /* processes */
#define RECOVERY_WRITER 901

struct recovery {
	struct sim *sim; /* where violations go */
	const struct past *past;
	const struct sim_shape *shape;
	struct sim_state into;
	uint64_t went_on;
};

/* The state that is picked: opens it, restores all that is there, compares. */
void recovery_read(struct recovery *recovery, const struct states *states);
/* A writer goes on from it on a disk of its own, saves once more, and all holds again. */
void recovery_go_on(struct recovery *recovery, const struct states *states, uint64_t seed);

#endif
