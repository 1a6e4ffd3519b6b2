/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the core publishes to the threads of the user: bits that are only ever set, and a wait for
 * them. Whoever publishes sets; anyone waits.
 */
#ifndef CKPT_BASE_LATCH_H
#define CKPT_BASE_LATCH_H

#include <pthread.h>
#include "base/compiler.h"

struct ckpt_latch {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t bits; /* guarded by lock */
};

int ckpt_latch_init(struct ckpt_latch *latch);
void ckpt_latch_destroy(struct ckpt_latch *latch);
void ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits);
uint32_t ckpt_latch_get(struct ckpt_latch *latch);
/*
 * Waits until any of `bits` is set and returns all that are; at most timeout_ms (-1: no end, 0: does
 * not wait), then returns what is set.
 */
uint32_t ckpt_latch_wait(struct ckpt_latch *latch, uint32_t bits, int timeout_ms);
/* The same until a monotonic time; UINT64_MAX: no end, 0: does not wait. */
uint32_t ckpt_latch_wait_until(struct ckpt_latch *latch, uint32_t bits, uint64_t deadline_ns);

#endif
