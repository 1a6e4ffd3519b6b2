/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks: they go on where they stopped, in the order in which they became ready, and end once. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/task.h"

struct counter {
	struct ckpt_task task;
	int go;
	int looks; /* how often the condition was looked at */
	int passed;
	int ended;
	int result;
	char name;
};

static char order[64];

static void note(char name)
{
	size_t len = strlen(order);

	assert_true(len + 1 < sizeof(order));
	order[len] = name;
	order[len + 1] = 0;
}

static int count_body(struct ckpt_task *task)
{
	struct counter *c = CKPT_CONTAINER(task, struct counter, task);

	CKPT_TASK_BEGIN(task);
	note(c->name);
	CKPT_AWAIT(task, (c->looks++, c->go >= 1));
	c->passed = 1;
	CKPT_AWAIT(task, c->go >= 2);
	c->passed = 2;
	if (c->result < 0)
		return c->result;
	CKPT_TASK_END(task);
}

static void count_done(struct ckpt_task *task)
{
	struct counter *c = CKPT_CONTAINER(task, struct counter, task);

	c->ended++;
}

static void test_goes_on_where_it_stopped(void **state)
{
	struct ckpt_sched sched = {0};
	struct counter c = {.name = 'a'};

	(void)state;
	assert_false(ckpt_task_active(&c.task));
	ckpt_task_start(&c.task, &sched, count_body, count_done);
	assert_true(ckpt_task_active(&c.task));
	assert_int_equal(c.looks, 0);
	ckpt_sched_run(&sched);
	assert_int_equal(c.looks, 1);
	ckpt_sched_run(&sched);
	assert_int_equal(c.looks, 1);

	/* A wake without reason is harmless, two are one. */
	ckpt_task_wake(&c.task);
	ckpt_task_wake(&c.task);
	ckpt_sched_run(&sched);
	assert_int_equal(c.looks, 2);
	assert_int_equal(c.passed, 0);

	c.go = 1;
	ckpt_task_wake(&c.task);
	ckpt_sched_run(&sched);
	assert_int_equal(c.passed, 1);
	c.go = 2;
	ckpt_task_wake(&c.task);
	ckpt_sched_run(&sched);
	assert_int_equal(c.passed, 2);
	assert_int_equal(c.ended, 1);
	assert_int_equal(c.task.result, 0);
	assert_false(ckpt_task_active(&c.task));

	ckpt_task_wake(&c.task);
	ckpt_task_wake(NULL);
	ckpt_sched_run(&sched);
	assert_int_equal(c.ended, 1);
}

static void test_order_and_result(void **state)
{
	struct ckpt_sched sched = {0};
	struct counter c[3] = {{.name = 'a'}, {.name = 'b', .result = -EIO}, {.name = 'c'}};

	(void)state;
	order[0] = 0;
	for (unsigned i = 0; i < 3; i++) {
		c[i].go = 2;
		ckpt_task_start(&c[i].task, &sched, count_body, i == 2 ? NULL : count_done);
	}
	ckpt_sched_run(&sched);
	assert_string_equal(order, "abc");
	assert_int_equal(c[1].task.result, -EIO);
	assert_int_equal(c[1].ended, 1);
	assert_true(c[2].task.finished);
}

static int first_body(struct ckpt_task *task);

static int second_body(struct ckpt_task *task)
{
	struct counter *c = CKPT_CONTAINER(task, struct counter, task);

	CKPT_TASK_BEGIN(task);
	note('2');
	CKPT_AWAIT(task, c->go);
	note('3');
	CKPT_TASK_END(task);
}

static int first_body(struct ckpt_task *task)
{
	note('1');
	return ckpt_task_continue(task, second_body);
}

static void test_bodies_follow_one_another(void **state)
{
	struct ckpt_sched sched = {0};
	struct counter c = {0};

	(void)state;
	order[0] = 0;
	ckpt_task_start(&c.task, &sched, first_body, count_done);
	ckpt_sched_run(&sched);
	assert_string_equal(order, "12");
	c.go = 1;
	ckpt_task_wake(&c.task);
	ckpt_sched_run(&sched);
	assert_string_equal(order, "123");
	assert_int_equal(c.ended, 1);
}

struct heap_task {
	struct ckpt_task task;
	int *freed;
	bool once_more;
	int runs;
};

/* Woken while it runs: it looks again if it waits, and is not run again if it ends. */
static int self_waking_body(struct ckpt_task *task)
{
	struct heap_task *h = CKPT_CONTAINER(task, struct heap_task, task);

	ckpt_task_wake(task);
	return ++h->runs < 3 ? CKPT_TASK_PENDING : 0;
}

static void free_task(struct ckpt_task *task)
{
	struct heap_task *h = CKPT_CONTAINER(task, struct heap_task, task);

	*h->freed = h->runs;
	free(h);
}

static void test_done_may_free(void **state)
{
	struct ckpt_sched sched = {0};
	struct counter after = {.name = 'z', .go = 2};
	struct heap_task *tasks[2];
	int freed[2] = {0, 0};

	(void)state;
	order[0] = 0;
	for (unsigned i = 0; i < 2; i++) {
		tasks[i] = calloc(1, sizeof(*tasks[i]));
		assert_non_null(tasks[i]);
		tasks[i]->freed = &freed[i];
		ckpt_task_start(&tasks[i]->task, &sched, self_waking_body, free_task);
	}
	ckpt_task_start(&after.task, &sched, count_body, count_done);
	ckpt_sched_run(&sched);
	assert_int_equal(freed[0], 3);
	assert_int_equal(freed[1], 3);
	assert_int_equal(after.ended, 1);
	assert_null(sched.head);
	assert_null(sched.tail);
}

static void start_again(struct ckpt_task *task)
{
	struct heap_task *h = CKPT_CONTAINER(task, struct heap_task, task);

	(*h->freed)++;
	if (h->once_more) {
		h->once_more = false;
		h->runs = 0;
		ckpt_task_start(task, task->sched, self_waking_body, start_again);
	}
}

static void test_done_may_start_it_again(void **state)
{
	struct ckpt_sched sched = {0};
	int ends = 0;
	struct heap_task h = {.freed = &ends, .once_more = true};

	(void)state;
	ckpt_task_start(&h.task, &sched, self_waking_body, start_again);
	ckpt_sched_run(&sched);
	assert_int_equal(ends, 2);
	assert_int_equal(h.runs, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_goes_on_where_it_stopped),
		cmocka_unit_test(test_order_and_result),
		cmocka_unit_test(test_bodies_follow_one_another),
		cmocka_unit_test(test_done_may_free),
		cmocka_unit_test(test_done_may_start_it_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
