/* SPDX-License-Identifier: Apache-2.0 */
/* Work on a worker that a task waits for: start it, CKPT_AWAIT(task, job.done), take its result. */
#ifndef CKPT_BASE_TASK_JOB_H
#define CKPT_BASE_TASK_JOB_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/task.h"

struct ckpt_task_job {
	struct ckpt_job job;
	struct ckpt_task *task;
	bool done;
	/* Written by the worker: result and error. The task's own error may be read meanwhile. */
	int result;
	struct ckpt_error error;
};

/* `work` receives the ckpt_job in it. It must not be running. */
void ckpt_task_job_start(struct ckpt_task_job *job, struct ckpt_env *env, struct ckpt_task *task,
	void (*work)(struct ckpt_job *job));
/* The same with low priority: it waits until the workers have nothing urgent. */
void ckpt_task_job_start_behind(struct ckpt_task_job *job, struct ckpt_env *env,
	struct ckpt_task *task, void (*work)(struct ckpt_job *job));
/* When it is done: returns its result; copies its error to `err`. */
int ckpt_task_job_take(const struct ckpt_task_job *job, struct ckpt_error *err);

#endif
