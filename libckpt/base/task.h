/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: how the core writes a protocol down from top to bottom and never blocks.
 *
 * A task is a function that is called again whenever something it waits for may have happened, and
 * goes on where it stopped. Its variables live in the struct around it; nothing on its stack survives
 * CKPT_AWAIT, which may not stand inside a nested switch.
 *
 *	static int publish_body(struct ckpt_task *task)
 *	{
 *		struct publish *p = CKPT_CONTAINER(task, struct publish, task);
 *
 *		CKPT_TASK_BEGIN(task);
 *		ckpt_store_put(p->store, &p->op, task, p->name, &p->bytes);
 *		CKPT_AWAIT(task, p->op.done);
 *		if (p->op.result < 0)
 *			return p->op.result;
 *		...
 *		CKPT_TASK_END(task);
 *	}
 *
 * Everything here runs on the core's thread.
 */
#ifndef CKPT_BASE_TASK_H
#define CKPT_BASE_TASK_H

#include "base/compiler.h"

#define CKPT_TASK_PENDING 1

struct ckpt_task;
struct ckpt_sched;

/* Returns CKPT_TASK_PENDING, 0, or a negative code. */
typedef int ckpt_task_fn(struct ckpt_task *task);

struct ckpt_task {
	ckpt_task_fn *body;
	void (*done)(struct ckpt_task
			*task); /* once, after the body has returned its result; may free */
	struct ckpt_sched *sched;
	struct ckpt_task *next;
	int line;
	int result;
	bool queued;
	bool finished;
};

/* Ready tasks, in the order in which they became ready. */
struct ckpt_sched {
	struct ckpt_task *head;
	struct ckpt_task *tail;
};

/* Queues a task that is not running. `done` may be NULL: then check `finished` and `result`. */
void ckpt_task_start(struct ckpt_task *task, struct ckpt_sched *sched, ckpt_task_fn *body,
	void (*done)(struct ckpt_task *task));
/* Has the task run again. Does nothing if it is queued, has finished, was never started, or is NULL. */
void ckpt_task_wake(struct ckpt_task *task);
/*
 * Continues with another body, from its start: `return ckpt_task_continue(task, next_body);`. Long protocols are
 * written as consecutive bodies.
 */
int ckpt_task_continue(struct ckpt_task *task, ckpt_task_fn *body);
/* Started and not finished. */
bool ckpt_task_active(const struct ckpt_task *task);
/* Runs ready tasks until there are none. */
void ckpt_sched_run(struct ckpt_sched *sched);

/* clang-format off */
#define CKPT_TASK_BEGIN(task) switch ((task)->line) { CKPT_ASSERT_NO_OTHER; case 0:
#define CKPT_TASK_END(task) } return 0
#define CKPT_AWAIT(task, cond)                                                                     \
	do {                                                                                       \
		(task)->line = __LINE__;                                                           \
		__attribute__((fallthrough));                                                      \
	case __LINE__:                                                                             \
		if (!(cond))                                                                       \
			return CKPT_TASK_PENDING;                                                  \
	} while (0)
/* clang-format on */

#endif
