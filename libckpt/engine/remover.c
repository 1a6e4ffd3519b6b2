/* SPDX-License-Identifier: Apache-2.0 */
/* Removing one step because somebody asked. */
#include <errno.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/keeper.h"
#include "engine/removal.h"

struct ckpt_remover {
	struct ckpt_command command;
	struct ckpt_removal removal;
	uint64_t step;
};

static struct ckpt_remover *remover_of(struct ckpt_command *command)
{
	return CKPT_CONTAINER(command, struct ckpt_remover, command);
}

struct ckpt_command *ckpt_remover_new(struct ckpt_core *core, uint64_t step)
{
	struct ckpt_command *command = ckpt_command_new(core, sizeof(struct ckpt_remover), NULL);

	if (command)
		remover_of(command)->step = step;
	return command;
}

/* Finds the step and says why it may not go. */
static int choose(struct ckpt_remover *remover)
{
	struct ckpt_core *core = remover->command.core;
	struct ckpt_error *err = &remover->command.error;
	unsigned long long step = remover->step;

	if (core->config.read_only)
		return ckpt_fail(
			err, -EROFS, "the store %s was opened read only", core->parts.label);
	int r = ckpt_lineage_mark(&core->scan, err);
	if (r < 0)
		return r;
	const struct ckpt_scan_step *found = ckpt_lineage_choose(&core->scan, remover->step, NULL);
	if (!found)
		return ckpt_fail(err, CKPT_ENOSTEP, "the lineage of %s has no step %llu",
			core->parts.label, step);
	remover->removal.generation = found->generation;
	remover->removal.step = found->step;
	return 0;
}

int ckpt_remover_body(struct ckpt_task *task)
{
	struct ckpt_remover *remover = remover_of(ckpt_command_of(task));
	struct ckpt_removal *removal = &remover->removal;
	struct ckpt_core *core = remover->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	r = choose(remover);
	if (r < 0)
		return r;
	removal->core = core;
	removal->waiter = task;
	removal->err = &remover->command.error;
	ckpt_removal_start(removal);
	CKPT_AWAIT(task, removal->finished);
	if (removal->result < 0)
		return ckpt_fail(removal->err, removal->result, "cannot remove step %llu of %s: %s",
			(unsigned long long)removal->step, core->parts.label,
			ckpt_code_text(removal->result));
	ckpt_scan_drop(&core->scan, removal->generation, removal->step);
	CKPT_TASK_END(task);
}
