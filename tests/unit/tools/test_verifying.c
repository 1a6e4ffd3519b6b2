/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify beside a writer that keeps one step: a listing that came to nothing is made again. */
#include "lib/test.h"

#include "cli.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
size_t __real_ckpt_catalog_count(const struct ckpt_catalog *catalog);
size_t __wrap_ckpt_catalog_count(const struct ckpt_catalog *catalog);

static unsigned empty; /* so many times a listing has no steps */

size_t __wrap_ckpt_catalog_count(const struct ckpt_catalog *catalog)
{
	if (empty > 0) {
		empty--;
		return 0;
	}
	return __real_ckpt_catalog_count(catalog);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static char *dir;

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	fixture_begin(dir);
	empty = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(dir);
	return 0;
}

static void commit(void)
{
	const struct fixture_step step = fixture_one(dir, fixture_floats(3000));

	fixture_commit(&step);
}

static int verify(void)
{
	char *argv[] = {(char[]){"ckpt-verify"}, dir, (char[]){"-q"}, NULL};

	return cmd_verify(3, argv, "ckpt-verify");
}

static void test_a_listing_between_two_steps(void **state)
{
	(void)state;
	commit();
	empty = 3;
	assert_int_equal(verify(), CLI_OK);
	assert_int_equal(empty, 0);
}

static void test_a_store_without_steps(void **state)
{
	(void)state;
	assert_int_equal(verify(), CLI_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_listing_between_two_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_store_without_steps, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
