/* SPDX-License-Identifier: Apache-2.0 */
/* Bits that are only set, and waiting for them. */
#include "base/latch.h"

#include "base/thread.h"

int ckpt_latch_init(struct ckpt_latch *latch)
{
	int r;

	*latch = (struct ckpt_latch){0};
	r = pthread_mutex_init(&latch->lock, NULL);
	if (r != 0)
		return -r;
	r = ckpt_cond_init(&latch->changed);
	if (r < 0)
		(void)pthread_mutex_destroy(&latch->lock);
	return r;
}

void ckpt_latch_destroy(struct ckpt_latch *latch)
{
	(void)pthread_cond_destroy(&latch->changed);
	(void)pthread_mutex_destroy(&latch->lock);
}

void ckpt_latch_set(struct ckpt_latch *latch, uint32_t bits)
{
	pthread_mutex_lock(&latch->lock);
	latch->bits |= bits;
	/* With the lock held: once it is released, a waiter may free the latch. */
	pthread_cond_broadcast(&latch->changed);
	pthread_mutex_unlock(&latch->lock);
}

uint32_t ckpt_latch_get(struct ckpt_latch *latch)
{
	return ckpt_latch_wait(latch, UINT32_MAX, 0);
}

uint32_t ckpt_latch_wait(struct ckpt_latch *latch, uint32_t bits, int timeout_ms)
{
	return ckpt_latch_wait_until(latch, bits, timeout_ms == 0 ? 0 : ckpt_deadline(timeout_ms));
}

uint32_t ckpt_latch_wait_until(struct ckpt_latch *latch, uint32_t bits, uint64_t deadline_ns)
{
	uint32_t set;

	pthread_mutex_lock(&latch->lock);
	while (deadline_ns != 0 && !(latch->bits & bits)) {
		if (!ckpt_cond_wait_until(&latch->changed, &latch->lock, deadline_ns))
			break;
	}
	set = latch->bits;
	pthread_mutex_unlock(&latch->lock);
	return set;
}
