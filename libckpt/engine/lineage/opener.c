/* SPDX-License-Identifier: Apache-2.0 */
/* What an opening of one store and one of the stores of all nodes have in common. */
#include "engine/lineage/opener.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "exchange/exchange_dir.h"
#include "exchange/restore_messages.h"
#include "format/sealed.h"

#define SECOND_NS       UINT64_C(1000000000)
#define PATIENCE_NS     (120 * SECOND_NS)
#define PATIENCE_MIN_NS (10 * SECOND_NS)

static struct ckpt_opener *opener_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_opener, work);
}

void ckpt_open_draw_run(struct ckpt_core *core, char ret_run_id[CKPT_RUN_ID_CHARS])
{
	struct ckpt_env *env = core->parts.env;

	(void)snprintf(ret_run_id, CKPT_RUN_ID_CHARS, "%016llx%016llx",
		(unsigned long long)ckpt_env_random(env), (unsigned long long)ckpt_env_random(env));
}

int ckpt_open_check_scope(
	struct ckpt_core *core, const struct ckpt_marker *marker, struct ckpt_error *err)
{
	if (marker->shared != core->config.node_store || core->config.read_only ||
		core->config.world <= 1)
		return 0;
	return ckpt_fail(err, -EINVAL,
		marker->shared ? "the store %s is one for all nodes, and was opened as that of one "
				 "node: give all ranks this one without CKPT_ENGINE_NODE_STORE (in "
				 "Python: node_store), or each node a new directory"
			       : "the store %s is that of one node, and was opened as one for all "
				 "nodes: give CKPT_ENGINE_NODE_STORE (in Python: node_store), or "
				 "use another directory",
		core->parts.label);
}

/* The greatest number of a claim in a listing; 0: none. */
uint64_t ckpt_newest_claim(const struct ckpt_listing *listing)
{
	uint64_t newest = 0;

	for (size_t at = 0; at < listing->bytes; at += strlen(listing->names + at) + 1) {
		uint64_t generation;
		if (ckpt_parse_claim(listing->names + at, &generation))
			newest = ckpt_max_u64(newest, generation);
	}
	return newest;
}

uint64_t ckpt_take_newest_claim(struct ckpt_store_op *op)
{
	struct ckpt_listing listing = ckpt_store_take_listing(op);
	uint64_t newest = op->result < 0 ? 0 : ckpt_newest_claim(&listing);

	ckpt_free(listing.names);
	return newest;
}

int ckpt_open_in_use(struct ckpt_opener *o, uint64_t generation)
{
	const struct ckpt_scan_gen *gen = ckpt_scan_gen(&o->scanner.scan, generation);
	const char *node = gen && !gen->broken ? gen->claim.node : "unknown";

	ckpt_name_claim(o->path, generation);
	return ckpt_fail_at(&o->command.error, CKPT_EINUSE,
		&(struct ckpt_where){.tier = "local", .file = o->path},
		"the store %s is held by a live process (generation %llu, claimed on node %s): "
		"stop that job, or give this one a store of its own",
		o->command.core->parts.label, (unsigned long long)generation, node);
}

int ckpt_open_lost_marker(struct ckpt_opener *o, uint64_t generation)
{
	return ckpt_fail_at(&o->command.error, CKPT_EINCOMPLETE,
		&(struct ckpt_where){.tier = "local", .file = CKPT_NAME_MARKER},
		"%s holds generations (the newest is %llu), but its %s is missing, and another one "
		"would make strangers of them: put it back from a copy, or use another directory",
		o->command.core->parts.label, (unsigned long long)generation, CKPT_NAME_MARKER);
}

uint64_t ckpt_open_patience_ns(const struct ckpt_core *core)
{
	uint64_t timeout_ns = (uint64_t)core->config.save_timeout_ms * 1000000;

	return ckpt_max_u64(PATIENCE_MIN_NS, ckpt_min_u64(timeout_ns, PATIENCE_NS));
}

uint64_t ckpt_open_deadline_ns(const struct ckpt_core *core, unsigned eighths)
{
	return ckpt_env_now(core->parts.env) + ckpt_open_patience_ns(core) / 8 * eighths;
}

static int prepare_hello(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	struct ckpt_exchange_call *call = &o->call;

	ckpt_buf_free(&o->buf);
	call->core = core;
	call->stop = &o->never;
	call->deadline_ns = ckpt_open_deadline_ns(core, 6);
	call->err = &o->command.error;
	call->waiter = &o->work;
	call->count = 1;
	int r = ckpt_hello_encode(ckpt_env_random(core->parts.env), &o->buf);
	ckpt_key_hello(call->items[0].key, core->config.rank);
	call->items[0].data = o->buf.data;
	call->items[0].length = o->buf.len;
	return r < 0 ? ckpt_fail(&o->command.error, r, "out of memory") : 0;
}

/*
 * The first word of this rank in its session. Where there is one already, what else is there is of another
 * start of the job, and would be taken for this one's.
 */
int ckpt_open_hello_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	if (core->config.rank == 0 && !o->nodes) {
		/* What was left behind, to be swept when this one has claimed: what comes later lives. */
		ckpt_store_list(core->store, &o->op, CKPT_NAME_EXCHANGE);
		CKPT_AWAIT(task, o->op.done);
		core->lineage->sessions = o->op.listing;
		o->op.listing = (struct ckpt_listing){0};
	}
	ckpt_error_clear(&o->command.error);
	r = prepare_hello(o);
	if (r < 0)
		return r;
	ckpt_exchange_call_put(&o->call);
	CKPT_AWAIT(task, o->call.task.finished);
	o->used = o->call.task.result == -EEXIST;
	if (o->used)
		return ckpt_fail(&o->command.error, -EINVAL,
			"the session %s of %s was used before, by an earlier start of the job or "
			"by another process as its rank %u: give every start a session of its own",
			core->config.session, core->parts.label, core->config.rank);
	if (o->call.task.result < 0)
		return o->call.task.result;
	return o->then ? ckpt_task_continue(task, o->then) : 0;
	CKPT_TASK_END(task);
}

/*
 * Takes the lock that the newest claim's holder keeps while it lives. Before the scan: what a holder
 * that is about to end still commits would be missing in one that was made before.
 */
int ckpt_open_hold_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_store_op *op = &o->op;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0)
		return ckpt_fail(&o->command.error, op->result, "cannot list %s of %s: %s",
			CKPT_NAME_GENS, core->parts.label, ckpt_code_text(op->result));
	o->newest = ckpt_newest_claim(&op->listing);
	ckpt_free(op->listing.names);
	op->listing = (struct ckpt_listing){0};
	if (o->newest > 0) {
		ckpt_name_claim(o->path, o->newest);
		ckpt_store_lock(core->store, op, o->path, false, &core->lineage->holder);
		CKPT_AWAIT(task, op->done);
		/* Said after the scan, which knows whose it is. */
		o->held = op->result == -EAGAIN;
		if (op->result < 0 && !o->held && op->result != -ENOENT)
			return op->result;
	}
	return ckpt_task_continue(task, o->then);
	CKPT_TASK_END(task);
}

void ckpt_open_take_scan(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;

	core->lineage->marker = o->scanner.marker;
	/* A claim that does not verify matters when a step is to be chosen, and is reported then. */
	(void)ckpt_lineage_mark(&o->scanner.scan, NULL);
	core->lineage->scan = o->scanner.scan;
	o->scanner.scan = (struct ckpt_scan){0};
}
