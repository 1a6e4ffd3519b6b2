/* SPDX-License-Identifier: Apache-2.0 */
/* One part that lags far behind the others is seen; a network that is slow as a whole is left alone. */
#include "lib/test.h"

#include "lib/prng.h"
#include "s3/hedge.h"

#define SECOND UINT64_C(1000000000)
#define PART   (UINT64_C(16) << 20)

static bool is_late_of(
	const struct ckpt_s3_hedge *peers, uint64_t begun_ns, uint64_t now_ns, unsigned lagging)
{
	uint64_t look_ns = ckpt_s3_hedge_look(peers, PART, begun_ns, now_ns, lagging);

	/* Else it would never be looked at again, or all the time. */
	assert_true(look_ns >= now_ns && look_ns < now_ns + 4000 * SECOND);
	return look_ns == now_ns;
}

static bool is_late(const struct ckpt_s3_hedge *peers, uint64_t begun_ns, uint64_t now_ns)
{
	return is_late_of(peers, begun_ns, now_ns, 1);
}

static void test_one_that_lags(void **state)
{
	struct ckpt_s3_hedge peers = {.count = 0};
	uint64_t begun = 100 * SECOND;

	(void)state;
	/* Those that ended before it began say nothing of what is now. */
	for (unsigned i = 0; i < 100; i++)
		ckpt_s3_hedge_ended(&peers, PART, 90 * SECOND, 91 * SECOND);
	assert_false(is_late(&peers, begun, begun + 500 * SECOND));
	for (unsigned i = 0; i < 4; i++)
		ckpt_s3_hedge_ended(&peers, PART, begun, begun + SECOND / 2);
	assert_false(is_late(&peers, begun, begun + 500 * SECOND));
	ckpt_s3_hedge_ended(&peers, PART, begun, begun + SECOND / 2);
	/* However fast they are: not before three seconds. */
	assert_false(is_late(&peers, begun, begun + 3 * SECOND - 1));
	assert_int_equal(
		ckpt_s3_hedge_look(&peers, PART, begun, begun + SECOND, 1), begun + 3 * SECOND);
	assert_true(is_late(&peers, begun, begun + 3 * SECOND));
	/* Of two that lag the number of the others is no proof. */
	assert_false(is_late_of(&peers, begun, begun + 3 * SECOND, 2));
	/* Four times as long as nine of ten of them have taken. */
	for (unsigned i = 0; i < 64; i++)
		ckpt_s3_hedge_ended(
			&peers, PART, begun, begun + (i % 10 < 9 ? 2 * SECOND : 60 * SECOND));
	assert_false(is_late(&peers, begun, begun + 8 * SECOND - 1));
	assert_true(is_late(&peers, begun, begun + 8 * SECOND));
	assert_true(is_late(&peers, begun, begun + 900 * SECOND));
}

/* The small ones at the ends of shards are sooner done, and no measure. */
static void test_other_sizes(void **state)
{
	struct ckpt_s3_hedge peers = {.count = 0};

	(void)state;
	for (unsigned i = 0; i < 64; i++)
		ckpt_s3_hedge_ended(&peers, PART / 2 - 1, SECOND, 2 * SECOND);
	assert_false(is_late(&peers, SECOND, 100 * SECOND));
	for (unsigned i = 0; i < 5; i++)
		ckpt_s3_hedge_ended(&peers, PART / 2, SECOND, 2 * SECOND);
	assert_true(is_late(&peers, SECOND, 100 * SECOND));
}

/* Requests at once, each with work to be done at a speed that all share; looked at every half second. */
static unsigned count_late(
	uint64_t seed, unsigned at_once, uint64_t speed_before, uint64_t speed_after)
{
	struct ckpt_s3_hedge peers = {.count = 0};
	struct prng prng = {seed};
	uint64_t begun[32], left[32], now = SECOND;
	unsigned late = 0;

	for (unsigned i = 0; i < at_once; i++) {
		begun[i] = now;
		left[i] = 500 + prng_below(&prng, 500);
	}
	for (unsigned turn = 0; turn < 4000; turn++) {
		uint64_t speed = turn < 400 ? speed_before : speed_after;
		now += SECOND / 20;
		for (unsigned i = 0; i < at_once; i++) {
			left[i] -= ckpt_min_u64(left[i], speed);
			if (left[i] == 0) {
				ckpt_s3_hedge_ended(&peers, PART, begun[i], now);
				begun[i] = now;
				left[i] = 500 + prng_below(&prng, 500);
			}
		}
		for (unsigned i = 0; i < at_once; i++) {
			unsigned lagging = 0;
			for (unsigned j = 0; j < at_once; j++)
				lagging += (now - begun[j]) * 2 >= now - begun[i];
			late += is_late_of(&peers, begun[i], now, lagging);
		}
	}
	return late;
}

static void test_slow_as_a_whole(void **state)
{
	static const uint64_t speeds[] = {1, 2, 5, 10, 25, 100};

	(void)state;
	for (uint64_t seed = 0; seed < 4; seed++)
		for (size_t before = 0; before < COUNT(speeds); before++)
			for (size_t after = 0; after < COUNT(speeds); after++)
				for (unsigned at_once = 1; at_once <= 32; at_once *= 2)
					assert_int_equal(count_late(seed, at_once, speeds[before],
								 speeds[after]),
						0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_that_lags),
		cmocka_unit_test(test_other_sizes),
		cmocka_unit_test(test_slow_as_a_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
