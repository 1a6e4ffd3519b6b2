/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator: zeros, overflow, and failure on demand. */
#include "lib/test.h"

#include <string.h>

#include "base/alloc.h"

struct budget {
	unsigned left;
	size_t last;
};

static bool spend(void *user, size_t size)
{
	struct budget *budget = user;

	budget->last = size;
	if (budget->left == 0)
		return true;
	budget->left--;
	return false;
}

static void test_memory_is_zeroed(void **state)
{
	(void)state;
	for (size_t size = 0; size < 5000; size += 617) {
		char *p = ckpt_alloc(size);
		char *q = ckpt_alloc_array(size, 3);

		assert_non_null(p);
		assert_non_null(q);
		for (size_t i = 0; i < size; i++)
			assert_true(p[i] == 0 && q[3 * i] == 0 && q[3 * i + 2] == 0);
		memset(p, 0xff, size);
		memset(q, 0xff, size * 3);
		ckpt_free(p);
		ckpt_free(q);
	}
	ckpt_free(NULL);
}

static void test_overflow(void **state)
{
	char *p = ckpt_strdup("kept");

	(void)state;
	/* Products that wrap round to eight bytes. */
	assert_null(ckpt_alloc_array(SIZE_MAX / 8 + 2, 8));
	assert_null(ckpt_alloc_array(8, SIZE_MAX / 8 + 2));
	assert_null(ckpt_realloc_array(p, SIZE_MAX / 8 + 2, 8));
	assert_string_equal(p, "kept");
	ckpt_free(p);
}

static void test_copies(void **state)
{
	char *text = ckpt_strdup("");
	char *data = ckpt_memdup("a\0b", 4);
	void *nothing = ckpt_memdup(NULL, 0);

	(void)state;
	assert_string_equal(text, "");
	assert_memory_equal(data, "a\0b", 4);
	assert_non_null(nothing);
	data = ckpt_realloc_array(data, 1000, 4);
	assert_memory_equal(data, "a\0b", 4);
	ckpt_free(text);
	ckpt_free(data);
	ckpt_free(nothing);
}

static void test_hook_fails_what_it_says(void **state)
{
	struct budget budget = {.left = 2};
	char *p;
	char *q;

	(void)state;
	ckpt_alloc_set_hook(spend, &budget);
	p = ckpt_alloc(7);
	assert_int_equal(budget.last, 7);
	q = ckpt_strdup("abc");
	assert_int_equal(budget.last, 4);
	assert_non_null(p);
	assert_non_null(q);
	assert_null(ckpt_alloc(1));
	assert_null(ckpt_alloc_array(1, 1));
	assert_null(ckpt_strdup("x"));
	assert_null(ckpt_memdup("x", 1));
	assert_null(ckpt_realloc_array(q, 100, 1));
	assert_string_equal(q, "abc");
	ckpt_alloc_set_hook(NULL, NULL);
	ckpt_free(p);
	ckpt_free(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_zeroed),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_hook_fails_what_it_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
