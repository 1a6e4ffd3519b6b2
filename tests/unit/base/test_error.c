/* SPDX-License-Identifier: Apache-2.0 */
/* Error records: the first failure stays, texts are harmless, callers get what their size says. */
#include "lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

static void test_first_failure_stays(void **state)
{
	struct ckpt_error err;

	(void)state;
	ckpt_error_clear(&err);
	assert_int_equal(err.code, 0);
	assert_int_equal(err.step, -1);
	assert_int_equal(err.offset, -1);
	assert_int_equal(err.rank, -1);
	assert_int_equal(ckpt_fail(&err, -ENOSPC, "the disk is full"), -ENOSPC);
	assert_int_equal(ckpt_fail(&err, CKPT_EINTEGRITY, "later"), CKPT_EINTEGRITY);
	assert_int_equal(err.code, -ENOSPC);
	assert_int_equal(err.sys_errno, ENOSPC);
	assert_string_equal(err.message, "the disk is full");
}

static void test_without_a_record(void **state)
{
	(void)state;
	assert_int_equal(ckpt_fail(NULL, -EIO, "%d", 1), -EIO);
}

static void test_zeroed_record_is_cleared(void **state)
{
	struct ckpt_error err = {0};

	(void)state;
	(void)ckpt_fail(&err, CKPT_EFORMAT, "x");
	assert_int_equal(err.size, sizeof(err));
	assert_int_equal(err.step, -1);
	assert_int_equal(err.sys_errno, 0);
}

static void test_where(void **state)
{
	char name[600];
	struct ckpt_where where = {.tier = "local", .file = "g000001/x", .tensor = name};
	struct ckpt_error err;

	(void)state;
	/* A name of two-byte characters that does not end where the field ends. */
	for (size_t i = 0; i + 1 < sizeof(name); i += 2)
		memcpy(name + i, "\xc3\xa9", 2);
	name[sizeof(name) - 1] = 0;
	name[sizeof(name) - 2] = 0;
	where.has_offset = true;
	where.offset = 4096;
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_fail_at(&err, CKPT_EINTEGRITY, &where, "differs"), CKPT_EINTEGRITY);
	assert_string_equal(err.tier, "local");
	assert_string_equal(err.file, "g000001/x");
	assert_int_equal(err.offset, 4096);
	assert_int_equal(strlen(err.tensor), 254);
	assert_memory_equal(err.tensor, name, 254);
}

static void test_message_is_one_line(void **state)
{
	static const char *const hostile[] = {
		"a\nERROR forged",
		"\x1b[2Jcleared",
		"\xc2\x9b[J",
		"bad \xff\xfe utf8",
		"cut \xe2\x82",
		"surrogate \xed\xa0\x80",
		"overlong \xc0\xaf",
	};
	struct ckpt_error err;

	(void)state;
	for (size_t i = 0; i < COUNT(hostile); i++) {
		ckpt_error_clear(&err);
		(void)ckpt_fail(&err, -EINVAL, "tensor \"%s\"", hostile[i]);
		for (const char *p = err.message; *p; p++) {
			unsigned char c = (unsigned char)*p;

			assert_true(c >= 0x20 && c < 0x7f);
		}
	}
	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, -EINVAL, "größe 漢字 😀");
	assert_string_equal(err.message, "größe 漢字 😀");
}

/* Wherever a long message is cut, no half of a character is left. */
static void test_long_message(void **state)
{
	char text[2048];
	struct ckpt_error err;

	(void)state;
	for (size_t shift = 0; shift < 4; shift++) {
		size_t at = shift;

		memset(text, 'x', shift);
		for (; at + 4 < sizeof(text); at += 4)
			memcpy(text + at, "\xf0\x9f\x98\x80", 4);
		text[at] = 0;
		ckpt_error_clear(&err);
		(void)ckpt_fail(&err, -EINVAL, "%s", text);
		assert_int_equal(strlen(err.message), shift + (1023 - shift) / 4 * 4);
		assert_memory_equal(err.message, text, strlen(err.message));
	}
}

static void test_copy_honours_the_callers_size(void **state)
{
	struct {
		struct ckpt_error error;
		char later[64]; /* what a later header has appended */
	} big;
	struct ckpt_error err;
	struct ckpt_error copy;

	(void)state;
	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, -EIO, "read failed");

	memset(&copy, 0x5a, sizeof(copy));
	copy.size = offsetof(struct ckpt_error, tier);
	assert_int_equal(ckpt_error_copy(&err, &copy), -EIO);
	assert_int_equal(copy.size, offsetof(struct ckpt_error, tier));
	assert_int_equal(copy.code, -EIO);
	assert_int_equal(copy.tier[0], 0x5a);
	assert_int_equal(copy.message[0], 0x5a);

	memset(&big, 0x5a, sizeof(big));
	big.error.size = sizeof(big);
	assert_int_equal(ckpt_error_copy(&err, &big.error), -EIO);
	assert_int_equal(big.error.size, sizeof(big));
	assert_string_equal(big.error.message, "read failed");
	for (size_t i = 0; i < sizeof(big.later); i++)
		assert_int_equal(big.later[i], 0);

	memset(&copy, 0x5a, sizeof(copy));
	copy.size = 0;
	assert_int_equal(ckpt_error_copy(&err, &copy), -EIO);
	assert_int_equal(copy.code, 0x5a5a5a5a);
	assert_int_equal(ckpt_error_copy(&err, NULL), -EIO);
}

static void *other_thread(void *argument)
{
	struct ckpt_error err = {.size = sizeof(err)};
	int *wrong = argument;

	*wrong = strcmp(ckpt_last_error(), "") != 0 || ckpt_last_error_record(&err) != 0;
	(void)ckpt_fail(ckpt_error_here(), -EPERM, "another thread's");
	return NULL;
}

static void test_last_error(void **state)
{
	struct ckpt_error err = {.size = sizeof(err)};
	pthread_t thread;
	const char *text;
	int wrong = 1;

	(void)state;
	assert_string_equal(ckpt_last_error(), "");
	assert_int_equal(ckpt_last_error_record(&err), 0);
	assert_int_equal(err.step, -1);

	(void)ckpt_fail(ckpt_error_here(), -ENOENT, "first");
	text = ckpt_last_error();
	assert_string_equal(text, "first");

	/* Calls that succeed leave it, and the text that was handed out. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ckpt_error_here()->code, 0);
		assert_string_equal(ckpt_last_error(), "first");
		assert_string_equal(text, "first");
	}
	assert_int_equal(pthread_create(&thread, NULL, other_thread, &wrong), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(wrong, 0);
	assert_string_equal(ckpt_last_error(), "first");

	(void)ckpt_fail(ckpt_error_here(), CKPT_ESTEP, "second");
	assert_string_equal(ckpt_last_error(), "second");
	assert_int_equal(ckpt_last_error_record(&err), CKPT_ESTEP);
	assert_int_equal(err.sys_errno, 0);
	(void)ckpt_error_here();
	assert_string_equal(ckpt_last_error(), "second");
}

static void test_phrases(void **state)
{
	(void)state;
	for (int code = CKPT_EINTEGRITY; code >= CKPT_EREPLICA; code--) {
		assert_string_not_equal(ckpt_strerror(code), "unknown error");
		assert_non_null(strstr(ckpt_code_text(code), "(CKPT_E"));
		for (int other = CKPT_EINTEGRITY; other > code; other--)
			assert_string_not_equal(ckpt_strerror(code), ckpt_strerror(other));
	}
	assert_string_equal(ckpt_strerror(0), "success");
	assert_string_equal(ckpt_strerror(-ENOSPC), "No space left on device");
	assert_string_equal(ckpt_code_text(-ENOSPC), "No space left on device (ENOSPC)");
	assert_string_equal(ckpt_strerror(CKPT_EREPLICA - 1), "unknown error");
	assert_string_equal(ckpt_strerror(5), "unknown error");
	assert_string_equal(ckpt_strerror(INT32_MIN), "unknown error");
	assert_string_equal(ckpt_code_text(INT32_MIN), "unknown error");
	assert_string_equal(ckpt_code_text(INT32_MAX), "unknown error");
	assert_string_equal(ckpt_code_text(-41), "unknown error (41)");
}

/* Those of the C library, as it has them without a locale. */
static void test_phrases_of_errno(void **state)
{
	(void)state;
	for (int number = 1; number < 4096; number++) {
		const char *name = strerrorname_np(number);
		char text[128];

		if (name) {
			(void)snprintf(
				text, sizeof(text), "%s (%s)", strerrordesc_np(number), name);
			assert_string_equal(ckpt_strerror(-number), strerrordesc_np(number));
			assert_string_equal(ckpt_code_text(-number), text);
		} else {
			assert_string_equal(ckpt_strerror(-number), "unknown error");
		}
	}
}

static void test_assertion_says_where_and_aborts(void **state)
{
	char text[256] = "";
	int pipes[2];
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		(void)signal(SIGABRT, SIG_DFL);
		(void)dup2(pipes[1], STDERR_FILENO);
		CKPT_ASSERT(1 + 1 == 3);
		_exit(0);
	}
	assert_int_equal(close(pipes[1]), 0);
	assert_true(read(pipes[0], text, sizeof(text) - 1) > 0);
	assert_int_equal(close(pipes[0]), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "test_error.c"));
	assert_non_null(strstr(text, "assertion failed: 1 + 1 == 3"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_failure_stays),
		cmocka_unit_test(test_without_a_record),
		cmocka_unit_test(test_zeroed_record_is_cleared),
		cmocka_unit_test(test_where),
		cmocka_unit_test(test_message_is_one_line),
		cmocka_unit_test(test_long_message),
		cmocka_unit_test(test_copy_honours_the_callers_size),
		cmocka_unit_test(test_last_error),
		cmocka_unit_test(test_phrases),
		cmocka_unit_test(test_phrases_of_errno),
		cmocka_unit_test(test_assertion_says_where_and_aborts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
