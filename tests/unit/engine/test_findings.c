/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification keeps: so many findings, in the order of the store. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "engine/findings.h"

static void add(struct ckpt_findings *f, int32_t rank, const char *file, int64_t offset, int code)
{
	struct ckpt_error error;

	ckpt_error_clear(&error);
	error.code = code;
	error.rank = rank;
	error.step = 0;
	error.offset = offset;
	(void)snprintf(error.file, sizeof(error.file), "%s", file);
	assert_int_equal(ckpt_findings_add(f, 3, &error), 0);
}

static void check(
	const struct ckpt_findings *f, size_t i, uint32_t rank, const char *file, int64_t offset)
{
	assert_int_equal(f->items[i].rank, rank);
	assert_string_equal(f->items[i].error.file, file);
	assert_int_equal(f->items[i].error.offset, offset);
	assert_int_equal(f->items[i].generation, 3);
}

/* By rank, then by file and offset, in whatever order they were found. */
static void test_order(void **state)
{
	struct ckpt_findings f = {0};

	(void)state;
	ckpt_findings_sort(&f);
	assert_null(ckpt_findings_first(&f));
	add(&f, 2, "a", 5, CKPT_EINTEGRITY);
	add(&f, 0, "b", 7, CKPT_EINTEGRITY);
	add(&f, 1, "z", 1, 0);
	add(&f, 0, "b", 2, CKPT_EFORMAT);
	add(&f, 0, "a", 9, 0);
	add(&f, 0, "b", 2, CKPT_EFORMAT);
	ckpt_findings_sort(&f);
	check(&f, 0, 0, "a", 9);
	check(&f, 1, 0, "b", 2);
	check(&f, 2, 0, "b", 2);
	check(&f, 3, 0, "b", 7);
	check(&f, 4, 1, "z", 1);
	check(&f, 5, 2, "a", 5);
	assert_int_equal(f.bad, 4);
	/* The first that is bad. */
	assert_ptr_equal(ckpt_findings_first(&f), &f.items[1].error);
	ckpt_findings_clear(&f);
}

/* No more than that many are kept: what follows is dropped, and that is no failure. */
static void test_full(void **state)
{
	struct ckpt_findings f = {0};

	(void)state;
	for (int64_t i = 0; i < CKPT_FINDINGS_MAX; i++) {
		assert_false(ckpt_findings_full(&f));
		add(&f, 0, "a", i, CKPT_EINTEGRITY);
	}
	assert_true(ckpt_findings_full(&f));
	add(&f, 0, "a", 0, CKPT_EINTEGRITY);
	assert_int_equal(f.count, CKPT_FINDINGS_MAX);
	ckpt_findings_clear(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
