/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, CPUs, deadlines and forks. */
#include "lib/test.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"

static void test_cpus_are_those_of_the_affinity(void **state)
{
	cpu_set_t before;
	cpu_set_t one;
	int cpu = 0;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(ckpt_thread_cpus(), CPU_COUNT(&before));
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(ckpt_thread_cpus(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static void test_deadlines(void **state)
{
	uint64_t now = ckpt_clock_ns();
	uint64_t soon = ckpt_deadline(50);

	(void)state;
	assert_true(ckpt_deadline(-1) == UINT64_MAX);
	assert_true(soon >= now + 50 * UINT64_C(1000000));
	assert_true(soon <= ckpt_clock_ns() + 50 * UINT64_C(1000000));
	assert_true(ckpt_deadline(INT32_MAX) > now + UINT64_C(2147483) * 1000000000);
}

static void test_condition_ends_at_its_deadline(void **state)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond;
	uint64_t deadline;

	(void)state;
	assert_int_equal(ckpt_cond_init(&cond), 0);
	pthread_mutex_lock(&lock);
	deadline = ckpt_deadline(20);
	while (ckpt_cond_wait_until(&cond, &lock, deadline))
		continue;
	assert_true(ckpt_clock_ns() >= deadline);
	assert_false(ckpt_cond_wait_until(&cond, &lock, 0));
	pthread_mutex_unlock(&lock);
	assert_int_equal(pthread_cond_destroy(&cond), 0);
}

/* What a child exits with: how much its count is above the parent's. */
static int count_in_child(unsigned before)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0)
		_exit((int)(ckpt_fork_count() - before));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_forks_are_counted_in_the_child(void **state)
{
	unsigned before;

	(void)state;
	assert_int_equal(ckpt_fork_watch(), 0);
	assert_int_equal(ckpt_fork_watch(), 0);
	before = ckpt_fork_count();
	assert_int_equal(count_in_child(before), 1);
	assert_int_equal(count_in_child(before), 1);
	assert_int_equal(ckpt_fork_count(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cpus_are_those_of_the_affinity),
		cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_condition_ends_at_its_deadline),
		cmocka_unit_test(test_forks_are_counted_in_the_child),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
