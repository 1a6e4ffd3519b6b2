/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/copy/claims_import.h"

#include "engine/lineage/lineage.h"

static void start(struct ckpt_claims_import *b, struct ckpt_task *task)
{
	struct ckpt_core *core = b->command.core;

	b->pick = (struct ckpt_select){
		.core = core, .marker = core->lineage->marker, .lock = {.fd = -1}};
	b->step_copy = (struct ckpt_step_copy){.core = core,
		.pick = &b->pick,
		.place = b->place,
		.stop = &b->stop,
		.err = &b->command.error,
		.waiter = task};
	ckpt_step_copy_init(&b->step_copy);
	ckpt_step_copy_start_prepare(&b->step_copy);
}

int ckpt_claims_import_body(struct ckpt_task *task)
{
	struct ckpt_claims_import *b =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_claims_import, command);

	CKPT_TASK_BEGIN(task);
	CKPT_ASSERT(b->place.claims);
	start(b, task);
	CKPT_AWAIT(task, b->step_copy.task.finished);
	b->code = b->step_copy.task.result;
	ckpt_step_copy_start_end(&b->step_copy, b->code);
	CKPT_AWAIT(task, b->step_copy.task.finished);
	ckpt_step_copy_clear(&b->step_copy);
	return b->code;
	CKPT_TASK_END(task);
}
