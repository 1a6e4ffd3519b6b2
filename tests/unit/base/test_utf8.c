/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8: exactly the well-formed sequences of Unicode, and lines that are safe to print. */
#include "lib/test.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

/* How a code point is written; 0 for what has no encoding. */
static size_t encode(uint32_t point, char *out)
{
	if (point < 0x80) {
		out[0] = (char)point;
		return 1;
	}
	if (point < 0x800) {
		out[0] = (char)(0xc0 | point >> 6);
		out[1] = (char)(0x80 | (point & 63));
		return 2;
	}
	if (point < 0x10000) {
		if (point >= 0xd800 && point < 0xe000)
			return 0;
		out[0] = (char)(0xe0 | point >> 12);
		out[1] = (char)(0x80 | (point >> 6 & 63));
		out[2] = (char)(0x80 | (point & 63));
		return 3;
	}
	out[0] = (char)(0xf0 | point >> 18);
	out[1] = (char)(0x80 | (point >> 12 & 63));
	out[2] = (char)(0x80 | (point >> 6 & 63));
	out[3] = (char)(0x80 | (point & 63));
	return 4;
}

static void test_every_code_point(void **state)
{
	(void)state;
	for (uint32_t point = 0; point < 0x110000; point++) {
		char text[4];
		size_t len = encode(point, text);

		if (len > 0 && ckpt_utf8_char(text, len) != len)
			fail_msg("U+%04x is refused", point);
		for (size_t left = 0; left < len; left++) {
			if (ckpt_utf8_char(text, left) != 0)
				fail_msg("U+%04x is taken from %zu bytes", point, left);
		}
	}
}

/* As many three-byte sequences are valid as there are code points for them: no other is. */
static void test_nothing_else(void **state)
{
	size_t two = 0;
	size_t three = 0;

	(void)state;
	for (uint32_t bits = 0; bits < 1u << 24; bits++) {
		char text[] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
		size_t len = ckpt_utf8_char(text, 3);

		three += len == 3;
		two += len == 2 && (bits & 0xff) == 0;
	}
	assert_int_equal(two, 0x800 - 0x80);
	assert_int_equal(three, 0x10000 - 0x800 - 0x800);
	assert_int_equal(ckpt_utf8_char("\xf4\x90\x80\x80", 4), 0);
	assert_int_equal(ckpt_utf8_char("\xf0\x8f\xbf\xbf", 4), 0);
	assert_int_equal(ckpt_utf8_char("\xf5\x80\x80\x80", 4), 0);
	assert_int_equal(ckpt_utf8_char("\xf0\x90\x80\xc0", 4), 0);
}

static void test_cut(void **state)
{
	static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
	static const size_t cuts[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10, 10};

	(void)state;
	for (size_t max = 0; max < COUNT(cuts); max++)
		assert_int_equal(ckpt_utf8_cut(text, sizeof(text) - 1, max), cuts[max]);
	/* What is not valid anyway is not cut to nothing. */
	assert_int_equal(ckpt_utf8_cut("\x80\x80\x80\x80\x80\x80\x80\x80", 8, 7), 7);
}

static void test_line(void **state)
{
	char text[] = "a\nb\x1b[0m\x7f\xc2\x85\xff\xe2\x82 \xc3\xa9";
	char empty[] = "";

	(void)state;
	assert_false(ckpt_utf8_is_line(text));
	ckpt_utf8_line(text);
	assert_string_equal(text, "a?b?[0m?????? \xc3\xa9");
	assert_true(ckpt_utf8_is_line(text));
	assert_true(ckpt_utf8_is_line(""));
	assert_false(ckpt_utf8_is_line("a\xc3"));
	assert_false(ckpt_utf8_is_line("\xc2\x9f"));
	assert_true(ckpt_utf8_is_line("\xc2\xa0"));
	ckpt_utf8_line(empty);
	assert_string_equal(empty, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_point),
		cmocka_unit_test(test_nothing_else),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
