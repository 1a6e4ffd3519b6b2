/* SPDX-License-Identifier: Apache-2.0 */
/* The small commands. */
#include "engine/runtime/commands.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/remote_gc.h"
#include "engine/copy/upload_queue.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "engine/ranks/exchange_call.h"
#include "engine/restore/restore.h"
#include "engine/save/save_state.h"

int ckpt_lister_body(struct ckpt_task *task)
{
	struct ckpt_lister *l = CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_lister, command);
	struct ckpt_core *core = l->command.core;

	CKPT_TASK_BEGIN(task);
	ckpt_scanner_start(&l->scanner, core->store, &core->sched, task, NULL, &l->command.error);
	CKPT_AWAIT(task, l->scanner.task.finished);
	if (l->scanner.task.result < 0)
		return l->scanner.task.result;
	/* A listing is worth having even when the lineage cannot be known. */
	l->mark_result = ckpt_lineage_mark(&l->scanner.scan, &l->command.error);
	/* A bucket goes nowhere else. */
	if (!l->remote || core->parts.bucket)
		return 0;
	ckpt_record_reader_start(&l->reader, core->store, &core->sched, task);
	CKPT_AWAIT(task, l->reader.task.finished);
	if (l->reader.task.result < 0)
		l->reader.code = l->reader.task.result;
	CKPT_TASK_END(task);
}

void ckpt_lister_clear(struct ckpt_command *command)
{
	struct ckpt_lister *l = CKPT_CONTAINER(command, struct ckpt_lister, command);

	ckpt_scanner_clear(&l->scanner);
	ckpt_record_reader_clear(&l->reader);
}

int ckpt_adopter_body(struct ckpt_task *task)
{
	struct ckpt_adopter *a =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_adopter, command);
	struct ckpt_core *core = a->command.core;

	if (core->config.read_only)
		return ckpt_fail(&a->command.error, -EROFS, "the store %s was opened read only",
			core->parts.label);
	if (core->save)
		return ckpt_fail(&a->command.error, -EBUSY,
			"a save is under way: wait for it before resuming from another step");
	core->lineage->adopted = true;
	core->lineage->parent_generation = a->generation;
	core->lineage->parent_step = a->step;
	core->lineage->generation = 0;
	core->stats.generation = 0;
	return 0;
}

int ckpt_pinner_body(struct ckpt_task *task)
{
	struct ckpt_pinner *p = CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_pinner, command);
	struct ckpt_core *core = p->command.core;
	size_t at = 0;

	while (at < core->pin_count && core->pins[at] != p->step)
		at++;
	if (!p->pin) {
		if (at < core->pin_count)
			core->pins[at] = core->pins[--core->pin_count];
		return 0;
	}
	if (at < core->pin_count)
		return 0;
	uint64_t *pins = ckpt_realloc_array(core->pins, core->pin_count + 1, sizeof(*pins));
	if (!pins)
		return ckpt_fail(&p->command.error, -ENOMEM, "out of memory");
	core->pins = pins;
	pins[core->pin_count++] = p->step;
	return 0;
}

int ckpt_reporter_body(struct ckpt_task *task)
{
	struct ckpt_reporter *r =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_reporter, command);
	struct ckpt_core *core = r->command.core;
	const struct ckpt_io *io = core->parts.io;
	struct ckpt_pool *pool = core->parts.pool;

	r->stats = core->stats;
	r->stats.io_direct = io->direct;
	r->stats.io_registered = io->registered;
	r->stats.fsyncs = core->store->fsyncs;
	r->stats.bytes_written = core->store->bytes_written;
	r->stats.bytes_read = core->store->bytes_read;
	r->stats.pool_bytes = ckpt_pool_bytes(pool);
	r->stats.pool_touched = ckpt_pool_touched(pool);
	r->stats.pool_huge = ckpt_pool_huge(pool);
	ckpt_upload_queue_report(core, &r->stats);
	ckpt_remote_gc_report(core, &r->stats);
	r->stats.unchecked = atomic_load(&core->unchecked);
	r->stats.threads = io->threads + ckpt_pool_threads(pool) + 1;
	return 0;
}

int ckpt_last_upload_body(struct ckpt_task *task)
{
	struct ckpt_last_upload *l =
		CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_last_upload, command);

	struct ckpt_upload_queue *upload_queue = l->command.core->upload_queue;

	l->entry = ckpt_upload_queue_last(l->command.core);
	if (l->entry || upload_queue->lost.code == 0)
		return 0;
	l->command.error = upload_queue->lost;
	return upload_queue->lost.code;
}

void ckpt_last_upload_clear(struct ckpt_command *command)
{
	ckpt_upload_entry_unref(CKPT_CONTAINER(command, struct ckpt_last_upload, command)->entry);
}

int ckpt_closer_body(struct ckpt_task *task)
{
	struct ckpt_closer *c = CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_closer, command);
	struct ckpt_core *core = c->command.core;

	CKPT_TASK_BEGIN(task);
	core->closing = true;
	core->closer = task;
	ckpt_gc_stop(core);
	ckpt_upload_queue_stop(core);
	ckpt_restore_stop_all(core);
	ckpt_exchange_call_stop_all(core);
	/* A manifest on its way is let through. */
	if (core->save && !core->save->publishing && !core->save->committed)
		ckpt_save_stop(
			core->save, ckpt_fail(&core->save->work, -ECANCELED,
					    "the engine was closed before step %llu was durable",
					    (unsigned long long)core->save->step));
	(void)ckpt_core_stop_clients(core, NULL);
	/* The one command left is this one. */
	CKPT_AWAIT(task, !core->save && !core->gc && !core->restores &&
				 ckpt_upload_queue_ended(core) && core->commands == 1);
	core->closer = NULL;
	CKPT_AWAIT(task, ckpt_core_stop_clients(core, task));
	if (core->lineage->holder.fd >= 0) {
		ckpt_store_op_init(&c->op, task, NULL);
		ckpt_store_shut(core->store, &c->op, &core->lineage->holder);
		CKPT_AWAIT(task, c->op.done);
	}
	CKPT_TASK_END(task);
}
