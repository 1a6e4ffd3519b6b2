/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a store. */
#include "engine/lineage/open.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/open_sync.h"
#include "format/sealed.h"

static struct ckpt_opener *opener_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_opener, work);
}

static int encode_marker(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	struct ckpt_marker marker = {
		.shared = !core->config.node_store, .wall_ms = ckpt_env_wall_ms(core->parts.env)};

	ckpt_open_draw_run(core, marker.run_id);
	return ckpt_marker_encode(&marker, &o->buf);
}

/* What the store holds. A claim newer than the one that was to be locked belongs to somebody who lives. */
static int scan_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	uint64_t newest;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_scanner_start(&o->scanner, core->store, &core->sched, task, NULL, &o->command.error);
	CKPT_AWAIT(task, o->scanner.task.finished);
	if (o->scanner.task.result < 0)
		return o->scanner.task.result;
	r = ckpt_open_check_scope(core, &o->scanner.marker, &o->command.error);
	if (r < 0)
		return r;
	newest = ckpt_scan_newest_claim(&o->scanner.scan);
	if (!core->config.read_only && core->config.rank == 0 && (o->held || newest > o->newest))
		return ckpt_open_in_use(o, ckpt_max_u64(newest, o->newest));
	ckpt_open_take_scan(o);
	o->then = NULL;
	if (core->exchange && !core->config.read_only)
		return ckpt_task_continue(task, ckpt_open_hello_body);
	CKPT_TASK_END(task);
}

static int gens_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;

	CKPT_TASK_BEGIN(task);
	ckpt_store_mkdir(core->store, &o->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, o->op.done);
	if (o->op.result < 0)
		return o->op.result;
	o->then = scan_body;
	/* Rank 0 holds the store for all of a job. */
	return ckpt_task_continue(task, core->config.rank == 0 ? ckpt_open_hold_body : scan_body);
	CKPT_TASK_END(task);
}

/* A store without a marker is made, unless it is one that has lost it. */
static int marker_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_store_op *op = &o->op;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0 && op->result != -ENOENT)
		return op->result;
	o->newest = ckpt_newest_claim(&op->listing);
	ckpt_free(op->listing.names);
	op->listing = (struct ckpt_listing){0};
	/* Another process may have made all of it since this one looked for the marker. */
	ckpt_store_get(core->store, op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	ckpt_free(op->data);
	op->data = NULL;
	if (op->result == 0)
		return ckpt_task_continue(task, gens_body);
	if (op->result != -ENOENT)
		return op->result;
	if (o->newest > 0)
		return ckpt_open_lost_marker(o, o->newest);
	if (encode_marker(o) < 0)
		return ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
	ckpt_store_publish(core->store, op, CKPT_NAME_MARKER, o->buf.data, o->buf.len, NULL);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0 && op->result != -EEXIST)
		return op->result;
	return ckpt_task_continue(task, gens_body);
	CKPT_TASK_END(task);
}

static int work_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_store_op *op = &o->op;

	CKPT_TASK_BEGIN(task);
	if (core->config.read_only)
		return ckpt_task_continue(task, scan_body);
	if (core->config.node_store && core->exchange)
		return ckpt_open_sync_start(o);
	ckpt_store_get(core->store, op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	ckpt_free(op->data);
	op->data = NULL;
	if (op->result < 0 && op->result != -ENOENT)
		return op->result;
	return ckpt_task_continue(task, op->result == 0 ? gens_body : marker_body);
	CKPT_TASK_END(task);
}

static void work_done(struct ckpt_task *task)
{
	ckpt_task_wake(&opener_of(task)->command.task);
}

int ckpt_open_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_opener, command);

	CKPT_TASK_BEGIN(task);
	ckpt_store_op_init(&o->op, &o->work, &o->command.error);
	o->op.quiet = true;
	ckpt_task_start(&o->work, &o->command.core->sched, work_body, work_done);
	CKPT_AWAIT(task, o->work.finished);
	if (o->nodes) {
		ckpt_open_sync_end(o);
		CKPT_AWAIT(task, ckpt_open_sync_over(o));
	}
	if (o->work.result == 0)
		o->command.core->hooks->opened(o->command.core);
	return o->work.result;
	CKPT_TASK_END(task);
}

void ckpt_opener_clear(struct ckpt_command *command)
{
	struct ckpt_opener *opener = CKPT_CONTAINER(command, struct ckpt_opener, command);

	ckpt_open_sync_free(opener->nodes);
	ckpt_scanner_clear(&opener->scanner);
	ckpt_buf_free(&opener->buf);
}
