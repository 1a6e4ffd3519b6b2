/* SPDX-License-Identifier: Apache-2.0 */
/* A server that is asked too often is asked less. */
#include "lib/test.h"

#include <stdbool.h>

#include "s3/concurrency.h"

#define SECOND UINT64_C(1000000000)

static void test_concurrency(void **state)
{
	struct ckpt_s3_concurrency pace;
	uint64_t now = 5 * SECOND;

	(void)state;
	ckpt_s3_concurrency_init(&pace, 10, now);
	assert_false(ckpt_s3_concurrency_success(&pace, now + 9 * SECOND));
	assert_int_equal(pace.now, 10);
	/* A burst of refusals is one reason. */
	assert_true(ckpt_s3_concurrency_throttled(&pace, now));
	for (unsigned i = 0; i < 20; i++)
		assert_false(ckpt_s3_concurrency_throttled(&pace, now + i * SECOND / 25));
	assert_int_equal(pace.now, 5);
	now += SECOND;
	assert_true(ckpt_s3_concurrency_throttled(&pace, now));
	assert_int_equal(pace.now, 2);
	now += SECOND;
	assert_true(ckpt_s3_concurrency_throttled(&pace, now));
	assert_int_equal(pace.now, 1);
	for (unsigned i = 0; i < 10; i++)
		assert_false(ckpt_s3_concurrency_throttled(&pace, now += SECOND));
	assert_int_equal(pace.now, 1);
	/* One more for each good second, however many requests that were. */
	for (unsigned i = 0; i < 900; i++)
		(void)ckpt_s3_concurrency_success(&pace, now += SECOND / 100);
	assert_int_equal(pace.now, 10);
	assert_false(ckpt_s3_concurrency_success(&pace, now + 100 * SECOND));
}

/* A server that takes 300 requests a second, and refuses the others: it is found, and kept to. */
static void test_pace_finds_what_is_taken(void **state)
{
	struct ckpt_s3_concurrency pace;
	uint64_t refused = 0;
	uint64_t made = 0;

	(void)state;
	ckpt_s3_concurrency_init(&pace, 256, 0);
	/* Each of those under way takes 0.1 s. */
	for (uint64_t turn = 0; turn < 6000; turn++) {
		uint64_t now = turn * SECOND / 10;
		unsigned under_way = pace.now;

		for (unsigned i = 0; i < under_way; i++) {
			bool taken = i < 30;

			if (turn > 1000)
				made++, refused += !taken;
			if (taken)
				(void)ckpt_s3_concurrency_success(&pace, now);
			else
				(void)ckpt_s3_concurrency_throttled(&pace, now);
		}
		assert_true(pace.now >= 1 && pace.now <= 256);
		assert_true(turn < 100 || pace.now <= 32);
	}
	assert_true(made / 500 >= 200);
	assert_true(refused * 20 < made);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_concurrency),
		cmocka_unit_test(test_pace_finds_what_is_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
