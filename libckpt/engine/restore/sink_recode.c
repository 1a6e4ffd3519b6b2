/* SPDX-License-Identifier: Apache-2.0 */
/* A step that was picked, stored in the other form where it is. */
#include "engine/restore/sink.h"

#include <errno.h>

#include "base/error.h"

static void start_recode(struct ckpt_restore *r)
{
	r->recode->core = r->core;
	r->recode->pick = &r->pick;
	r->recode->elsewhere = &r->elsewhere;
	r->recode->stop = &r->stop;
	r->recode->err = &r->why;
	r->recode->counter = &r->bytes_done;
	r->recode->waiter = &r->sink_task;
	ckpt_recode_start(r->recode);
}

int ckpt_sink_recode_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	if (r->core->config.read_only)
		return ckpt_fail(
			&r->why, -EROFS, "the store %s was opened read only", r->core->parts.label);
	/* Another one of them may write to the step. */
	if (r->core->config.world > 1)
		return ckpt_fail(&r->why, -EINVAL,
			"shards are stored again by one process alone: open %s with a world of 1, "
			"and not of %u",
			r->core->parts.label, r->core->config.world);
	ckpt_sink_start_elsewhere(r);
	CKPT_AWAIT(task, r->elsewhere.task.finished);
	if (!ckpt_sink_passed(r, &r->elsewhere.task) || r->stop)
		return r->stop ? r->stop : r->code;
	ckpt_sink_count_all(r);
	if (r->core->restorer->recoding || r->core->restorer->repairing)
		return ckpt_fail(&r->why, -EBUSY,
			"a step of %s is being repaired or stored again: wait for its end",
			r->core->parts.label);
	r->core->restorer->recoding = true;
	start_recode(r);
	CKPT_AWAIT(task, r->recode->task.finished);
	r->core->restorer->recoding = false;
	return r->recode->task.result;
	CKPT_TASK_END(task);
}
