/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses one of several copy routines by the times of the first large copies. Which is fastest depends on the
 * processor. Any thread.
 */
#ifndef CKPT_DEVICE_COPY_CHOICE_H
#define CKPT_DEVICE_COPY_CHOICE_H

#include "base/compiler.h"

#include <stdatomic.h>

#define CKPT_COPY_WAYS    3
#define CKPT_COPY_SAMPLES 6 /* of each way; the fastest counts, because some are disturbed */

struct ckpt_copy_choice {
	atomic_uint begun;                        /* samples begun */
	atomic_uint ended;                        /* samples ended */
	atomic_int chosen;                        /* -1: not yet */
	_Atomic uint64_t fastest[CKPT_COPY_WAYS]; /* ns per GiB */
};
#define CKPT_COPY_CHOICE_INIT                                                                      \
	{                                                                                          \
		.chosen = -1, .fastest = { UINT64_MAX, UINT64_MAX, UINT64_MAX }                    \
	}

/* The best way known so far; way 0 until there is a choice. */
unsigned ckpt_copy_choice_now(struct ckpt_copy_choice *choice);
/* The way for a large copy. *ret_sample: pass its time to ckpt_copy_choice_note(). */
unsigned ckpt_copy_choice_next(struct ckpt_copy_choice *choice, bool *ret_sample);
void ckpt_copy_choice_note(
	struct ckpt_copy_choice *choice, unsigned way, uint64_t bytes, uint64_t ns);

#endif
