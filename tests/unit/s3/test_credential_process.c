/* SPDX-License-Identifier: Apache-2.0 */
/* A credential_process: what it prints is had, it never holds anybody up, and nothing of it is told. */
#include "lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/secret.h"
#include "lib/hang.h"
#include "lib/scratch.h"
#include "s3/credentials.h"
#include "s3/credential_process.h"

static struct ckpt_error err;
static char *output;
static size_t length;

static int run_with(struct ckpt_s3_process process)
{
	int r;

	if (!process.whose)
		process.whose = "W";
	ckpt_error_clear(&err);
	output = NULL;
	r = ckpt_s3_process_run(&process, &err, &output, &length);
	assert_null(strstr(err.message, "CANARY"));
	assert_true(r == 0 || err.message[0]);
	return r;
}

static int run(const char *command)
{
	return run_with((struct ckpt_s3_process){.command = command, .stop_fd = -1});
}

static void check_prints(const char *command, const char *text)
{
	assert_int_equal(run(command), 0);
	assert_int_equal(length, strlen(text));
	assert_string_equal(output, text);
	ckpt_secret_free(output);
}

static void test_words(void **state)
{
	(void)state;
	check_prints("printf '%s|' a \"b c\" d\\ e 'f\\g' \"h\\\"i\\\\j\\k\" ''",
		"a|b c|d e|f\\g|h\"i\\j\\k||");
	check_prints("  printf\t%s x\"y\"'z' ", "xyz");
	/* No shell: nothing is expanded, and nothing is run besides. */
	check_prints("printf %s $HOME;x*", "$HOME;x*");
	check_prints("/bin/sh -c 'echo hello'", "hello\n");
}

static void test_its_surroundings(void **state)
{
	char *const environment[] = {"A=1", NULL};
	struct ckpt_s3_process process = {.command = "/bin/sh -c 'echo \"$A-$B\"; cat'",
		.environment = environment,
		.stop_fd = -1};
	sigset_t all;
	sigset_t before;

	(void)state;
	/* As on a worker: every signal is blocked; and as in Python: SIGPIPE is ignored. */
	(void)sigfillset(&all);
	(void)signal(SIGPIPE, SIG_IGN);
	assert_int_equal(sigprocmask(SIG_SETMASK, &all, &before), 0);
	assert_int_equal(run_with(process), 0);
	assert_string_equal(output, "1-\n");
	ckpt_secret_free(output);
	/* Neither is its. */
	assert_int_equal(run("/bin/sh -c 'kill -PIPE $$; echo CANARY'"), CKPT_EAUTH);
	assert_non_null(strstr(err.message, "signal 13"));
	(void)sigprocmask(SIG_SETMASK, &before, NULL);
	(void)signal(SIGPIPE, SIG_DFL);
}

static void test_found_along_path(void **state)
{
	char *dir = scratch_make();
	char path[600];
	struct ckpt_s3_process process = {.command = "mine CANARY", .path = path, .stop_fd = -1};
	FILE *f = fopen(scratch_join(dir, "mine"), "w");

	(void)state;
	(void)snprintf(path, sizeof(path), "/nonexistent:%s", dir);
	assert_true(f && fputs("#!/bin/sh\necho mine\n", f) > 0 && fclose(f) == 0);
	assert_int_equal(run_with(process), -ENOENT);
	assert_non_null(strstr(err.message, "W: the program mine cannot be found"));
	assert_int_equal(chmod(scratch_join(dir, "mine"), 0700), 0);
	assert_int_equal(run_with(process), 0);
	assert_string_equal(output, "mine\n");
	ckpt_secret_free(output);
	scratch_remove(dir);
}

static void test_refused(void **state)
{
	static const struct {
		const char *command;
		int code;
		const char *why;
	} cases[] = {
		{"", -EINVAL, "is empty"},
		{"a 'b", -EINVAL, "a quote that does not end"},
		{"/nonexistent/x CANARY", -ENOENT, "cannot be started"},
		{"/bin/sh -c 'echo CANARY; exit 3'", CKPT_EAUTH, "exit code 3"},
		{"/bin/sh -c 'echo CANARY; kill -9 $$'", CKPT_EAUTH, "signal 9"},
		{"/bin/sh -c 'while :; do echo CANARYCANARYCANARY; done'", -EFBIG, "more than"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(run(cases[i].command), cases[i].code);
		assert_non_null(strstr(err.message, cases[i].why));
		assert_null(output);
	}
}

static bool is_gone(long pid)
{
	char path[64];
	char line[256] = "";

	(void)snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return true;
	bool gone = !fgets(line, sizeof(line), f) || strstr(line, ") Z");
	(void)fclose(f);
	return gone;
}

/* It hangs, and so does what it has started; both are gone afterwards. */
static void test_deadline(void **state)
{
	char *dir = scratch_make();
	char command[1024];
	struct ckpt_s3_process process = {.command = command, .timeout_ms = 300, .stop_fd = -1};
	size_t descriptors = scratch_descriptors();
	long pid = 0;
	FILE *f;

	(void)state;
	(void)snprintf(command, sizeof(command),
		"/bin/sh -c 'tail -f /dev/null & echo $! > %s/pid; echo CANARY; wait'", dir);
	assert_int_equal(run_with(process), -ETIMEDOUT);
	assert_non_null(strstr(err.message, "within 300 ms"));
	f = fopen(scratch_join(dir, "pid"), "r");
	/* Unless it has not come so far. */
	bool told = f && fscanf(f, "%ld", &pid) == 1;
	if (f)
		(void)fclose(f);
	/* Somebody else reaps it: it goes soon. */
	if (told)
		await(is_gone(pid));
	assert_int_equal(scratch_descriptors(), descriptors);
	scratch_remove(dir);
}

static void test_stopped(void **state)
{
	struct ckpt_s3_process process = {.command = "tail -f /dev/null"};

	(void)state;
	process.stop_fd = eventfd(1, EFD_CLOEXEC);
	assert_true(process.stop_fd >= 0);
	assert_int_equal(run_with(process), -ECANCELED);
	(void)close(process.stop_fd);
}

/* One that goes on in the background keeps the pipe, and holds nobody up. */
static void test_daemon(void **state)
{
	struct ckpt_s3_process process = {
		.command = "/bin/sh -c 'tail -f /dev/null & echo $!'", .stop_fd = -1};

	(void)state;
	assert_int_equal(run_with(process), 0);
	assert_true(strtol(output, NULL, 10) > 1);
	assert_int_equal(kill((pid_t)strtol(output, NULL, 10), SIGKILL), 0);
	ckpt_secret_free(output);
}

/* Nobody can say how it ended: what it printed counts. */
static void test_children_ignored(void **state)
{
	(void)state;
	(void)signal(SIGCHLD, SIG_IGN);
	check_prints("/bin/echo yes", "yes\n");
	(void)signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_its_surroundings),
		cmocka_unit_test(test_found_along_path),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_daemon),
		cmocka_unit_test(test_children_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
