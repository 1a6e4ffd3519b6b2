/* SPDX-License-Identifier: Apache-2.0 */
/* State that the core publishes to user threads: bits that are set and never cleared. Any thread may wait. */
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
 * Waits until any of `bits` is set, at most timeout_ms (-1: no limit, 0: does not wait), and returns all bits that are
 * set.
 */
uint32_t ckpt_latch_wait(struct ckpt_latch *latch, uint32_t bits, int timeout_ms);
/* The same until a monotonic time; UINT64_MAX: no limit, 0: does not wait. */
uint32_t ckpt_latch_wait_until(struct ckpt_latch *latch, uint32_t bits, uint64_t deadline_ns);

#endif
