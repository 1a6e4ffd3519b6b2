/* SPDX-License-Identifier: Apache-2.0 */
/* The real environment: urgent jobs first, none lost, workers that no signal reaches. */
#include "lib/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/latch.h"
#include "base/thread.h"
#include "lib/hang_inbox.h"

#define JOBS 2000

struct job {
	struct ckpt_job job;
	struct ckpt_latch *gate;    /* waits for it, if there is one */
	struct ckpt_latch *entered; /* set before */
	unsigned number;
	unsigned worked;
	unsigned came_back;
	bool open_to_signals;
	char name[16];
};

static unsigned finished[64];
static unsigned finished_count;

static void work(struct ckpt_job *base)
{
	struct job *job = CKPT_CONTAINER(base, struct job, job);

	if (job->gate) {
		ckpt_latch_set(job->entered, 1);
		await_latch(job->gate, 1);
	}
	job->worked++;
}

static void came_back(struct ckpt_node *node)
{
	struct job *job = CKPT_CONTAINER(node, struct job, job.node);

	job->came_back++;
	if (finished_count < COUNT(finished))
		finished[finished_count++] = job->number;
}

static unsigned run_all(struct ckpt_inbox *inbox)
{
	struct ckpt_node *node = ckpt_inbox_take(inbox);
	unsigned n = 0;

	while (node) {
		struct ckpt_node *next = node->next;

		node->run(node);
		node = next;
		n++;
	}
	return n;
}

static void submit(struct ckpt_env *env, struct job *job, unsigned number, bool urgent)
{
	job->job = (struct ckpt_job){.node = {.run = came_back}, .work = work, .urgent = urgent};
	job->number = number;
	ckpt_env_run(env, &job->job);
}

static void test_urgent_first(void **state)
{
	struct ckpt_latch gate;
	struct ckpt_latch entered;
	struct job jobs[7] = {{.gate = &gate, .entered = &entered}};
	static const unsigned expected[] = {0, 4, 5, 1, 2, 3, 6};
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	struct ckpt_env *env;

	(void)state;
	finished_count = 0;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	assert_int_equal(ckpt_latch_init(&gate), 0);
	assert_int_equal(ckpt_latch_init(&entered), 0);
	assert_int_equal(ckpt_env_os_open(1, &inbox, &os), 0);
	env = ckpt_env_os_env(os);
	/* The only worker is busy while the others queue up. */
	submit(env, &jobs[0], 0, false);
	await_latch(&entered, 1);
	for (unsigned i = 1; i < COUNT(jobs); i++)
		submit(env, &jobs[i], i, i == 4 || i == 5);
	assert_null(ckpt_inbox_take(&inbox));
	ckpt_latch_set(&gate, 1);
	ckpt_env_os_close(os);
	assert_int_equal(run_all(&inbox), COUNT(jobs));
	for (unsigned i = 0; i < COUNT(jobs); i++)
		assert_int_equal(finished[i], expected[i]);
	ckpt_latch_destroy(&entered);
	ckpt_latch_destroy(&gate);
	ckpt_inbox_destroy(&inbox);
}

static void test_every_job_once(void **state)
{
	static struct job jobs[JOBS];
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	unsigned back = 0;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	assert_int_equal(ckpt_env_os_open(3, &inbox, &os), 0);
	assert_int_equal(ckpt_env_os_threads(os), 3);
	for (unsigned i = 0; i < JOBS / 2; i++)
		submit(ckpt_env_os_env(os), &jobs[i], i, i % 5 == 0);
	await_inbox(&inbox, back >= JOBS / 2, back += run_all(&inbox));
	/* What has been handed over when it closes is finished. */
	for (unsigned i = JOBS / 2; i < JOBS; i++)
		submit(ckpt_env_os_env(os), &jobs[i], i, false);
	ckpt_env_os_close(os);
	back += run_all(&inbox);
	assert_int_equal(back, JOBS);
	for (unsigned i = 0; i < JOBS; i++) {
		assert_int_equal(jobs[i].worked, 1);
		assert_int_equal(jobs[i].came_back, 1);
	}
	ckpt_inbox_destroy(&inbox);
	ckpt_env_os_close(NULL);
}

static void look_around(struct ckpt_job *base)
{
	struct job *job = CKPT_CONTAINER(base, struct job, job);
	sigset_t blocked;

	(void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	for (int sig = 1; sig <= SIGRTMAX; sig++) {
		/* Two cannot be blocked; those between are the C library's own. */
		if (sig == SIGKILL || sig == SIGSTOP || (sig >= 32 && sig < SIGRTMIN))
			continue;
		if (sigismember(&blocked, sig) != 1)
			job->open_to_signals = true;
	}
	(void)pthread_getname_np(pthread_self(), job->name, sizeof(job->name));
}

static void test_workers_block_signals(void **state)
{
	struct job job = {.job = {.node = {.run = came_back}, .work = look_around}};
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	sigset_t before;
	sigset_t after;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	/* The caller's mask is not touched, whatever it is. */
	(void)sigemptyset(&before);
	(void)sigaddset(&before, SIGUSR1);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	assert_int_equal(ckpt_env_os_open(1, &inbox, &os), 0);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
	for (int sig = 1; sig <= SIGRTMAX; sig++)
		assert_int_equal(sigismember(&before, sig), sigismember(&after, sig));
	ckpt_env_run(ckpt_env_os_env(os), &job.job);
	ckpt_env_os_close(os);
	assert_int_equal(run_all(&inbox), 1);
	assert_false(job.open_to_signals);
	assert_string_equal(job.name, "ckpt-work-0");
	/* A pool that has a name of its own. */
	assert_int_equal(ckpt_env_os_open(1, &inbox, &os), 0);
	ckpt_env_os_name(os, "ckpt-pin");
	ckpt_env_run(ckpt_env_os_env(os), &job.job);
	ckpt_env_os_close(os);
	assert_int_equal(run_all(&inbox), 1);
	assert_string_equal(job.name, "ckpt-pin-0");
	ckpt_inbox_destroy(&inbox);
}

static void test_clock_and_random(void **state)
{
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	struct ckpt_env *env;
	uint64_t before;
	uint64_t all_set = 0;
	uint64_t all_clear = 0;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	assert_int_equal(ckpt_env_os_open(1, &inbox, &os), 0);
	env = ckpt_env_os_env(os);
	before = ckpt_env_now(env);
	for (unsigned i = 0; i < 100; i++) {
		uint64_t value = ckpt_env_random(env);

		all_set |= value;
		all_clear |= ~value;
		assert_true(ckpt_env_now(env) >= before);
		before = ckpt_env_now(env);
		/* The time for which the machine was suspended is not taken away again. */
		assert_true(ckpt_env_age(env) >= before);
	}
	/* Every bit was 1 at some time, and 0 at some other. */
	assert_true(all_set == UINT64_MAX && all_clear == UINT64_MAX);
	/* Milliseconds: after 2020 and before 2200. */
	assert_in_range(ckpt_env_wall_ms(env), UINT64_C(1577836800000), UINT64_C(7258118400000));
	ckpt_env_os_close(os);
	ckpt_inbox_destroy(&inbox);
}

static bool refuse(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void test_open_fails_cleanly(void **state)
{
	struct ckpt_env_os *os = NULL;
	struct ckpt_inbox inbox;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	assert_int_equal(ckpt_env_os_open(0, &inbox, &os), -EINVAL);
	ckpt_alloc_set_hook(refuse, NULL);
	assert_int_equal(ckpt_env_os_open(1, &inbox, &os), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_null(os);
	ckpt_inbox_destroy(&inbox);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_urgent_first),
		cmocka_unit_test(test_every_job_once),
		cmocka_unit_test(test_workers_block_signals),
		cmocka_unit_test(test_clock_and_random),
		cmocka_unit_test(test_open_fails_cleanly),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
