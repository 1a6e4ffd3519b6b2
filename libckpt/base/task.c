/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of ready tasks. */
#include "base/task.h"

static void enqueue(struct ckpt_sched *sched, struct ckpt_task *task)
{
	task->next = NULL;
	task->queued = true;
	if (sched->tail)
		sched->tail->next = task;
	else
		sched->head = task;
	sched->tail = task;
}

static struct ckpt_task *dequeue(struct ckpt_sched *sched)
{
	struct ckpt_task *task = sched->head;

	if (!task)
		return NULL;
	sched->head = task->next;
	if (!sched->head)
		sched->tail = NULL;
	task->next = NULL;
	task->queued = false;
	return task;
}

/* A task that was woken while it ended must leave the queue, because `done` may free it. */
static void unlink_task(struct ckpt_sched *sched, struct ckpt_task *task)
{
	struct ckpt_task *before = NULL;

	for (struct ckpt_task *t = sched->head; t != task; t = t->next)
		before = t;
	if (before)
		before->next = task->next;
	else
		sched->head = task->next;
	if (sched->tail == task)
		sched->tail = before;
	task->next = NULL;
	task->queued = false;
}

void ckpt_task_start(struct ckpt_task *task, struct ckpt_sched *sched, ckpt_task_fn *body,
	void (*done)(struct ckpt_task *task))
{
	CKPT_ASSERT(body && !ckpt_task_active(task));
	*task = (struct ckpt_task){.body = body, .done = done, .sched = sched};
	enqueue(sched, task);
}

void ckpt_task_wake(struct ckpt_task *task)
{
	if (task && ckpt_task_active(task) && !task->queued)
		enqueue(task->sched, task);
}

bool ckpt_task_active(const struct ckpt_task *task)
{
	return task->sched && !task->finished;
}

void ckpt_sched_run(struct ckpt_sched *sched)
{
	struct ckpt_task *task;

	while ((task = dequeue(sched))) {
		int result = task->body(task);

		if (result == CKPT_TASK_PENDING)
			continue;
		CKPT_ASSERT(result <= 0);
		if (task->queued)
			unlink_task(sched, task);
		task->result = result;
		task->finished = true;
		if (task->done)
			task->done(task);
	}
}

int ckpt_task_continue(struct ckpt_task *task, ckpt_task_fn *body)
{
	CKPT_ASSERT(body && !task->finished);
	task->body = body;
	task->line = 0;
	return body(task);
}
