/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bringer.h"

static void start(struct ckpt_bringer *b, struct ckpt_task *task)
{
	struct ckpt_core *core = b->command.core;

	b->pick = (struct ckpt_pick){.core = core, .marker = core->marker, .lock = {.fd = -1}};
	b->exporter = (struct ckpt_exporter){.core = core,
		.pick = &b->pick,
		.place = b->place,
		.stop = &b->stop,
		.err = &b->command.error,
		.waiter = task};
	ckpt_exporter_init(&b->exporter);
	ckpt_exporter_start_prepare(&b->exporter);
}

int ckpt_bringer_body(struct ckpt_task *task)
{
	struct ckpt_bringer *b =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_bringer, command);

	CKPT_TASK_BEGIN(task);
	CKPT_ASSERT(b->place.claims);
	start(b, task);
	CKPT_AWAIT(task, b->exporter.task.finished);
	b->code = b->exporter.task.result;
	ckpt_exporter_start_end(&b->exporter, b->code);
	CKPT_AWAIT(task, b->exporter.task.finished);
	ckpt_exporter_clear(&b->exporter);
	return b->code;
	CKPT_TASK_END(task);
}
