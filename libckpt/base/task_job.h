/* SPDX-License-Identifier: Apache-2.0 */
/* Work for a worker that a task waits for: start it, CKPT_AWAIT(task, job.done), take what it has come to. */
#ifndef CKPT_BASE_TASK_JOB_H
#define CKPT_BASE_TASK_JOB_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/task.h"

struct ckpt_task_job {
	struct ckpt_job job;
	struct ckpt_task *task;
	bool done;
	/* The work's: what it has come to, and its words. Those of the task may be told meanwhile. */
	int result;
	struct ckpt_error error;
};

/* `work` is given the ckpt_job in it. One that is under way is not started again. */
void ckpt_task_job_start(struct ckpt_task_job *job, struct ckpt_env *env, struct ckpt_task *task,
	void (*work)(struct ckpt_job *job));
/* The same of what may wait until the workers have nothing urgent. */
void ckpt_task_job_start_behind(struct ckpt_task_job *job, struct ckpt_env *env,
	struct ckpt_task *task, void (*work)(struct ckpt_job *job));
/* When it is done: its result; a failure's words go to `err`. */
int ckpt_task_job_take(const struct ckpt_task_job *job, struct ckpt_error *err);

#endif
