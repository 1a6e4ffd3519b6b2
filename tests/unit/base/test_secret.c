/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets: in no core dump, in no forked child. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/secret.h"

/* The line VmFlags of what lies there; "" where the kernel says none. */
static void flags_of(const void *at, char *out, size_t size)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	char line[512];
	bool in = false;

	*out = 0;
	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long begin;
		unsigned long end;

		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			in = begin <= (unsigned long)at && (unsigned long)at < end;
		else if (in && strncmp(line, "VmFlags:", 8) == 0)
			(void)snprintf(out, size, "%s", line);
	}
	(void)fclose(maps);
}

static void test_is_in_no_core_dump(void **state)
{
	char *secret = ckpt_secret_strdup("hunter2");
	char *large = ckpt_secret_alloc(1 << 20);
	char flags[256];

	(void)state;
	flags_of(secret, flags, sizeof(flags));
	if (!*flags)
		skip();
	assert_non_null(strstr(flags, " dd"));
	flags_of(large + (1 << 20) - 1, flags, sizeof(flags));
	assert_non_null(strstr(flags, " dd"));
	ckpt_secret_free(secret);
	ckpt_secret_free(large);
	/* What this proves is that others are. */
	secret = ckpt_strdup("hunter2");
	flags_of(secret, flags, sizeof(flags));
	assert_null(strstr(flags, " dd"));
	ckpt_free(secret);
}

static void test_is_in_no_child(void **state)
{
	char *secret = ckpt_secret_strdup("hunter2");
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		bool gone = *secret == 0;

		ckpt_secret_free(secret);
		_exit(gone ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_string_equal(secret, "hunter2");
	ckpt_secret_free(secret);
}

static bool refuse(void *user, size_t size)
{
	(void)size;
	return *(bool *)user;
}

static void test_is_memory(void **state)
{
	char *a = ckpt_secret_alloc(5000);
	char *b = ckpt_secret_alloc(0);
	bool refused = true;

	(void)state;
	for (size_t i = 0; i < 5000; i++)
		assert_int_equal(a[i], 0);
	memset(a, 0xff, 5000);
	assert_int_equal((uintptr_t)a % _Alignof(max_align_t), 0);
	assert_non_null(b);
	ckpt_secret_free(a);
	ckpt_secret_free(b);
	ckpt_secret_free(NULL);
	assert_null(ckpt_secret_alloc(SIZE_MAX));
	assert_null(ckpt_secret_alloc(SIZE_MAX / 2));
	ckpt_alloc_set_hook(refuse, &refused);
	assert_null(ckpt_secret_alloc(1));
	assert_null(ckpt_secret_strdup("x"));
	ckpt_alloc_set_hook(NULL, NULL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_is_in_no_core_dump),
		cmocka_unit_test(test_is_in_no_child),
		cmocka_unit_test(test_is_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
