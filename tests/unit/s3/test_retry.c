/* SPDX-License-Identifier: Apache-2.0 */
/* What may help is tried again, in time and not too often; what cannot is not. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/prng.h"
#include "s3/retry.h"

static void test_verdicts(void **state)
{
	static const struct {
		struct ckpt_s3_outcome outcome;
		enum ckpt_s3_verdict verdict;
	} cases[] = {
		{{0, 200, "", false}, CKPT_S3_DONE},
		{{0, 204, "", false}, CKPT_S3_DONE},
		{{0, 206, "", false}, CKPT_S3_DONE},
		{{0, 304, "", false}, CKPT_S3_DONE},
		/* CompleteMultipartUpload, whose headers are sent before it is done. */
		{{0, 200, "InternalError", false}, CKPT_S3_AGAIN},
		{{0, 200, "SlowDown", false}, CKPT_S3_THROTTLED},
		{{0, 200, "AccessDenied", false}, CKPT_S3_FAILED},
		{{0, 200, "WhatIsThis", false}, CKPT_S3_FAILED},
		{{CKPT_ENETWORK, 0, "", false}, CKPT_S3_AGAIN},
		{{-ETIMEDOUT, 0, "", false}, CKPT_S3_AGAIN},
		{{CKPT_EFORMAT, 0, "", false}, CKPT_S3_AGAIN},
		{{CKPT_EAUTH, 0, "", false}, CKPT_S3_FAILED},
		{{-ECANCELED, 0, "", false}, CKPT_S3_FAILED},
		{{-ENOMEM, 0, "", false}, CKPT_S3_FAILED},
		{{-EFBIG, 200, "", false}, CKPT_S3_FAILED},
		{{0, 400, "RequestTimeout", false}, CKPT_S3_AGAIN},
		{{0, 400, "BadDigest", false}, CKPT_S3_AGAIN},
		{{0, 400, "ExpiredToken", false}, CKPT_S3_REFRESH},
		{{0, 403, "ExpiredTokenException", false}, CKPT_S3_REFRESH},
		{{0, 403, "RequestTimeTooSkewed", false}, CKPT_S3_CLOCK},
		{{0, 400, "AuthorizationHeaderMalformed", false}, CKPT_S3_MOVED},
		{{0, 301, "PermanentRedirect", false}, CKPT_S3_MOVED},
		{{0, 307, "", false}, CKPT_S3_MOVED},
		{{0, 400, "", false}, CKPT_S3_FAILED},
		{{0, 400, "InvalidPart", false}, CKPT_S3_FAILED},
		{{0, 401, "", false}, CKPT_S3_FAILED},
		{{0, 403, "AccessDenied", false}, CKPT_S3_FAILED},
		{{0, 403, "SignatureDoesNotMatch", false}, CKPT_S3_FAILED},
		{{0, 403, "InvalidAccessKeyId", false}, CKPT_S3_FAILED},
		{{0, 404, "", false}, CKPT_S3_FAILED},
		{{0, 404, "NoSuchUpload", false}, CKPT_S3_FAILED},
		{{0, 408, "", false}, CKPT_S3_AGAIN},
		{{0, 409, "ConditionalRequestConflict", true}, CKPT_S3_AGAIN},
		{{0, 409, "ConditionalRequestConflict", false}, CKPT_S3_FAILED},
		{{0, 409, "OperationAborted", true}, CKPT_S3_AGAIN},
		{{0, 409, "BucketAlreadyExists", true}, CKPT_S3_FAILED},
		{{0, 412, "PreconditionFailed", true}, CKPT_S3_FAILED},
		{{0, 416, "InvalidRange", false}, CKPT_S3_FAILED},
		{{0, 429, "", false}, CKPT_S3_THROTTLED},
		{{0, 500, "", false}, CKPT_S3_AGAIN},
		{{0, 500, "SlowDown", false}, CKPT_S3_THROTTLED},
		{{0, 501, "NotImplemented", true}, CKPT_S3_FAILED},
		{{0, 502, "", false}, CKPT_S3_AGAIN},
		{{0, 503, "", false}, CKPT_S3_THROTTLED},
		{{0, 503, "SlowDown", false}, CKPT_S3_THROTTLED},
		{{0, 504, "", false}, CKPT_S3_AGAIN},
		{{0, 507, "InsufficientStorage", false}, CKPT_S3_FAILED},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		if (ckpt_s3_judge(&cases[i].outcome) != cases[i].verdict)
			fail_msg("%d %d %s: not %d", cases[i].outcome.result,
				cases[i].outcome.status, cases[i].outcome.code, cases[i].verdict);
	}
}

static struct ckpt_s3_delays delays_of(uint64_t random)
{
	return (struct ckpt_s3_delays){.left_ms = UINT64_MAX, .random = random};
}

/* Ten tries, and each wait is drawn from nothing to twice as much as before, to 20 s at most. */
static void test_waits(void **state)
{
	static const uint64_t most[2][9] = {
		{50, 100, 200, 400, 800, 1600, 3200, 6400, 12800},
		{1000, 2000, 4000, 8000, 16000, 20000, 20000, 20000, 20000},
	};
	struct prng prng = {3};

	(void)state;
	for (unsigned slow = 0; slow < 2; slow++) {
		uint64_t sum[9] = {0};

		for (unsigned round = 0; round < 2000; round++) {
			struct ckpt_s3_tries tries = {0};
			struct ckpt_s3_budget budget = {0};
			struct ckpt_s3_delays delays;
			uint64_t wait = 0;

			for (unsigned i = 0; i < 9; i++) {
				delays = delays_of(prng_next(&prng));
				assert_int_equal(ckpt_s3_tries_next(&tries, &budget,
							 slow ? CKPT_S3_THROTTLED : CKPT_S3_AGAIN,
							 &delays, &wait),
					CKPT_S3_GO);
				assert_true(wait <= most[slow][i]);
				sum[i] += wait;
			}
			assert_int_equal(budget.spent, 9 * (slow ? 5 : 10));
			assert_int_equal(
				ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait),
				CKPT_S3_TOO_MANY);
			assert_int_equal(budget.spent, 9 * (slow ? 5 : 10));
		}
		/* Full jitter: half of the most, on average. */
		for (unsigned i = 0; i < 9; i++) {
			assert_true(sum[i] / 2000 > most[slow][i] * 45 / 100);
			assert_true(sum[i] / 2000 < most[slow][i] * 55 / 100 + 1);
		}
	}
}

static void test_attempts_that_are_asked_for(void **state)
{
	struct ckpt_s3_budget budget = {0};
	struct ckpt_s3_delays delays = delays_of(0);
	uint64_t wait;

	(void)state;
	for (unsigned most = 1; most <= 200; most++) {
		struct ckpt_s3_tries tries = {.most = most};
		unsigned made = 1;

		budget.spent = 0;
		while (ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait) ==
			CKPT_S3_GO)
			made++;
		assert_int_equal(made, most);
	}
}

/* Many requests that fail together are soon made less often; each success pays a little back. */
static void test_budget(void **state)
{
	struct ckpt_s3_budget budget = {0};
	struct ckpt_s3_delays delays = delays_of(0);
	uint64_t wait = 77;

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		struct ckpt_s3_tries tries = {0};

		delays.random = 1000; /* the most that is drawn of a quick one is 50 */
		assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait),
			CKPT_S3_GO);
		assert_int_equal(wait, i < 50 ? 1000 % 51 : 1000);
		assert_int_equal(budget.spent, i < 50 ? (i + 1) * 10 : 500);
	}
	for (unsigned i = 0; i < 10; i++)
		ckpt_s3_budget_earn(&budget);
	assert_int_equal(ckpt_s3_tries_next(&(struct ckpt_s3_tries){0}, &budget, CKPT_S3_AGAIN,
				 &delays, &wait),
		CKPT_S3_GO);
	assert_int_equal(wait, 1000 % 51);
	/* The quick ones that went before do not make it wait for longer. */
	struct ckpt_s3_tries tries = {.failed = 6};
	delays.random = 2000;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait),
			CKPT_S3_GO);
		assert_int_equal(wait, i == 0 ? 2000 % 1001 : 2000);
	}
	assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait),
		CKPT_S3_TOO_MANY);
	for (unsigned i = 0; i < 1000; i++)
		ckpt_s3_budget_earn(&budget);
	assert_int_equal(budget.spent, 0);
}

/* New keys, the clock and the region help once, at once and for nothing. */
static void test_repaired_once(void **state)
{
	static const enum ckpt_s3_verdict verdicts[] = {
		CKPT_S3_REFRESH, CKPT_S3_CLOCK, CKPT_S3_MOVED};
	struct ckpt_s3_tries tries = {0};
	struct ckpt_s3_budget budget = {0};
	struct ckpt_s3_delays delays = delays_of(99);
	uint64_t wait = 77;

	(void)state;
	for (size_t i = 0; i < COUNT(verdicts); i++) {
		assert_int_equal(ckpt_s3_tries_next(&tries, &budget, verdicts[i], &delays, &wait),
			CKPT_S3_GO);
		assert_true(wait == 0 && budget.spent == 0 && tries.failed == 0);
	}
	for (size_t i = 0; i < COUNT(verdicts); i++)
		assert_int_equal(ckpt_s3_tries_next(&tries, &budget, verdicts[i], &delays, &wait),
			CKPT_S3_HOPELESS);
	assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_FAILED, &delays, &wait),
		CKPT_S3_HOPELESS);
}

/* What the server asks for is kept to, within the deadline. */
static void test_what_the_server_asks(void **state)
{
	struct ckpt_s3_tries tries = {0};
	struct ckpt_s3_budget budget = {0};
	struct ckpt_s3_delays delays = {.left_ms = 60001, .retry_after_ms = 60000};
	uint64_t wait = 0;

	(void)state;
	assert_int_equal(
		ckpt_s3_tries_next(&tries, &budget, CKPT_S3_THROTTLED, &delays, &wait), CKPT_S3_GO);
	assert_int_equal(wait, 60000);
	delays.left_ms = 60000;
	assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_THROTTLED, &delays, &wait),
		CKPT_S3_NO_TIME);
	assert_int_equal(budget.spent, 5);
	delays = (struct ckpt_s3_delays){.left_ms = 10000, .amz_retry_after_ms = 1500};
	tries.failed = 0;
	assert_int_equal(
		ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait), CKPT_S3_GO);
	assert_int_equal(wait, 1500);
	/* That one is for a moment: never more than 5 s longer than drawn. */
	delays.amz_retry_after_ms = 9000;
	assert_int_equal(
		ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait), CKPT_S3_GO);
	assert_int_equal(wait, 5000);
	delays = (struct ckpt_s3_delays){.left_ms = 0};
	assert_int_equal(ckpt_s3_tries_next(&tries, &budget, CKPT_S3_AGAIN, &delays, &wait),
		CKPT_S3_NO_TIME);
}

static void test_headers(void **state)
{
	static const struct {
		const char *value;
		uint64_t ms;
	} cases[] = {
		{"0", 0},
		{"120", 120000},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 37000},
		{"Sun Nov  6 08:49:01 1994", 1000},
		{"Sun, 06 Nov 1994 08:49:00 GMT", 0},
		{"Sun, 06 Nov 1994 08:48:00 GMT", 0},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 86400000},
		{"99999999999999999999999999", 86400000},
		{"18446744073709551616", 86400000},
		{"", 0},
		{"-1", 0},
		{"1.5", 0},
		{" 5", 0},
		{"5 ", 0},
		{"soon", 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(ckpt_s3_retry_after_ms(cases[i].value, 784111740), cases[i].ms);
	assert_int_equal(ckpt_s3_amz_retry_after_ms("1500"), 1500);
	assert_int_equal(ckpt_s3_amz_retry_after_ms("99999999999999999999"), 86400000);
	assert_int_equal(ckpt_s3_amz_retry_after_ms("x"), 0);
	assert_int_equal(ckpt_s3_amz_retry_after_ms(""), 0);
}

/* What is tried again though it has not failed gets a tenth, and nothing while others fail. */
static void test_spare(void **state)
{
	struct ckpt_s3_budget budget = {0};
	unsigned given = 0;

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		given += ckpt_s3_budget_spare(&budget);
		if (i >= 500)
			ckpt_s3_budget_earn(&budget);
	}
	assert_in_range(given, 5 + 45, 5 + 51);
	budget.spent = CKPT_S3_BUDGET / 2;
	assert_false(ckpt_s3_budget_spare(&budget));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verdicts),
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_attempts_that_are_asked_for),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_spare),
		cmocka_unit_test(test_repaired_once),
		cmocka_unit_test(test_what_the_server_asks),
		cmocka_unit_test(test_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
