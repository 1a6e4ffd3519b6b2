/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets that steps are copied into: each has threads and connections of its own, and goes when its copy is over. */
#include "config.h"

#if CKPT_HAVE_S3
#include <errno.h>

#include "base/alloc.h"
#include "base/task_job.h"
#include "engine/runtime/runtime_state.h"
#include "s3/client.h"
#include "s3/s3_bucket.h"

struct ckpt_dest {
	struct ckpt_dest *next; /* guarded by the engine's lock */
	struct ckpt_engine *engine;
	struct ckpt_bucket *bucket;
	struct ckpt_task task;
	struct ckpt_task_job job;
};

static struct ckpt_dest *dest_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_dest, task);
}

int ckpt_runtime_keep_dest(struct ckpt_engine *engine, struct ckpt_bucket *bucket)
{
	struct ckpt_dest *dest = ckpt_alloc(sizeof(*dest));

	if (!dest)
		return -ENOMEM;
	dest->engine = engine;
	dest->bucket = bucket;
	pthread_mutex_lock(&engine->lock);
	dest->next = engine->dests;
	engine->dests = dest;
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

static void close_work(struct ckpt_job *job)
{
	struct ckpt_task_job *mine = CKPT_CONTAINER(job, struct ckpt_task_job, job);

	ckpt_bucket_close(CKPT_CONTAINER(mine, struct ckpt_dest, job)->bucket);
}

static int leave_body(struct ckpt_task *task)
{
	struct ckpt_dest *dest = dest_of(task);
	struct ckpt_core *core = &dest->engine->core;

	CKPT_TASK_BEGIN(task);
	/* Keys may be on their way still. */
	ckpt_s3_client_unlink(&core->clients, ckpt_bucket_client(dest->bucket));
	ckpt_s3_client_stop(ckpt_bucket_client(dest->bucket));
	CKPT_AWAIT(task, ckpt_s3_client_idle(ckpt_bucket_client(dest->bucket), task));
	ckpt_task_job_start(&dest->job, core->parts.env, task, close_work);
	CKPT_AWAIT(task, dest->job.done);
	CKPT_TASK_END(task);
}

static void leave_done(struct ckpt_task *task)
{
	struct ckpt_dest *dest = dest_of(task);
	struct ckpt_core *core = &dest->engine->core;

	core->commands--;
	ckpt_task_wake(core->closer);
	ckpt_free(dest);
}

void ckpt_runtime_leave_dest(void *user, struct ckpt_s3_client *client)
{
	struct ckpt_engine *engine = user;
	struct ckpt_dest **link = &engine->dests;
	struct ckpt_dest *dest;

	pthread_mutex_lock(&engine->lock);
	while (*link && ckpt_bucket_client((*link)->bucket) != client)
		link = &(*link)->next;
	dest = *link;
	if (dest)
		*link = dest->next;
	pthread_mutex_unlock(&engine->lock);
	if (!dest)
		return;
	engine->core.commands++;
	ckpt_task_start(&dest->task, &engine->core.sched, leave_body, leave_done);
}

void ckpt_runtime_close_dests(struct ckpt_engine *engine)
{
	while (engine->dests) {
		struct ckpt_dest *dest = engine->dests;

		engine->dests = dest->next;
		ckpt_bucket_close(dest->bucket);
		ckpt_free(dest);
	}
}
#else
#include "engine/runtime/runtime_state.h"

void ckpt_runtime_leave_dest(void *user, struct ckpt_s3_client *client)
{
	(void)user;
	(void)client;
}

void ckpt_runtime_close_dests(struct ckpt_engine *engine)
{
	(void)engine;
}
#endif
