/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification keeps: so many findings, in the order of the store. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/shard/findings.h"

typedef int compare_fn(const void *a, const void *b);

/* The linker puts this in the place of the C library's: any other one may ask in any other order. */
void __real_qsort(void *items, size_t count, size_t size, compare_fn *compare);
void __wrap_qsort(void *items, size_t count, size_t size, compare_fn *compare);

void __wrap_qsort(void *items, size_t count, size_t size, compare_fn *compare)
{
	const char *bytes = items;

	assert_non_null(items);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(compare(bytes + i * size, bytes + i * size), 0);
		for (size_t k = 0; k < i; k++) {
			int forth = compare(bytes + i * size, bytes + k * size);
			int back = compare(bytes + k * size, bytes + i * size);
			assert_int_equal((forth > 0) - (forth < 0), (back < 0) - (back > 0));
		}
	}
	__real_qsort(items, count, size, compare);
}

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

/* Of the step, or of nothing in it: who reads a finding reads no number that means "none". */
static void test_no_place(void **state)
{
	struct ckpt_findings f = {0};
	struct ckpt_error error;

	(void)state;
	ckpt_error_clear(&error);
	assert_int_equal(ckpt_findings_add(&f, 3, &error), 0);
	error.rank = 2;
	error.step = 40;
	assert_int_equal(ckpt_findings_add(&f, 3, &error), 0);
	assert_int_equal(f.items[0].rank, 0);
	assert_int_equal(f.items[0].step, 0);
	assert_int_equal(f.items[1].rank, 2);
	assert_int_equal(f.items[1].step, 40);
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

static bool no_memory(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

/* What is elsewhere is noted with its node, or not at all: the node is never that of another finding. */
static void test_shard_location(void **state)
{
	struct ckpt_findings f = {0};
	struct ckpt_error away;

	(void)state;
	ckpt_error_clear(&away);
	away.code = CKPT_EOTHERNODE;
	ckpt_alloc_set_hook(no_memory, NULL);
	assert_int_equal(ckpt_findings_add_elsewhere(&f, 1, &away, "a"), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(f.count, 0);
	assert_int_equal(ckpt_findings_add_elsewhere(&f, 1, &away, "a"), 0);
	assert_string_equal(f.items[0].node, "a");
	assert_int_equal(f.bad, 0);
	for (int64_t i = 1; i < CKPT_FINDINGS_MAX; i++)
		add(&f, 0, "a", i, CKPT_EINTEGRITY);
	assert_int_equal(ckpt_findings_add_elsewhere(&f, 1, &away, "b"), 0);
	assert_int_equal(f.count, CKPT_FINDINGS_MAX);
	assert_string_equal(f.items[f.count - 1].node, "");
	ckpt_findings_clear(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_no_place),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_shard_location),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
