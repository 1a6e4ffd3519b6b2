/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what the scan and the reader take, what they refuse, and that jansson agrees. */
#include "lib/test.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json_reader.h"

static int scan(const char *text, size_t length)
{
	struct ckpt_error err = {0};
	int r = ckpt_json_scan(text, length, 1000, 32, "f", &err);

	assert_true(r == 0 || r == CKPT_EFORMAT);
	assert_int_equal(err.code, r);
	if (r < 0) {
		assert_string_equal(err.file, "f");
		assert_true(err.offset >= 0 && (size_t)err.offset <= length);
	}
	return r;
}

static void test_takes_json(void **state)
{
	static const char *const good[] = {"0", "-0", "1", "-12.5e+3", "1E9", "0.5", "true",
		"false", "null", "\"\"", "\"a\\n\\u00e4\\ud83d\\ude00\"", "[]", "{}", " [ 1 , 2 ] ",
		"{\"a\":{\"b\":[{},[],\"\"]},\"a\":1}", "\t\r\n1\n", "[[[]]]",
		"123456789012345678901234567890", "\"\\u0000\"", "\"\x7f\"",
		"\"\xf0\x9f\x98\x80\""};

	(void)state;
	for (size_t i = 0; i < COUNT(good); i++) {
		if (scan(good[i], strlen(good[i])) != 0)
			fail_msg("refused: %s", good[i]);
	}
}

static void test_refuses_the_rest(void **state)
{
	static const char *const bad[] = {"", " ", "01", "-", "+1", "1.", ".5", "1e", "1e+", "0x1",
		"tru", "nul", "True", "NaN", "Infinity", "'a'", "\"", "\"a", "\"\\\"", "\"\\x\"",
		"\"\\ud800\"", "\"\\ude00\\ud83d\"", "{\"\\ud800\":1}", "\"\\u12\"", "\"\\u123g\"",
		"\"\n\"", "\"\x1f\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
		"\"\xff\"", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1]]", "{", "}",
		"{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{a:1}", "{1:1}",
		"{\"a\" 1}", "{\"a\":1 \"b\":2}", "{\"a\":1]", "[1}", "1 2", "{}{}", "//", "/**/1",
		"[1]x", "\xef\xbb\xbf{}", "\f1", "\v1"};

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++) {
		if (scan(bad[i], strlen(bad[i])) == 0)
			fail_msg("taken: %s", bad[i]);
	}
	/* NUL ends nothing: what is behind it counts. */
	assert_int_equal(scan("1\0", 2), CKPT_EFORMAT);
	assert_int_equal(scan("\"a\0b\"", 5), CKPT_EFORMAT);
	assert_int_equal(scan("\0", 1), CKPT_EFORMAT);
}

static void test_limits(void **state)
{
	char deep[200];

	(void)state;
	for (size_t levels = 1; levels <= 64; levels++) {
		for (size_t i = 0; i < levels; i++) {
			deep[i] = '[';
			deep[2 * levels - 1 - i] = ']';
		}
		for (unsigned max = 1; max <= 64; max++) {
			int r = ckpt_json_scan(deep, 2 * levels, 1000, max, "f", NULL);

			assert_int_equal(r, levels <= max ? 0 : CKPT_EFORMAT);
		}
		/* Levels count, not brackets. */
		memset(deep, '[', levels);
		assert_int_equal(ckpt_json_scan(deep, levels, 1000, 64, "f", NULL), CKPT_EFORMAT);
	}
	/* The array and its three items. */
	assert_int_equal(ckpt_json_scan("[1,2,3]", 7, 4, 4, "f", NULL), 0);
	assert_int_equal(ckpt_json_scan("[1,2,3]", 7, 3, 4, "f", NULL), CKPT_EFORMAT);
	assert_int_equal(ckpt_json_scan("{\"a\":1}", 7, 2, 4, "f", NULL), 0);
	assert_int_equal(ckpt_json_scan("{\"a\":1}", 7, 1, 4, "f", NULL), CKPT_EFORMAT);
	assert_int_equal(ckpt_json_scan("1", 1, 1, 0, "f", NULL), 0);
	assert_int_equal(ckpt_json_scan("1", 1, 0, 0, "f", NULL), CKPT_EFORMAT);
}

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/*
 * Random strings of JSON's alphabet: the scan takes what jansson takes. jansson refuses more: numbers
 * that do not fit its types, \u0000, half surrogates. The alphabet has nothing of that.
 */
static void test_agrees_with_jansson(void **state)
{
	static const char *const pieces[] = {"{", "}", "[", "]", ",", ":", "\"", "\"a\"",
		"\"b\":", "1", "0", "-", ".5", "e1", "true", "null", " ", "\\n", "\\u0041",
		"\xc3\xa4", "\xc3"};
	uint64_t seed = 0x5eed;
	size_t taken = 0;

	(void)state;
	for (int i = 0; i < 200000; i++) {
		char text[64] = "";
		size_t length = 0;
		size_t count = 1 + next(&seed) % 8;
		json_t *value;
		bool good;

		for (size_t k = 0; k < count; k++) {
			const char *piece = pieces[next(&seed) % COUNT(pieces)];

			memcpy(text + length, piece, strlen(piece) + 1);
			length += strlen(piece);
		}
		value = json_loadb(text, length, JSON_DECODE_ANY, NULL);
		good = scan(text, length) == 0;
		if (good != (value != NULL))
			fail_msg("'%s': the scan says %d", text, good);
		taken += good;
		json_decref(value);
	}
	/* The test has seen both. */
	assert_true(taken > 1000 && taken < 190000);
}

static struct ckpt_reader reader(const char *text, struct ckpt_error *err)
{
	struct ckpt_reader r;

	ckpt_reader_init(&r, text, strlen(text), 0, "f", err);
	return r;
}

static void test_text(void **state)
{
	static const struct {
		const char *json;
		const char *text; /* NULL: refused */
	} cases[] = {
		{"\"\"", ""},
		{"\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "a\"\\/\b\f\n\r\tz"},
		{"\"\\u0041\\u00e4\\u20ac\\ud83d\\ude00\"",
			"A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
		{"\"\\uD83D\\uDE00\"", "\xf0\x9f\x98\x80"},
		{"\"1234567890123456789\"", "1234567890123456789"},
		{"\"12345678901234567890\"", NULL}, /* size is 20 */
		{"\"1234567890123456\\ud83d\\ude00\"", NULL},
		{"\"\\u0000\"", NULL},
		{"\"a\\u0000\"", NULL},
		{"\"\\ud800\"", NULL},
		{"\"\\ud800\\u0041\"", NULL},
		{"\"\\ud800\\ud800\"", NULL},
		{"\"\\udc00\"", NULL},
		{"\"\\ud83d\\ude0\"", NULL},
		{"1", NULL},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_error err = {0};
		struct ckpt_reader r = reader(cases[i].json, &err);
		char out[20];
		size_t length = 0;
		bool good = ckpt_reader_text(&r, out, sizeof(out), &length);

		if (good != (cases[i].text != NULL))
			fail_msg("%s: %d", cases[i].json, good);
		assert_int_equal(ckpt_reader_finish(&r), good ? 0 : CKPT_EFORMAT);
		if (good) {
			assert_string_equal(out, cases[i].text);
			assert_int_equal(length, strlen(cases[i].text));
		}
	}
}

static void test_numbers(void **state)
{
	static const struct {
		const char *json;
		uint64_t value;
		bool good;
	} cases[] = {
		{"0", 0, true},
		{" 42 ", 42, true},
		{"9007199254740993", 9007199254740993, true},
		{"9223372036854775807", INT64_MAX, true},
		{"9223372036854775808", 0, false},
		{"18446744073709551615", 0, false},
		{"18446744073709551617", 0, false},
		{"99999999999999999999999999", 0, false},
		{"-1", 0, false},
		{"-0", 0, false},
		{"00", 0, false},
		{"01", 0, false},
		{"1.0", 0, false},
		{"1e3", 0, false},
		{"1E3", 0, false},
		{"\"1\"", 0, false},
		{"", 0, false},
		{"true", 0, false},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_reader r = reader(cases[i].json, NULL);
		uint64_t value = 77;
		bool good = ckpt_reader_u64(&r, &value);

		if (good != cases[i].good)
			fail_msg("%s: %d", cases[i].json, good);
		assert_int_equal(value, good ? cases[i].value : 77);
	}
}

static void test_members(void **state)
{
	static const char *const names[] = {"a", "long", NULL};
	struct ckpt_reader r =
		reader("{\"x\":{\"a\":[1,{}]},\"\\u0061\":1,\"lon\":0,\"long\":[2,3],"
		       "\"12345678901234567890123456789012345\":4}",
			NULL);
	uint32_t seen = 0;
	uint64_t value;

	(void)state;
	assert_true(ckpt_reader_open(&r, '{'));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_OTHER);
	assert_true(ckpt_reader_skip(&r));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), 0);
	assert_true(ckpt_reader_u64(&r, &value));
	assert_int_equal(value, 1);
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_OTHER);
	assert_true(ckpt_reader_skip(&r));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), 1);
	assert_true(ckpt_reader_open(&r, '['));
	for (uint64_t i = 2; i <= 3; i++) {
		assert_true(ckpt_reader_item(&r));
		assert_true(ckpt_reader_u64(&r, &value));
		assert_int_equal(value, i);
	}
	assert_false(ckpt_reader_item(&r));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_OTHER);
	assert_true(ckpt_reader_skip(&r));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_END);
	assert_int_equal(seen, 3);
	assert_int_equal(ckpt_reader_finish(&r), 0);
}

static void test_twice(void **state)
{
	static const char *const names[] = {"a", NULL};
	struct ckpt_error err = {0};
	struct ckpt_reader r = reader("{\"a\":1,\"\\u0061\":2}", &err);
	uint32_t seen = 0;
	uint64_t value;

	(void)state;
	assert_true(ckpt_reader_open(&r, '{'));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), 0);
	assert_true(ckpt_reader_u64(&r, &value));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_END);
	assert_int_equal(ckpt_reader_finish(&r), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "\"a\" occurs twice"));
}

/* After a failure nothing moves and the first sentence stays. */
static void test_failure_stays(void **state)
{
	static const char *const names[] = {"a", NULL};
	struct ckpt_error err = {0};
	struct ckpt_reader r = reader("[1,2,3]", &err);
	struct ckpt_reader_string s = {0};
	uint64_t value = 77;
	uint32_t seen = 0;
	char out[4];

	(void)state;
	assert_false(ckpt_reader_fail(&r, "because %d", 1));
	assert_false(ckpt_reader_fail(&r, "because %d", 2));
	assert_false(ckpt_reader_open(&r, '['));
	assert_false(ckpt_reader_item(&r));
	assert_false(ckpt_reader_u64(&r, &value));
	assert_false(ckpt_reader_text(&r, out, sizeof(out), NULL));
	assert_false(ckpt_reader_string(&r, &s));
	assert_false(ckpt_reader_scalar(&r));
	assert_false(ckpt_reader_skip(&r));
	assert_false(ckpt_reader_take(&r, '['));
	assert_int_equal(ckpt_reader_member(&r, names, &seen), CKPT_READER_END);
	assert_int_equal(ckpt_reader_finish(&r), CKPT_EFORMAT);
	assert_int_equal(value, 77);
	assert_ptr_equal(r.at, r.text);
	assert_non_null(strstr(err.message, "because 1"));
}

/* Keys of an object are walked into by hand at every prefix: no read past the end, no endless loop. */
static void test_every_prefix(void **state)
{
	static const char text[] =
		"{\"a\":[1,-2.5e+3,\"\\u00e4\\ud83d\\ude00\\n\xc3\xa4\",{\"b\":null}],\"c\":true}";

	(void)state;
	for (size_t length = 0; length < sizeof(text) - 1; length++) {
		/* Exactly so much memory, so that a sanitizer sees a byte too many. */
		char *copy = malloc(length ? length : 1);

		assert_non_null(copy);
		memcpy(copy, text, length);
		assert_int_equal(scan(copy, length), CKPT_EFORMAT);
		free(copy);
	}
	assert_int_equal(scan(text, sizeof(text) - 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_takes_json),
		cmocka_unit_test(test_refuses_the_rest),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_agrees_with_jansson),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_twice),
		cmocka_unit_test(test_failure_stays),
		cmocka_unit_test(test_every_prefix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
