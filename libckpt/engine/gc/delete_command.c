/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes one step on request. */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/delete_step.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"

struct ckpt_delete_command {
	struct ckpt_command command;
	struct ckpt_deletion deletion;
	uint64_t step;
};

static struct ckpt_delete_command *remover_of(struct ckpt_command *command)
{
	return CKPT_CONTAINER(command, struct ckpt_delete_command, command);
}

struct ckpt_command *ckpt_delete_command_new(struct ckpt_core *core, uint64_t step)
{
	struct ckpt_command *command =
		ckpt_command_new(core, sizeof(struct ckpt_delete_command), NULL);

	if (command)
		remover_of(command)->step = step;
	return command;
}

/* Looks up the step, and reports why it cannot be deleted. */
static int choose(struct ckpt_delete_command *remover)
{
	struct ckpt_core *core = remover->command.core;
	struct ckpt_error *err = &remover->command.error;
	unsigned long long step = remover->step;

	if (core->config.read_only)
		return ckpt_fail(
			err, -EROFS, "the store %s was opened read only", core->parts.label);
	/* The others may go on from it: who owns the store tells them. */
	if (core->config.delta && !ckpt_core_owns_store(core))
		return ckpt_fail(err, -EINVAL,
			"steps are stored as differences: remove step %llu of %s on rank 0", step,
			core->parts.label);
	int r = ckpt_lineage_mark(&core->lineage->scan, err);
	if (r < 0)
		return r;
	const struct ckpt_scan_step *found =
		ckpt_lineage_choose(&core->lineage->scan, remover->step, NULL);
	if (!found)
		return ckpt_fail(err, CKPT_ENOSTEP, "the lineage of %s has no step %llu",
			core->parts.label, step);
	if (core->hooks->needs(core, found->generation, found->step))
		return ckpt_fail(err, -EBUSY,
			"step %llu of %s is needed by what is being saved: remove it after that",
			(unsigned long long)found->step, core->parts.label);
	remover->deletion.generation = found->generation;
	remover->deletion.step = found->step;
	return 0;
}

int ckpt_delete_command_body(struct ckpt_task *task)
{
	struct ckpt_delete_command *remover = remover_of(ckpt_command_of(task));
	struct ckpt_deletion *deletion = &remover->deletion;
	struct ckpt_core *core = remover->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	r = choose(remover);
	if (r < 0)
		return r;
	deletion->core = core;
	deletion->waiter = task;
	deletion->err = &remover->command.error;
	ckpt_deletion_start(deletion);
	CKPT_AWAIT(task, deletion->finished);
	if (deletion->result < 0)
		return ckpt_fail(deletion->err, deletion->result,
			"cannot delete step %llu of %s: %s", (unsigned long long)deletion->step,
			core->parts.label, ckpt_code_text(deletion->result));
	ckpt_scan_drop(&core->lineage->scan, deletion->generation, deletion->step);
	CKPT_TASK_END(task);
}
