/* SPDX-License-Identifier: Apache-2.0 */
/* Latches: bits stay, waiters wake, waits end. */
#include "lib/test.h"

#include "base/latch.h"
#include "base/thread.h"
#include "lib/hang_inbox.h"

#define WAITERS 4

struct waiter {
	struct ckpt_latch *latch;
	struct ckpt_latch *started;
	uint32_t own; /* bit that says it has started */
	uint32_t bits;
	uint32_t got;
};

static void *wait_for_bits(void *argument)
{
	struct waiter *waiter = argument;

	ckpt_latch_set(waiter->started, waiter->own);
	waiter->got = ckpt_latch_wait(waiter->latch, waiter->bits, -1);
	return NULL;
}

static void test_bits_stay(void **state)
{
	struct ckpt_latch latch;

	(void)state;
	assert_int_equal(ckpt_latch_init(&latch), 0);
	assert_int_equal(ckpt_latch_get(&latch), 0);
	ckpt_latch_set(&latch, 5);
	ckpt_latch_set(&latch, 2);
	assert_int_equal(ckpt_latch_get(&latch), 7);
	assert_int_equal(ckpt_latch_wait(&latch, 1, -1), 7);
	assert_int_equal(ckpt_latch_wait(&latch, 12, -1), 7);
	assert_int_equal(ckpt_latch_wait(&latch, 8, 0), 7);
	ckpt_latch_destroy(&latch);
}

static void test_wait_ends(void **state)
{
	struct ckpt_latch latch;
	uint64_t start;

	(void)state;
	assert_int_equal(ckpt_latch_init(&latch), 0);
	start = ckpt_clock_ns();
	assert_int_equal(ckpt_latch_wait(&latch, 1, 20), 0);
	assert_true(ckpt_clock_ns() - start >= 20 * 1000 * 1000);
	ckpt_latch_destroy(&latch);
}

static void test_every_waiter_wakes(void **state)
{
	struct waiter waiters[WAITERS];
	pthread_t threads[WAITERS];
	struct ckpt_latch started;
	struct ckpt_latch latch;

	(void)state;
	assert_int_equal(ckpt_latch_init(&latch), 0);
	assert_int_equal(ckpt_latch_init(&started), 0);
	for (unsigned i = 0; i < WAITERS; i++) {
		waiters[i] = (struct waiter){&latch, &started, 1u << i, 1u << i | 256, 0};
		assert_int_equal(
			ckpt_thread_start(&threads[i], "waiter", wait_for_bits, &waiters[i]), 0);
		await_latch(&started, 1u << i);
	}
	/* The first by a bit of its own, the others by one that all wait for. */
	ckpt_latch_set(&latch, 1);
	assert_int_equal(pthread_join(threads[0], NULL), 0);
	assert_int_equal(waiters[0].got, 1);
	ckpt_latch_set(&latch, 256);
	for (unsigned i = 1; i < WAITERS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(waiters[i].got, 257);
	}
	ckpt_latch_destroy(&started);
	ckpt_latch_destroy(&latch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bits_stay),
		cmocka_unit_test(test_wait_ends),
		cmocka_unit_test(test_every_waiter_wakes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
