/* SPDX-License-Identifier: Apache-2.0 */
/* A server that is asked too often is asked less; one that hesitates now and then is not waited for. */
#include "lib/test.h"

#include <stdbool.h>

#include "lib/dice.h"
#include "s3/pace.h"

#define SECOND UINT64_C(1000000000)

static void test_pace(void **state)
{
	struct ckpt_s3_pace pace;
	uint64_t now = 5 * SECOND;

	(void)state;
	ckpt_s3_pace_init(&pace, 10, now);
	assert_false(ckpt_s3_pace_success(&pace, now + 9 * SECOND));
	assert_int_equal(pace.now, 10);
	/* A burst of refusals is one reason. */
	assert_true(ckpt_s3_pace_throttled(&pace, now));
	for (unsigned i = 0; i < 20; i++)
		assert_false(ckpt_s3_pace_throttled(&pace, now + i * SECOND / 25));
	assert_int_equal(pace.now, 5);
	now += SECOND;
	assert_true(ckpt_s3_pace_throttled(&pace, now));
	assert_int_equal(pace.now, 2);
	now += SECOND;
	assert_true(ckpt_s3_pace_throttled(&pace, now));
	assert_int_equal(pace.now, 1);
	for (unsigned i = 0; i < 10; i++)
		assert_false(ckpt_s3_pace_throttled(&pace, now += SECOND));
	assert_int_equal(pace.now, 1);
	/* One more for each good second, however many requests that were. */
	for (unsigned i = 0; i < 900; i++)
		(void)ckpt_s3_pace_success(&pace, now += SECOND / 100);
	assert_int_equal(pace.now, 10);
	assert_false(ckpt_s3_pace_success(&pace, now + 100 * SECOND));
}

/* A server that takes 300 requests a second, and refuses the others: it is found, and kept to. */
static void test_pace_finds_what_is_taken(void **state)
{
	struct ckpt_s3_pace pace;
	uint64_t refused = 0;
	uint64_t made = 0;

	(void)state;
	ckpt_s3_pace_init(&pace, 256, 0);
	/* Each of those under way takes 0.1 s. */
	for (uint64_t turn = 0; turn < 6000; turn++) {
		uint64_t now = turn * SECOND / 10;
		unsigned under_way = pace.now;

		for (unsigned i = 0; i < under_way; i++) {
			bool taken = i < 30;

			if (turn > 1000)
				made++, refused += !taken;
			if (taken)
				(void)ckpt_s3_pace_success(&pace, now);
			else
				(void)ckpt_s3_pace_throttled(&pace, now);
		}
		assert_true(pace.now >= 1 && pace.now <= 256);
		assert_true(turn < 100 || pace.now <= 32);
	}
	assert_true(made / 500 >= 200);
	assert_true(refused * 20 < made);
}

/* Until enough was seen, and then what nine of ten have kept to, at least a second. */
static void test_patience_begins(void **state)
{
	struct ckpt_s3_patience p;

	(void)state;
	ckpt_s3_patience_init(&p, 4);
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(ckpt_s3_patience_ms(&p), 0);
		ckpt_s3_patience_late(&p);
		ckpt_s3_patience_success(&p, i == 0 ? 4900 : 200, 1000);
	}
	assert_int_equal(ckpt_s3_patience_ms(&p), 1000);
	ckpt_s3_patience_init(&p, 10);
	for (unsigned i = 0; i < 10; i++)
		ckpt_s3_patience_success(&p, 300 * i, 3000);
	assert_int_equal(ckpt_s3_patience_ms(&p), 2400);
	/* As many samples as connections, and no more than there is room for. */
	ckpt_s3_patience_init(&p, 100000);
	for (unsigned i = 0; i < CKPT_S3_PATIENCE_SAMPLES_MAX; i++) {
		assert_int_equal(ckpt_s3_patience_ms(&p), 0);
		ckpt_s3_patience_success(&p, 100, 200);
	}
	assert_int_equal(ckpt_s3_patience_ms(&p), 1000);
}

/* S3 as it is: 0.2 s, and one of a thousand 5 s. */
static void test_patience_with_s3(void **state)
{
	struct ckpt_s3_patience p;
	struct dice dice = {17};
	unsigned hurried = 0;
	unsigned slow = 0;

	(void)state;
	ckpt_s3_patience_init(&p, 25);
	for (unsigned i = 0; i < 100000; i++) {
		uint64_t first = dice_below(&dice, 1000) == 0 ? 5000 : 150 + dice_below(&dice, 100);
		uint64_t limit = ckpt_s3_patience_ms(&p);

		slow += first == 5000;
		assert_true(i < 25 || limit > 0);
		if (limit > 0 && first > limit) {
			hurried++;
			ckpt_s3_patience_late(&p);
		} else {
			ckpt_s3_patience_success(&p, first, first + 500);
		}
		/* Far from what is usual, and far from waiting the slow ones out. */
		if (i > 2000)
			assert_true(
				ckpt_s3_patience_ms(&p) > 800 && ckpt_s3_patience_ms(&p) < 2200);
	}
	assert_true(hurried * 100 >= slow * 95);
}

/* A server that is slow as a whole is never hurried: of these, none. */
static void test_patience_with_slow_servers(void **state)
{
	struct ckpt_s3_patience p;

	(void)state;
	ckpt_s3_patience_init(&p, 10);
	for (unsigned i = 0; i < 1000; i++) {
		ckpt_s3_patience_success(&p, 4000, 5000);
		assert_int_equal(ckpt_s3_patience_ms(&p), 0);
	}
	ckpt_s3_patience_init(&p, 10);
	for (unsigned i = 0; i < 1000; i++)
		ckpt_s3_patience_success(&p, UINT64_MAX, UINT64_MAX);
	assert_int_equal(ckpt_s3_patience_ms(&p), 0);
}

/* It becomes slower, by any amount: at most a few tries are lost before a part goes through. */
static void test_patience_learns(void **state)
{
	(void)state;
	for (uint64_t later = 300; later < 40000; later += 100) {
		struct ckpt_s3_patience p;
		unsigned lost = 0;

		ckpt_s3_patience_init(&p, 10);
		for (unsigned i = 0; i < 500; i++)
			ckpt_s3_patience_success(&p, 200, 400);
		for (unsigned done = 0; done < 2000;) {
			uint64_t limit = ckpt_s3_patience_ms(&p);

			if (limit > 0 && later > limit) {
				lost++;
				ckpt_s3_patience_late(&p);
			} else {
				ckpt_s3_patience_success(&p, later, later + 200);
				done++;
			}
			assert_true(lost <= 60);
		}
		/* And what it was for a day is not held against what it is now. */
		assert_true(p.off || ckpt_s3_patience_ms(&p) >= later);
	}
}

/* The average forgets: 700 ms above what is usual now. */
static void test_patience_forgets(void **state)
{
	struct ckpt_s3_patience p;

	(void)state;
	ckpt_s3_patience_init(&p, 10);
	for (unsigned i = 0; i < 100000; i++)
		ckpt_s3_patience_success(&p, 1000, 1400);
	assert_in_range(ckpt_s3_patience_ms(&p), 1690, 1700);
	for (unsigned i = 0; i < 100000; i++)
		ckpt_s3_patience_success(&p, 100, 400);
	assert_in_range(ckpt_s3_patience_ms(&p), 795, 805);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pace),
		cmocka_unit_test(test_pace_finds_what_is_taken),
		cmocka_unit_test(test_patience_begins),
		cmocka_unit_test(test_patience_with_s3),
		cmocka_unit_test(test_patience_with_slow_servers),
		cmocka_unit_test(test_patience_learns),
		cmocka_unit_test(test_patience_forgets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
