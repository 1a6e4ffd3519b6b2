/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one index, and maybe the table of its shard, as a command. */
#include "engine/restore/index_reader.h"

#include "base/error.h"
#include "engine/restore/restore_state.h"

static struct ckpt_index_reader *index_reader_of(struct ckpt_command *command)
{
	return CKPT_CONTAINER(command, struct ckpt_index_reader, command);
}

void ckpt_index_reader_clear(struct ckpt_command *command)
{
	struct ckpt_index_reader *index_reader = index_reader_of(command);

	ckpt_index_free(index_reader->index);
	ckpt_encoded_free(index_reader->encoded);
	ckpt_restore_unref(index_reader->restore);
}

static void start(struct ckpt_index_reader *x, struct ckpt_task *task)
{
	const struct ckpt_select *pick = &x->restore->pick;

	x->lister = (struct ckpt_rank_lister){.store = x->command.core->store,
		.sched = &x->command.core->sched,
		.generation = pick->chosen.generation,
		.step = pick->chosen.step,
		.stop = &x->stop};
	x->shard = (struct ckpt_shard){.core = x->command.core,
		.generation = pick->chosen.generation,
		.step = pick->chosen.step,
		.rank = &pick->manifest.ranks[x->rank],
		.lister = &x->lister,
		.stop = &x->stop,
		.err = &x->command.error,
		.waiter = task};
	ckpt_shard_init(&x->shard);
	ckpt_shard_start_index(&x->shard);
}

static void take_table(struct ckpt_index_reader *x)
{
	struct ckpt_shard *s = &x->shard;

	x->file_bytes = s->encoded ? s->file_bytes : s->rank->shard_bytes;
	x->encoded = s->encoded;
	s->encoded = NULL;
}

int ckpt_index_reader_body(struct ckpt_task *task)
{
	struct ckpt_index_reader *x = index_reader_of(ckpt_command_of(task));

	CKPT_TASK_BEGIN(task);
	if (x->command.core->closing)
		return ckpt_fail(&x->command.error, CKPT_ECLOSED, "the engine is closing");
	start(x, task);
	CKPT_AWAIT(task, x->shard.task.finished);
	x->code = x->shard.task.result;
	if (x->code == 0 && x->with_table) {
		ckpt_shard_start_open(&x->shard);
		CKPT_AWAIT(task, x->shard.task.finished);
		x->code = x->shard.task.result;
		if (x->code == 0)
			take_table(x);
		ckpt_shard_start_shut(&x->shard);
		CKPT_AWAIT(task, x->shard.task.finished);
	}
	x->index = x->code == 0 ? x->shard.index : NULL;
	if (x->code == 0)
		x->shard.index = NULL;
	ckpt_shard_clear(&x->shard);
	ckpt_rank_lister_clear(&x->lister);
	return x->code;
	CKPT_TASK_END(task);
}
