/* SPDX-License-Identifier: Apache-2.0 */
/* What the wheel brings of a newer C library fills all it was given, wherever the kernel lets it have that from. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
ssize_t __real_getrandom(void *buffer, size_t length, unsigned flags);
ssize_t __wrap_getrandom(void *buffer, size_t length, unsigned flags);

static unsigned calls, refused_from, interrupts;

/* Never more than 7 bytes, and every other call is interrupted. */
ssize_t __wrap_getrandom(void *buffer, size_t length, unsigned flags)
{
	calls++;
	if (calls >= refused_from) {
		errno = ENOSYS;
		return -1;
	}
	if (calls % 2 == 0) {
		interrupts++;
		errno = EINTR;
		return -1;
	}
	return __real_getrandom(buffer, length < 7 ? length : 7, flags);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* A byte that 64 fillings leave as it was has not been filled; one behind the end is left alone. */
static void check_filled(unsigned from)
{
	unsigned char changed[34] = {0};
	unsigned char bytes[sizeof(changed)];

	for (unsigned round = 0; round < 64; round++) {
		memset(bytes, 0x5A, sizeof(bytes));
		calls = 0;
		refused_from = from;
		arc4random_buf(bytes, 33);
		for (size_t i = 0; i < sizeof(bytes); i++)
			changed[i] |= bytes[i] != 0x5A;
	}
	for (size_t i = 0; i < 33; i++)
		assert_true(changed[i]);
	assert_false(changed[33]);
}

static void test_fills_what_comes_in_pieces(void **state)
{
	(void)state;
	interrupts = 0;
	check_filled(1000);
	assert_true(interrupts > 0);
}

static void test_goes_on_with_the_file_where_the_call_is_refused(void **state)
{
	(void)state;
	check_filled(1);
	check_filled(4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fills_what_comes_in_pieces),
		cmocka_unit_test(test_goes_on_with_the_file_where_the_call_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
