/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only rank 0 decides whether a step is skipped, because its last save is the last to end. If each rank decided for
 * itself, they would begin different steps and wait for each other.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/commit.h"
#include "engine/save/saver.h"

static struct ckpt_skipper *skipper_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_skipper, command);
}

static int take(struct ckpt_skipper *s)
{
	const struct ckpt_core *core = s->command.core;
	struct ckpt_exchange_item *item = &s->call.items[0];
	const struct ckpt_verdict asked = {.generation = core->lineage->generation,
		.step = s->step,
		.nonce = core->lineage->nonce};
	struct ckpt_outcome outcome;

	int r = ckpt_outcome_decode(item->data, item->length, item->key, NULL, &outcome);
	if (r == 0)
		r = ckpt_verdict_check(&outcome.verdict, &asked, item->key, NULL);
	/* The save finds any other outcome when it has begun. */
	if (r < 0 || outcome.verdict.code != CKPT_ESKIPPED)
		return 0;
	return ckpt_fail(&s->command.error, CKPT_ESKIPPED,
		"step %llu was skipped for all ranks: %s", (unsigned long long)s->step,
		outcome.verdict.reason);
}

int ckpt_skipper_body(struct ckpt_task *task)
{
	struct ckpt_skipper *s = skipper_of(task);
	struct ckpt_core *core = s->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	if (!core->save || core->saver->skipper)
		return 0;
	core->saver->skipper = s;
	memset(s->call.items, 0, sizeof(s->call.items[0]));
	s->call.core = core;
	s->call.stop = &s->stop;
	s->call.deadline_ns = ckpt_env_now(core->parts.env) + s->patience_ns;
	s->call.err = NULL;
	s->call.waiter = task;
	s->call.count = 1;
	ckpt_key_outcome(s->call.items[0].key, core->lineage->generation, s->step);
	ckpt_exchange_call_get(&s->call);
	CKPT_AWAIT(task, s->call.task.finished);
	core->saver->skipper = NULL;
	r = s->call.task.result == 0 ? take(s) : 0;
	ckpt_exchange_items_clear(s->call.items, 1);
	/* It is over for this rank, too: a step is skipped once. */
	if (r == CKPT_ESKIPPED &&
		(!core->lineage->any_step || s->step > core->lineage->last_step)) {
		core->lineage->any_step = true;
		core->lineage->last_step = s->step;
	}
	return r;
	CKPT_TASK_END(task);
}

void ckpt_skipper_wake(struct ckpt_core *core)
{
	if (!core->saver->skipper)
		return;
	core->saver->skipper->stop = -EALREADY;
	ckpt_task_wake(&core->saver->skipper->call.task);
}
