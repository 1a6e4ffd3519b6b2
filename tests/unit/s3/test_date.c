/* SPDX-License-Identifier: Apache-2.0 */
/* Dates are those that the C library has, and what is no date is not taken for one. */
#include "lib/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/prng.h"
#include "s3/date.h"

static void check(uint64_t unix_s)
{
	time_t t = (time_t)unix_s;
	struct tm tm;
	char wanted[64];
	char text[CKPT_S3_DATE_SIZE];
	uint64_t back = 1;

	assert_non_null(gmtime_r(&t, &tm));
	assert_true(strftime(wanted, sizeof(wanted), "%Y%m%dT%H%M%SZ", &tm) > 0);
	ckpt_s3_date(unix_s, text);
	assert_string_equal(text, wanted);
	assert_true(strftime(wanted, sizeof(wanted), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0);
	assert_true(ckpt_s3_date_iso(wanted, &back));
	assert_int_equal(back, unix_s);
	assert_true(strftime(wanted, sizeof(wanted), "%a, %d %b %Y %H:%M:%S GMT", &tm) > 0);
	assert_true(ckpt_s3_date_http(wanted, &back));
	assert_int_equal(back, unix_s);
	assert_true(strftime(wanted, sizeof(wanted), "%a %b %e %H:%M:%S %Y", &tm) > 0);
	assert_true(ckpt_s3_date_http(wanted, &back));
	assert_int_equal(back, unix_s);
}

/* Every day of 600 years, and any second. */
static void test_as_the_c_library(void **state)
{
	struct prng prng = {7};

	(void)state;
	for (uint64_t day = 0; day < 600 * 366; day++)
		check(day * 86400 + prng_below(&prng, 86400));
	for (unsigned i = 0; i < 10000; i++)
		check(prng_below(&prng, CKPT_S3_TIME_MAX + 1));
	check(0);
	check(CKPT_S3_TIME_MAX);
}

static void test_forms(void **state)
{
	static const struct {
		const char *text;
		uint64_t unix_s;
	} http[] =
		{
			{"Sun, 06 Nov 1994 08:49:37 GMT", 784111777},
			{"Sunday, 06-Nov-94 08:49:37 GMT", 784111777},
			{"Sun Nov  6 08:49:37 1994", 784111777},
			{"Monday, 23-Nov-26 18:25:38 GMT", 1795458338},
			{"Fri, 31 Dec 2038 23:59:60 GMT", 2177452800},
		},
	  iso[] = {
		  {"2013-05-24T00:00:00Z", 1369353600},
		  {"2013-05-24T00:00:00.000Z", 1369353600},
		  {"2013-05-24T00:00:00.123456789Z", 1369353600},
		  {"2013-05-24T02:30:00+02:30", 1369353600},
		  {"2013-05-23T23:00:00-0100", 1369353600},
		  {"2013-05-24t00:00:00z", 1369353600},
		  {"1970-01-01T00:00:00+00:00", 0},
	  };
	uint64_t found;

	(void)state;
	for (size_t i = 0; i < COUNT(http); i++) {
		assert_true(ckpt_s3_date_http(http[i].text, &found));
		assert_int_equal(found, http[i].unix_s);
	}
	for (size_t i = 0; i < COUNT(iso); i++) {
		assert_true(ckpt_s3_date_iso(iso[i].text, &found));
		assert_int_equal(found, iso[i].unix_s);
	}
}

static void test_no_dates(void **state)
{
	static const char *const bad[] = {"", " ", ",", "Sun,", "Sun, ", "Sun", "120", "-1",
		"Sun, 06 Nov 1994 08:49:37", "Sun, 06 Nov 1994 08:49:37 GMT ",
		"Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 6 Nov 1994 08:49:37 GMT",
		"Sun, 06 Nob 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT",
		"Sun, 29 Feb 1900 08:49:37 GMT", "Sun, 29 Feb 2023 08:49:37 GMT",
		"Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:37 GMT",
		"Sun, 06 Nov 1994 08:49:61 GMT", "Sun, 06 Nov 1969 08:49:37 GMT",
		"Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 06 Nov -994 08:49:37 GMT",
		"Sun Nov 6 08:49:37 1994", "2013-05-24T00:00:00", "2013-05-24 00:00:00Z",
		"2013-05-24T00:00:00.Z", "2013-05-24T00:00:00ZZ", "2013-05-24T00:00:00+24:00",
		"2013-05-24T00:00:00+1", "2013-13-24T00:00:00Z", "2013-00-24T00:00:00Z",
		"2013-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "1970-01-01T00:00:00+00:01",
		"9999-12-31T23:59:59-00:01", "2013-05-24T00:00", "20130524T000000Z",
		"0000-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "\xff\xff\xff\xff"};
	uint64_t found = 77;

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++) {
		if (ckpt_s3_date_http(bad[i], &found) || ckpt_s3_date_iso(bad[i], &found))
			fail_msg("'%s' is taken for %llu", bad[i], (unsigned long long)found);
		assert_int_equal(found, 77);
	}
}

/* Cut anywhere, and with any byte changed: a date or none, and nothing read behind the end. */
static void test_damaged(void **state)
{
	static const char *const good[] = {"Sun, 06 Nov 1994 08:49:37 GMT",
		"Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
		"2013-05-24T00:00:00.5+01:00"};
	char *text;
	uint64_t found;

	(void)state;
	for (size_t i = 0; i < COUNT(good); i++) {
		size_t length = strlen(good[i]);

		for (size_t cut = 0; cut < length; cut++) {
			text = strndup(good[i], cut);
			assert_false(ckpt_s3_date_http(text, &found));
			(void)ckpt_s3_date_iso(text, &found);
			free(text);
		}
		for (size_t at = 0; at < length; at++) {
			for (int byte = 0; byte < 256; byte++) {
				text = strdup(good[i]);
				text[at] = (char)byte;
				found = 0;
				(void)ckpt_s3_date_http(text, &found);
				(void)ckpt_s3_date_iso(text, &found);
				assert_true(found <= CKPT_S3_TIME_MAX);
				free(text);
			}
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_as_the_c_library),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_no_dates),
		cmocka_unit_test(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
