/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-restore and how it ends: what the library says at the last moment, and of what it says it. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
int __real_ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms);
int __wrap_ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms);
int __real_ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error);
int __wrap_ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error);

static bool late;        /* it ends just after the first wait for it is over */
static const char *file; /* with -EINVAL of this file; NULL: as it does */

int __wrap_ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms)
{
	int r = __real_ckpt_restore_wait(restore, late || file ? CKPT_FOREVER : timeout_ms);

	if (file)
		return -EINVAL;
	if (late)
		r = -ETIMEDOUT;
	late = false;
	return r;
}

int __wrap_ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error)
{
	if (!file)
		return __real_ckpt_restore_error(restore, ret_error);
	if (ret_error) {
		ret_error->code = -EINVAL;
		(void)snprintf(ret_error->file, sizeof(ret_error->file), "%s", file);
	}
	return -EINVAL;
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

static char *dir;
static struct fixture_step step;

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	fixture_begin(dir);
	step = fixture_one(dir, fixture_floats(3000));
	fixture_commit(&step);
	late = false;
	file = NULL;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(dir);
	return 0;
}

static int copy(const char *rank)
{
	char *dest = strdup(scratch_join(dir, "dest"));
	char *number = strdup(rank);
	char *argv[] = {(char[]){"ckpt-restore"}, dir, dest, (char[]){"-q"}, (char[]){"--rank"},
		number, NULL};

	assert_non_null(dest);
	assert_non_null(number);
	int exit_code = cmd_restore(6, argv, "ckpt-restore");
	free(number);
	free(dest);
	return exit_code;
}

static void test_it_ends_just_then(void **state)
{
	(void)state;
	late = true;
	assert_int_equal(copy("0"), CLI_OK);
}

/* Nobody waits for a network here: what it has failed with counts. */
static void test_it_fails_just_then(void **state)
{
	(void)state;
	scratch_flip(fixture_shard(&step, 0), 5000);
	late = true;
	assert_int_equal(copy("0"), CLI_INTEGRITY);
}

/* A rank that there is not is a mistake of the command line; what a file system calls so is not. */
static void test_what_is_no_mistake(void **state)
{
	(void)state;
	assert_int_equal(copy("1"), CLI_USAGE);
	file = "g000001/step-0000000010/manifest.json";
	assert_int_equal(copy("0"), CLI_FAILED);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_it_ends_just_then),
		TEST(test_it_fails_just_then),
		TEST(test_what_is_no_mistake),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
