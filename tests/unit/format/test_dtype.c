/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every one has a name that leads back to it, and a size. */
#include "lib/test.h"

#include <string.h>

#include "format/dtype.h"

static void test_names_lead_back(void **state)
{
	(void)state;
	for (uint32_t dtype = 1; dtype < CKPT_DTYPE_END; dtype++) {
		assert_non_null(ckpt_dtype_name(dtype));
		assert_int_equal(ckpt_dtype_parse(ckpt_dtype_name(dtype)), dtype);
		assert_true(ckpt_dtype_bytes(dtype) > 0 && ckpt_dtype_bytes(dtype) <= 16);
	}
}

/* The size in bits is in the name of a number. */
static void test_sizes(void **state)
{
	(void)state;
	for (uint32_t dtype = 1; dtype < CKPT_DTYPE_END; dtype++) {
		unsigned bits = 0;

		for (const char *c = strpbrk(ckpt_dtype_name(dtype), "0123456789");
			c && *c >= '0' && *c <= '9'; c++)
			bits = bits * 10 + (unsigned)(*c - '0');
		if (dtype == CKPT_BOOL)
			bits = 8;
		assert_int_equal(ckpt_dtype_bytes(dtype), bits * ckpt_dtype_packed(dtype) / 8);
	}
}

static void test_stored(void **state)
{
	static const uint32_t lacking[] = {CKPT_C128, CKPT_C32, CKPT_F8_E4M3FNUZ, CKPT_F8_E5M2FNUZ};

	(void)state;
	for (uint32_t dtype = 1; dtype < CKPT_DTYPE_END; dtype++) {
		const char *stored = dtype == CKPT_F4_X2 ? "F4" : ckpt_dtype_name(dtype);

		for (size_t i = 0; i < COUNT(lacking); i++) {
			if (dtype == lacking[i])
				stored = "U8";
		}
		assert_string_equal(ckpt_dtype_stored(dtype), stored);
	}
}

static void test_what_is_no_type(void **state)
{
	static const uint32_t none[] = {0, CKPT_DTYPE_END, 1000, UINT32_MAX};
	static const char *const names[] = {"", "f32", "F3", "F321", "FLOAT", "BOOL ", "U8\n"};

	(void)state;
	for (size_t i = 0; i < COUNT(none); i++) {
		assert_int_equal(ckpt_dtype_bytes(none[i]), 0);
		assert_null(ckpt_dtype_name(none[i]));
		assert_null(ckpt_dtype_stored(none[i]));
	}
	for (size_t i = 0; i < COUNT(names); i++)
		assert_int_equal(ckpt_dtype_parse(names[i]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_lead_back),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_stored),
		cmocka_unit_test(test_what_is_no_type),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
