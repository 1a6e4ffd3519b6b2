/* SPDX-License-Identifier: Apache-2.0 */
/* A task waits for a worker, and has what it has come to; each time anew. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/task_job.h"

struct waiter {
	struct ckpt_task task;
	struct ckpt_env *env;
	struct ckpt_task_job job;
	struct ckpt_error err;
	int results[2];
	int came; /* to the work */
};

static struct ckpt_job *handed;

/* The worker is this test. */
static void hand(struct ckpt_env *env, struct ckpt_job *job)
{
	(void)env;
	assert_null(handed);
	handed = job;
}

static void work_and_come_back(struct ckpt_sched *sched)
{
	struct ckpt_job *job = handed;

	handed = NULL;
	job->work(job);
	/* The work is done, and the task has not heard of it. */
	ckpt_sched_run(sched);
	assert_null(handed);
	job->node.run(&job->node);
	ckpt_sched_run(sched);
}

/* Fails the first time; the second one is to have nothing of that. */
static void work(struct ckpt_job *job)
{
	struct waiter *w = CKPT_CONTAINER(job, struct waiter, job.job);

	assert_int_equal(w->job.result, 0);
	assert_int_equal(w->job.error.code, 0);
	if (w->came++ == 0)
		w->job.result = ckpt_fail(&w->job.error, -EIO, "the first one fails");
}

static int wait_body(struct ckpt_task *task)
{
	struct waiter *w = CKPT_CONTAINER(task, struct waiter, task);

	CKPT_TASK_BEGIN(task);
	ckpt_task_job_start(&w->job, w->env, task, work);
	CKPT_AWAIT(task, w->job.done);
	w->results[0] = ckpt_task_job_take(&w->job, &w->err);
	ckpt_task_job_start(&w->job, w->env, task, work);
	CKPT_AWAIT(task, w->job.done);
	w->results[1] = ckpt_task_job_take(&w->job, &w->err);
	CKPT_TASK_END(task);
}

static void test_there_and_back(void **state)
{
	const struct ckpt_env_ops ops = {.name = "test", .run = hand};
	struct ckpt_env env = {.ops = &ops};
	struct ckpt_sched sched = {0};
	struct waiter w = {.env = &env};

	(void)state;
	ckpt_error_clear(&w.err);
	ckpt_task_start(&w.task, &sched, wait_body, NULL);
	ckpt_sched_run(&sched);
	assert_true(handed && handed->urgent);
	/* Woken by another: it waits on. */
	ckpt_task_wake(&w.task);
	ckpt_sched_run(&sched);
	assert_int_equal(w.came, 0);
	work_and_come_back(&sched);
	assert_int_equal(w.results[0], -EIO);
	assert_string_equal(w.err.message, "the first one fails");
	assert_false(w.task.finished);
	work_and_come_back(&sched);
	assert_true(w.task.finished);
	assert_int_equal(w.results[1], 0);
	/* What went well has no words, and takes none away. */
	assert_int_equal(w.err.code, -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
