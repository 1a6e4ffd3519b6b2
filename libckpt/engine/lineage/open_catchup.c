/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing what a node's store lacks. Claims first, and the oldest first: no commit without its claim. */
#include "engine/lineage/open_catchup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/rank_files.h"

#define UNSEEN_PAUSE_NS UINT64_C(20000000)

static ckpt_task_fn fetch_body;
static ckpt_task_fn ready_body;
static ckpt_task_fn end_body;

static struct ckpt_opener *opener_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_opener, work);
}

static size_t item_count(const struct ckpt_open_sync *n)
{
	return n->all.claim_count + n->all.step_count;
}

static bool is_claim(const struct ckpt_open_sync *n, size_t at)
{
	return at < n->all.claim_count;
}

static const struct ckpt_node_item *item_at(const struct ckpt_open_sync *n, size_t at)
{
	if (is_claim(n, at))
		return &n->all.claims[n->all.claim_count - 1 - at];
	return &n->all.steps[item_count(n) - 1 - at];
}

/* Newer than all that this store has. */
static bool is_new(const struct ckpt_open_sync *n, size_t at)
{
	const struct ckpt_node_item *item = item_at(n, at);

	if (is_claim(n, at))
		return item->generation > n->own.newest;
	return n->own.step_count == 0 || ckpt_node_item_order(item, &n->own.steps[0]) > 0;
}

/* What is older and has left nothing here was removed, or never was. */
static bool is_lacking(const struct ckpt_open_sync *n, size_t at)
{
	return is_new(n, at) || (!is_claim(n, at) && ckpt_node_item_among(item_at(n, at),
							     n->own.open, n->own.open_count));
}

static void name_item(const struct ckpt_open_sync *n, size_t at, char *out)
{
	const struct ckpt_node_item *item = item_at(n, at);

	if (is_claim(n, at))
		ckpt_name_claim(out, item->generation);
	else
		ckpt_name_manifest(out, item->generation, item->step);
}

static void name_key(const struct ckpt_open_sync *n, size_t at, char *out)
{
	const struct ckpt_node_item *item = item_at(n, at);

	if (is_claim(n, at))
		ckpt_key_bring_claim(out, item->generation);
	else
		ckpt_key_bring_step(out, item->generation, item->step);
}

static void prepare_blob(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_blob *p = &n->blob;

	p->core = o->command.core;
	p->stop = &o->never;
	p->deadline_ns = n->deadline_ns;
	p->err = &o->command.error;
	p->waiter = &o->work;
	p->bytes = &n->bytes;
	name_key(n, n->at, p->key);
}

/* What others wait for from this store and will not get: why, in its place. */
static void refuse_items(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_exchange_call *call = &o->call;

	for (size_t at = n->sent ? item_count(n) : n->at; at < item_count(n); at++) {
		if (item_at(n, at)->from != n->own.rank || call->count == CKPT_EXCHANGE_BATCH)
			continue;
		struct ckpt_exchange_item *word = &call->items[call->count++];
		*word = call->items[0];
		name_key(n, at, word->key);
	}
}

static void prepare_call(struct ckpt_opener *o, struct ckpt_task *waiter)
{
	struct ckpt_exchange_call *call = &o->call;

	memset(call->items, 0, sizeof(call->items[0]));
	call->core = o->command.core;
	call->stop = &o->never;
	call->deadline_ns = o->nodes->deadline_ns;
	call->err = &o->command.error;
	call->waiter = waiter;
	call->count = 1;
}

bool ckpt_open_catchup_tell(struct ckpt_opener *o, int code, struct ckpt_task *waiter)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_exchange_item *item = &o->call.items[0];
	struct ckpt_verdict verdict = {.code = code};

	(void)snprintf(verdict.reason, sizeof(verdict.reason), "%.250s",
		code == 0 ? "" : o->command.error.message);
	ckpt_buf_free(&n->words);
	if (ckpt_verdict_encode(&verdict, &n->words) < 0)
		return false;
	prepare_call(o, waiter);
	ckpt_key_node_ready(item->key, n->own.rank);
	item->data = n->words.data;
	item->length = n->words.len;
	if (code < 0)
		refuse_items(o);
	ckpt_exchange_call_put(&o->call);
	return true;
}

/* The other ranks of this node go on when all is there. */
static int ready_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);

	CKPT_TASK_BEGIN(task);
	if (item_count(o->nodes) > 0) {
		if (!ckpt_open_catchup_tell(o, 0, task))
			return ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
		CKPT_AWAIT(task, o->call.task.finished);
		if (o->call.task.result < 0)
			return o->call.task.result;
	}
	return ckpt_task_continue(task, end_body);
	CKPT_TASK_END(task);
}

static int take_ready(struct ckpt_opener *o)
{
	const struct ckpt_exchange_item *item = &o->call.items[0];
	struct ckpt_verdict verdict;

	int r = ckpt_verdict_decode(
		item->data, item->length, item->key, &o->command.error, &verdict);
	ckpt_exchange_items_clear(o->call.items, o->call.count);
	if (r < 0 || verdict.code == 0)
		return r;
	return ckpt_fail(&o->command.error, verdict.code,
		"rank %u could not complete the store of this node: %s",
		o->command.core->config.node_leader, verdict.reason);
}

/* A rank that does not keep its node's store. */
static int wait_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (item_count(o->nodes) > 0) {
		prepare_call(o, task);
		ckpt_key_node_ready(o->call.items[0].key, o->command.core->config.node_leader);
		ckpt_exchange_call_get(&o->call);
		CKPT_AWAIT(task, o->call.task.finished);
		r = o->call.task.result < 0 ? o->call.task.result : take_ready(o);
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, end_body);
	CKPT_TASK_END(task);
}

/* As it is in this store. */
static void take_bytes(struct ckpt_opener *o)
{
	struct ckpt_buf *bytes = &o->nodes->bytes;

	ckpt_buf_free(bytes);
	*bytes = (struct ckpt_buf){.data = o->op.data, .len = o->op.length, .cap = o->op.length};
	o->op.data = NULL;
}

static int send_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;

	CKPT_TASK_BEGIN(task);
	for (n->at = 0; n->at < item_count(n); n->at++) {
		if (item_at(n, n->at)->from != n->own.rank)
			continue;
		name_item(n, n->at, o->path);
		ckpt_store_get(o->command.core->store, &o->op, o->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, o->op.done);
		if (o->op.result < 0)
			return ckpt_fail(&o->command.error, o->op.result,
				"cannot read %s of %s, which other nodes lack: %s", o->path,
				o->command.core->parts.label, ckpt_code_text(o->op.result));
		take_bytes(o);
		prepare_blob(o);
		ckpt_blob_send(&n->blob);
		CKPT_AWAIT(task, n->blob.task.finished);
		if (n->blob.task.result < 0)
			return n->blob.task.result;
	}
	n->sent = true;
	return ckpt_task_continue(task, fetch_body);
	CKPT_TASK_END(task);
}

/* It is what it was asked for as, and of this run. */
static int check_claim(const struct ckpt_open_sync *n, const struct ckpt_node_item *item,
	const char *path, struct ckpt_error *err)
{
	struct ckpt_claim claim;

	int r = ckpt_claim_decode(n->bytes.data, n->bytes.len, path, err, &claim);
	if (r < 0)
		return r;
	return strcmp(claim.run_id, n->all.run_id) == 0 && claim.generation == item->generation
		       ? 0
		       : CKPT_EFORMAT;
}

static int check_commit(const struct ckpt_open_sync *n, const struct ckpt_node_item *item,
	const char *path, struct ckpt_error *err)
{
	struct ckpt_manifest manifest = {0};

	int r = ckpt_manifest_decode(n->bytes.data, n->bytes.len, path, err, &manifest);
	if (r < 0)
		return r;
	bool same = strcmp(manifest.run_id, n->all.run_id) == 0 &&
		    manifest.kind == CKPT_MANIFEST_COMMIT &&
		    manifest.generation == item->generation && manifest.step == item->step;
	ckpt_manifest_clear(&manifest);
	return same ? 0 : CKPT_EFORMAT;
}

static int check_bytes(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	const struct ckpt_node_item *item = item_at(n, n->at);
	struct ckpt_error *err = &o->command.error;

	int r = is_claim(n, n->at) ? check_claim(n, item, o->path, err)
				   : check_commit(n, item, o->path, err);
	if (r < 0 && err->code == 0)
		return ckpt_fail(err, r,
			"what rank %u has sent of its node's store as %s is something else: verify "
			"that store",
			item->from, o->path);
	return r;
}

/* Whether all that this node's ranks wrote of a step is in its directory: not if it was being removed. */
static int look_at_files(struct ckpt_opener *o, bool *ret_whole)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_manifest m = {0};
	struct ckpt_rank_files files = {0};
	uint32_t own = 0;
	int r = ckpt_manifest_decode(n->bytes.data, n->bytes.len, o->path, &o->command.error, &m);
	if (r == 0 && ckpt_rank_files_take(&files, &o->op.listing) < 0)
		r = ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
	bool whole = r == 0;

	for (uint32_t i = 0; whole && i < m.world; i++) {
		const struct ckpt_manifest_rank *rank = &m.ranks[i];
		if (strcmp(rank->node, o->command.core->config.node) != 0)
			continue;
		own++;
		whole = ckpt_rank_files_has_both(&files, i);
	}
	ckpt_rank_files_clear(&files);
	ckpt_manifest_clear(&m);
	ckpt_free(o->op.listing.names);
	o->op.listing = (struct ckpt_listing){0};
	*ret_whole = whole && own > 0;
	return r;
}

static void say_imported(const struct ckpt_opener *o)
{
	ckpt_log(o->command.core->parts.log, CKPT_LOG_INFO,
		"%s of %s was missing, and was brought from the node of rank %u", o->path,
		o->command.core->parts.label, item_at(o->nodes, o->nodes->at)->from);
}

/* There is one of that name already: the same, or an abort, or damaged. Two that are good are two histories. */
static int take_other(struct ckpt_opener *o)
{
	const struct ckpt_open_sync *n = o->nodes;
	struct ckpt_manifest manifest = {0};
	struct ckpt_claim claim;
	int r = CKPT_EINTEGRITY;

	if (o->op.result < 0)
		return o->op.result;
	bool same = o->op.length == n->bytes.len &&
		    memcmp(o->op.data, n->bytes.data, n->bytes.len) == 0;
	if (!same && is_claim(n, n->at)) {
		r = ckpt_claim_decode(o->op.data, o->op.length, o->path, NULL, &claim);
	} else if (!same) {
		r = ckpt_manifest_decode(o->op.data, o->op.length, o->path, NULL, &manifest);
		if (r == 0 && manifest.kind != CKPT_MANIFEST_COMMIT)
			r = CKPT_EABORTED;
		ckpt_manifest_clear(&manifest);
	}
	ckpt_free(o->op.data);
	o->op.data = NULL;
	if (r == -ENOMEM)
		return ckpt_fail(&o->command.error, r, "out of memory");
	if (r == 0)
		return ckpt_fail(&o->command.error, CKPT_EMISMATCH,
			"%s of %s is another one than that of rank %u: starts of the job on some "
			"of its "
			"nodes did not know of each other; go on with the nodes of one of them, "
			"and give the "
			"others new directories",
			o->path, o->command.core->parts.label, item_at(n, n->at)->from);
	if (!same)
		ckpt_log(o->command.core->parts.log, CKPT_LOG_WARN,
			"%s of %s is damaged or an abort, and that of rank %u is not put in its "
			"place",
			o->path, o->command.core->parts.label, item_at(n, n->at)->from);
	return 0;
}

static int fetch_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_store *store = o->command.core->store;
	bool whole;
	int r;

	CKPT_TASK_BEGIN(task);
	for (n->at = 0; n->at < item_count(n); n->at++) {
		if (!is_lacking(n, n->at))
			continue;
		ckpt_buf_free(&n->bytes);
		prepare_blob(o);
		ckpt_blob_fetch(&n->blob);
		CKPT_AWAIT(task, n->blob.task.finished);
		if (n->blob.task.result < 0)
			return n->blob.task.result;
		name_item(n, n->at, o->path);
		r = check_bytes(o);
		if (r < 0)
			return r;
		if (!is_claim(n, n->at)) {
			ckpt_name_generation(o->path, item_at(n, n->at)->generation);
			ckpt_store_mkdir(store, &o->op, o->path);
			CKPT_AWAIT(task, o->op.done);
			if (o->op.result < 0)
				return o->op.result;
			ckpt_name_step(
				o->path, item_at(n, n->at)->generation, item_at(n, n->at)->step);
			ckpt_store_mkdir(store, &o->op, o->path);
			CKPT_AWAIT(task, o->op.done);
			if (o->op.result < 0)
				return o->op.result;
			ckpt_store_list(store, &o->op, o->path);
			CKPT_AWAIT(task, o->op.done);
			r = o->op.result < 0 ? o->op.result : look_at_files(o, &whole);
			if (r < 0)
				return r;
			if (!whole && !is_new(n, n->at))
				continue;
			name_item(n, n->at, o->path);
		}
		ckpt_store_publish(store, &o->op, o->path, n->bytes.data, n->bytes.len, NULL);
		CKPT_AWAIT(task, o->op.done);
		if (o->op.result < 0 && o->op.result != -EEXIST)
			return o->op.result;
		if (o->op.result == 0) {
			say_imported(o);
			continue;
		}
		ckpt_store_get(store, &o->op, o->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, o->op.done);
		r = take_other(o);
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, ready_body);
	CKPT_TASK_END(task);
}

int ckpt_open_encode_run(struct ckpt_opener *o)
{
	struct ckpt_marker marker = {.wall_ms = ckpt_env_wall_ms(o->command.core->parts.env)};

	memcpy(marker.run_id, o->nodes->all.run_id, sizeof(marker.run_id));
	ckpt_buf_free(&o->buf);
	int r = ckpt_marker_encode(&marker, &o->buf);
	return r < 0 ? ckpt_fail(&o->command.error, r, "out of memory") : 0;
}

int ckpt_open_catchup_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_store *store = o->command.core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	o->command.core->lineage->newest_elsewhere = n->all.newest;
	if (!n->own.keeps)
		return ckpt_task_continue(task, wait_body);
	if (strcmp(n->own.run_id, CKPT_NODE_NO_RUN) == 0) {
		r = ckpt_open_encode_run(o);
		if (r < 0)
			return r;
		ckpt_store_publish(store, &o->op, CKPT_NAME_MARKER, o->buf.data, o->buf.len, NULL);
		CKPT_AWAIT(task, o->op.done);
		if (o->op.result < 0 && o->op.result != -EEXIST)
			return o->op.result;
		ckpt_store_mkdir(store, &o->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, o->op.done);
		if (o->op.result < 0)
			return o->op.result;
	}
	return ckpt_task_continue(task, send_body);
	CKPT_TASK_END(task);
}

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_open_sync, timer)->opener->work);
}

static int check_run(struct ckpt_opener *o)
{
	const struct ckpt_node_record *all = &o->nodes->all;

	if (strcmp(o->scanner.marker.run_id, all->run_id) == 0 && !o->scanner.marker.shared)
		return 0;
	return ckpt_fail(&o->command.error, CKPT_EMISMATCH,
		"the store %s is not that of run %s on this node, which the job's other nodes "
		"have: give "
		"all ranks of a node one directory",
		o->command.core->parts.label, all->run_id);
}

/*
 * And rank 0 learns whether another store has a step of the lineage: where its own has none, there is
 * something to go on from all the same.
 */
static void take_scan(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	const struct ckpt_open_sync *n = o->nodes;

	ckpt_open_take_scan(o);
	core->lineage->elsewhere = false;
	for (size_t i = 0; i < n->found.step_count; i++)
		if (ckpt_lineage_holds(&core->lineage->scan, n->found.steps[i].generation,
			    n->found.steps[i].step))
			core->lineage->elsewhere = true;
}

/* A claim that was brought is the newest one now: whoever comes looks at its lock. */
static int relock_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_open_sync *n = o->nodes;

	CKPT_TASK_BEGIN(task);
	ckpt_name_claim(o->path, ckpt_scan_newest_claim(&o->scanner.scan));
	ckpt_store_lock(core->store, &o->op, o->path, false, &n->lock);
	CKPT_AWAIT(task, o->op.done);
	if (o->op.result == -EAGAIN)
		return ckpt_open_in_use(o, ckpt_scan_newest_claim(&o->scanner.scan));
	if (o->op.result < 0)
		return o->op.result;
	if (core->lineage->holder.fd >= 0) {
		ckpt_store_shut(core->store, &o->op, &core->lineage->holder);
		CKPT_AWAIT(task, o->op.done);
	}
	core->lineage->holder = n->lock;
	take_scan(o);
	CKPT_TASK_END(task);
}

static int end_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_open_sync *n = o->nodes;
	int r;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		ckpt_error_clear(&o->command.error);
		ckpt_scanner_start(
			&o->scanner, core->store, &core->sched, task, NULL, &o->command.error);
		CKPT_AWAIT(task, o->scanner.task.finished);
		/* This node's leader is making it. */
		if (o->scanner.task.result != CKPT_ENOSTORE || core->closing ||
			ckpt_env_now(core->parts.env) >= n->deadline_ns)
			break;
		n->timer.fire = timer_fired;
		ckpt_core_timer_set(
			core, &n->timer, ckpt_env_now(core->parts.env) + UNSEEN_PAUSE_NS);
		CKPT_AWAIT(task, !n->timer.set);
	}
	r = o->scanner.task.result;
	if (r == 0)
		r = check_run(o);
	if (r < 0)
		return r;
	if (n->own.keeps && ckpt_scan_newest_claim(&o->scanner.scan) > o->newest)
		return ckpt_task_continue(task, relock_body);
	take_scan(o);
	CKPT_TASK_END(task);
}
