/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes per second, on a clock of the test's own. */
#include "net/rate.h"

#include "lib/prng.h"
#include "lib/test.h"

#define SECOND UINT64_C(1000000000)

static void test_no_bound(void **state)
{
	struct ckpt_rate rate = {0};

	(void)state;
	for (int i = 0; i < 100; i++)
		assert_true(ckpt_rate_take(&rate, 5, 1u << 30) == 0);
	assert_true(ckpt_rate_piece(&rate, 12345) == 12345);
}

/* Whoever asks when told gets all of the rate, and nobody more than that and the burst, over any time. */
static void test_bound_holds(void **state)
{
	static const uint64_t rates[] = {1, 1000, 1000000, 12500000000};

	(void)state;
	for (size_t i = 0; i < COUNT(rates); i++) {
		struct ckpt_rate rate = {.bytes_per_s = rates[i]};
		struct prng prng = {.state = i};
		uint64_t start_ns = 77 * SECOND;
		uint64_t now_ns = start_ns;
		uint64_t piece = ckpt_rate_piece(&rate, 262144);
		uint64_t taken = 0;
		uint64_t last = 0;
		for (int n = 0; n < 20000; n++) {
			uint64_t want = 1 + prng_below(&prng, piece);
			uint64_t again_ns = ckpt_rate_take(&rate, now_ns, want);
			if (again_ns != 0) {
				assert_true(again_ns > now_ns);
				now_ns = again_ns;
				continue;
			}
			taken += want;
			last = want;
			double most = (double)rates[i] *
					      (double)(now_ns - start_ns + CKPT_RATE_BURST_NS) /
					      SECOND +
				      (double)last + 1;
			assert_true((double)taken <= most);
		}
		double elapsed = (double)(now_ns - start_ns) / SECOND;
		assert_true((double)taken >= 0.99 * (double)rates[i] * elapsed - (double)piece);
	}
}

/* What was not used is not saved up. */
static void test_no_savings(void **state)
{
	struct ckpt_rate rate = {.bytes_per_s = 1000000};
	uint64_t taken = 0;

	(void)state;
	assert_true(ckpt_rate_take(&rate, SECOND, 1000) == 0);
	while (ckpt_rate_take(&rate, 1000 * SECOND, 1000) == 0)
		taken += 1000;
	assert_true(taken <= 22000);
}

static void test_piece(void **state)
{
	struct ckpt_rate rate = {.bytes_per_s = 1000000};

	(void)state;
	assert_true(ckpt_rate_piece(&rate, 262144) == 20000);
	assert_true(ckpt_rate_piece(&rate, 100) == 100);
	rate.bytes_per_s = 10;
	assert_true(ckpt_rate_piece(&rate, 262144) == 4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_bound),
		cmocka_unit_test(test_bound_holds),
		cmocka_unit_test(test_no_savings),
		cmocka_unit_test(test_piece),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
