/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a task's work on a worker. */
#include "base/task_job.h"

#include "base/error.h"

static void job_back(struct ckpt_node *node)
{
	struct ckpt_task_job *job = CKPT_CONTAINER(node, struct ckpt_task_job, job.node);

	job->done = true;
	ckpt_task_wake(job->task);
}

static void start(struct ckpt_task_job *job, struct ckpt_env *env, struct ckpt_task *task,
	const struct ckpt_job *like)
{
	job->job = *like;
	job->job.node.run = job_back;
	job->task = task;
	job->done = false;
	job->result = 0;
	ckpt_error_clear(&job->error);
	ckpt_env_run(env, &job->job);
}

void ckpt_task_job_start(struct ckpt_task_job *job, struct ckpt_env *env, struct ckpt_task *task,
	void (*work)(struct ckpt_job *job))
{
	start(job, env, task, &(struct ckpt_job){.work = work, .urgent = true});
}

void ckpt_task_job_start_behind(struct ckpt_task_job *job, struct ckpt_env *env,
	struct ckpt_task *task, void (*work)(struct ckpt_job *job))
{
	start(job, env, task, &(struct ckpt_job){.work = work});
}

int ckpt_task_job_take(const struct ckpt_task_job *job, struct ckpt_error *err)
{
	CKPT_ASSERT(job->done);
	if (job->result < 0)
		*err = job->error;
	return job->result;
}
