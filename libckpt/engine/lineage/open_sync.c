/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the stores of a job's nodes together: what is told, heard and decided. */
#include "engine/lineage/open_sync.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/open_catchup.h"
#include "engine/lineage/select_step.h"

#define SECOND_NS   UINT64_C(1000000000)
#define TELL_MAX_NS (10 * SECOND_NS)
/* With more ranks missing than one operation asks for, the next ones get their turn after this. */
#define ROUND_NS    (SECOND_NS / 10)
#define NAMED_MAX   8

static struct ckpt_opener *opener_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_opener, work);
}

static uint64_t timeout_ns(const struct ckpt_core *core)
{
	return (uint64_t)core->config.save_timeout_ms * 1000000;
}

int ckpt_open_sync_start(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	struct ckpt_open_sync *n = ckpt_alloc(sizeof(*n));

	if (!n)
		return ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
	o->nodes = n;
	n->own.rank = core->config.rank;
	n->own.keeps = ckpt_core_owns_store(core);
	memcpy(n->own.node, core->config.node, sizeof(n->own.node));
	memcpy(n->own.run_id, CKPT_NODE_NO_RUN, sizeof(n->own.run_id));
	/* Rank 0 gives up first: it knows who is missing, and the others hear of it. */
	n->deadline_ns = ckpt_open_deadline_ns(core, core->config.rank == 0 ? 6 : 7);
	return ckpt_task_continue(&o->work, ckpt_open_hello_body);
}

void ckpt_open_prepare_talk(struct ckpt_opener *o, struct ckpt_task *waiter, uint64_t deadline_ns)
{
	struct ckpt_exchange_call *call = &o->call;

	memset(call->items, 0, sizeof(call->items[0]));
	call->core = o->command.core;
	call->stop = &o->never;
	call->deadline_ns = deadline_ns;
	call->answer_ns = 0;
	call->err = &o->command.error;
	call->waiter = waiter;
	call->count = 1;
}

/* Its words must stay until they are told. */
static int tell(struct ckpt_opener *o, const struct ckpt_node_record *record, const char *key)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_exchange_item *item = &o->call.items[0];

	ckpt_buf_free(&n->words);
	int r = ckpt_node_record_encode(record, key, &n->words);
	if (r < 0)
		return ckpt_fail(&o->command.error, r, "out of memory");
	(void)snprintf(item->key, sizeof(item->key), "%s", key);
	item->data = n->words.data;
	item->length = n->words.len;
	ckpt_exchange_call_put(&o->call);
	return 0;
}

static int told_before(struct ckpt_opener *o)
{
	const struct ckpt_core *core = o->command.core;

	return ckpt_fail(&o->command.error, -EINVAL,
		"something was told by rank %u of %s before: give every start of the job a session "
		"of its own",
		core->config.rank, core->parts.label);
}

/* Rank 0: what all have said. */

/* Of another run: two nodes' directories were never stores of one job. */
static int check_run(struct ckpt_opener *o, const struct ckpt_node_record *record)
{
	struct ckpt_open_sync *n = o->nodes;

	if (strcmp(record->run_id, CKPT_NODE_NO_RUN) == 0)
		return 0;
	if (strcmp(n->all.run_id, CKPT_NODE_NO_RUN) == 0) {
		memcpy(n->all.run_id, record->run_id, sizeof(n->all.run_id));
		n->run_rank = record->rank;
		memcpy(n->run_node, record->node, sizeof(n->run_node));
		return 0;
	}
	if (strcmp(n->all.run_id, record->run_id) == 0)
		return 0;
	return ckpt_fail(&o->command.error, CKPT_EMISMATCH,
		"the store of rank %u on node %s is of another run than that of rank %u on node "
		"%s: "
		"give every node the directory that this job has written there, or a new one",
		record->rank, record->node, n->run_rank, n->run_node);
}

/* Manifests tell nodes apart by their names: two stores of one name would each miss the other's files. */
static int check_name(struct ckpt_opener *o, const struct ckpt_node_record *record)
{
	struct ckpt_open_sync *n = o->nodes;

	if (!record->keeps)
		return 0;
	for (uint32_t i = 0; i < n->node_leader_count; i++)
		if (strcmp(n->node_leaders[i].node, record->node) == 0)
			return ckpt_fail(&o->command.error, CKPT_EMISMATCH,
				"ranks %u and %u each keep a store of node %s: give every node a "
				"name of "
				"its own (ckpt_engine_opts.node, in Python LIBCKPT_NODE), and all "
				"its "
				"ranks one directory and one keeper",
				n->node_leaders[i].rank, record->rank, record->node);
	struct ckpt_open_node_leader *node_leader = &n->node_leaders[n->node_leader_count++];
	node_leader->rank = record->rank;
	memcpy(node_leader->node, record->node, sizeof(node_leader->node));
	return 0;
}

/* What every node leader has is older than what some lack. */
static void lower(struct ckpt_open_sync *n, const struct ckpt_node_record *record)
{
	struct ckpt_node_item claim = {.generation = record->newest, .step = CKPT_STEP_MAX};
	struct ckpt_node_item step = {0};

	if (record->step_count > 0)
		step = record->steps[0];
	if (!n->any || ckpt_node_item_order(&claim, &n->low_claim) < 0)
		n->low_claim = claim;
	if (!n->any || ckpt_node_item_order(&step, &n->low_step) < 0)
		n->low_step = step;
	n->any = true;
}

static int take_record(struct ckpt_opener *o, const struct ckpt_node_record *record)
{
	struct ckpt_open_sync *n = o->nodes;
	int r = record->verdict.code;

	if (r < 0) {
		return ckpt_fail(&o->command.error, r,
			"rank %u on node %s could not open its store: %s", record->rank,
			record->node, record->verdict.reason);
	}
	r = check_run(o, record);
	if (r == 0)
		r = check_name(o, record);
	if (r == 0 && record->keeps)
		lower(n, record);
	if (r == 0)
		ckpt_node_record_unite(&n->all, record);
	return r;
}

static int take_heard(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_exchange_call *call = &o->call;
	int r = 0;

	for (size_t i = 0; i < call->count && r == 0; i++) {
		const struct ckpt_exchange_item *item = &call->items[i];
		struct ckpt_node_record record;
		char key[CKPT_EXCHANGE_KEY_MAX] = "";

		if (!item->data)
			continue;
		r = ckpt_node_record_decode(
			item->data, item->length, item->key, &o->command.error, &record);
		if (r == 0)
			ckpt_key_node(key, record.rank);
		if (r == 0 && strcmp(key, item->key) != 0)
			r = ckpt_fail(&o->command.error, CKPT_EFORMAT,
				"%s of the exchange is of rank %u", item->key, record.rank);
		if (r == 0)
			r = take_record(o, &record);
		if (r == 0) {
			n->missing -= !n->heard[record.rank];
			n->heard[record.rank] = true;
		}
	}
	ckpt_exchange_items_clear(call->items, call->count);
	return r;
}

static int late(struct ckpt_opener *o)
{
	const struct ckpt_open_sync *n = o->nodes;
	const struct ckpt_core *core = o->command.core;
	char names[NAMED_MAX * 12 + 32] = "";
	uint32_t named = 0;
	size_t at = 0;

	if (o->call.why.code)
		return ckpt_fail(&o->command.error, -ETIMEDOUT,
			"the ranks of %s do not reach each other: %s", core->parts.label,
			o->call.why.message);
	for (uint32_t rank = 0; rank < core->config.world && named < NAMED_MAX; rank++)
		if (!n->heard[rank])
			at += (size_t)snprintf(
				names + at, sizeof(names) - at, "%s%u", named++ ? ", " : "", rank);
	if (n->missing > named)
		(void)snprintf(names + at, sizeof(names) - at, " and %u more", n->missing - named);
	return ckpt_fail(&o->command.error, -ETIMEDOUT,
		"of %u ranks these have not opened the stores of their nodes in time: %s: start "
		"all "
		"of them, and see what became of these",
		core->config.world, names);
}

static void hear_missing(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	const struct ckpt_core *core = o->command.core;
	uint64_t until_ns = n->deadline_ns;
	uint32_t rank = n->from;

	if (n->missing > CKPT_EXCHANGE_BATCH)
		until_ns = ckpt_min_u64(until_ns, ckpt_env_now(core->parts.env) + ROUND_NS);
	ckpt_open_prepare_talk(o, &o->work, until_ns);
	/* That it is time for the next ones is no failure; and an exchange that is slow answers later. */
	o->call.err = NULL;
	o->call.answer_ns = n->deadline_ns;
	o->call.count = 0;
	for (uint32_t i = 0; i < core->config.world && o->call.count < CKPT_EXCHANGE_BATCH; i++) {
		if (!n->heard[rank])
			ckpt_key_node(o->call.items[o->call.count++].key, rank);
		rank = (rank + 1) % core->config.world;
	}
	n->from = rank;
	ckpt_exchange_call_get(&o->call);
}

static int take_marker(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	struct ckpt_marker marker;

	int r = ckpt_marker_decode(
		o->op.data, o->op.length, CKPT_NAME_MARKER, &o->command.error, &marker);
	ckpt_free(o->op.data);
	o->op.data = NULL;
	if (r == 0)
		r = ckpt_open_check_scope(core, &marker, &o->command.error);
	if (r == 0)
		memcpy(o->nodes->own.run_id, marker.run_id, sizeof(marker.run_id));
	return r;
}

static size_t count_lacking(
	const struct ckpt_node_item *items, size_t count, const struct ckpt_node_item *low)
{
	size_t lacking = 0;

	while (lacking < count && ckpt_node_item_order(&items[lacking], low) > 0)
		lacking++;
	return lacking;
}

/* Of all commits those that are newer than a store's newest, or that it does not know the end of. */
static size_t keep_lacking(struct ckpt_node_record *all, const struct ckpt_node_item *low)
{
	size_t kept = 0;

	for (size_t i = 0; i < all->step_count; i++)
		if (ckpt_node_item_order(&all->steps[i], low) > 0 ||
			ckpt_node_item_among(&all->steps[i], all->open, all->open_count))
			all->steps[kept++] = all->steps[i];
	return kept;
}

/* One number, two claims: starts of the job on different nodes that did not know of each other. */
static int check_claims(struct ckpt_opener *o)
{
	const struct ckpt_node_record *all = &o->nodes->all;

	for (size_t i = 1; i < all->claim_count; i++) {
		const struct ckpt_node_item *a = &all->claims[i - 1];
		const struct ckpt_node_item *b = &all->claims[i];
		if (a->generation == b->generation)
			return ckpt_fail(&o->command.error, CKPT_EMISMATCH,
				"generation %llu is one thing in the store of rank %u and another "
				"in that of "
				"rank %u: starts of the job on some of its nodes did not know of "
				"each other; "
				"go on with the nodes of one of them, and give the others new "
				"directories",
				(unsigned long long)a->generation, a->from, b->from);
	}
	return 0;
}

/* What is told to all: of the items only those that some store lacks. */
static void decide(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;

	n->told_count = n->all.step_count;
	memcpy(n->told_steps, n->all.steps, sizeof(n->told_steps));
	n->all.rank = n->own.rank;
	n->all.claim_count = count_lacking(n->all.claims, n->all.claim_count, &n->low_claim);
	n->all.step_count = keep_lacking(&n->all, &n->low_step);
	n->all.open_count = 0;
	n->drawn = strcmp(n->all.run_id, CKPT_NODE_NO_RUN) == 0;
	if (n->drawn)
		ckpt_open_draw_run(o->command.core, n->all.run_id);
}

static int decided_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	char key[CKPT_EXCHANGE_KEY_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_open_prepare_talk(o, task, n->deadline_ns);
	ckpt_key_nodes(key);
	r = tell(o, &n->all, key);
	if (r < 0)
		return r;
	CKPT_AWAIT(task, o->call.task.finished);
	if (o->call.task.result < 0)
		return o->call.task.result == -EEXIST ? told_before(o) : o->call.task.result;
	n->told = true;
	return ckpt_task_continue(task, ckpt_open_catchup_body);
	CKPT_TASK_END(task);
}

/* Somebody has made this store meanwhile. The rest that a new one needs is still to be made. */
static int take_run(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;

	int r = take_marker(o);
	if (r < 0)
		return r;
	if (n->drawn)
		memcpy(n->all.run_id, n->own.run_id, sizeof(n->all.run_id));
	r = check_run(o, &n->own);
	memcpy(n->own.run_id, CKPT_NODE_NO_RUN, sizeof(n->own.run_id));
	return r;
}

/*
 * A new store of rank 0 says of which run it is before anybody hears of that: else a start of the job that ends
 * now leaves stores of a run that the next one does not find in its rank 0's.
 */
static int name_run_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_store *store = o->command.core->store;
	struct ckpt_store_op *op = &o->op;
	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_open_encode_run(o);
	if (r < 0)
		return r;
	ckpt_store_publish(store, op, CKPT_NAME_MARKER, o->buf.data, o->buf.len, NULL);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0 && op->result != -EEXIST)
		return op->result;
	if (op->result == -EEXIST) {
		ckpt_error_clear(&o->command.error);
		ckpt_store_get(store, op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, op->done);
		r = op->result < 0 ? op->result : take_run(o);
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, decided_body);
	CKPT_TASK_END(task);
}

static int lead_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	int r;

	CKPT_TASK_BEGIN(task);
	n->heard = ckpt_alloc_array(o->command.core->config.world, sizeof(*n->heard));
	n->node_leaders = ckpt_alloc_array(o->command.core->config.world, sizeof(*n->node_leaders));
	if (!n->heard || !n->node_leaders)
		return ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
	memcpy(n->all.run_id, CKPT_NODE_NO_RUN, sizeof(n->all.run_id));
	memcpy(n->all.node, n->own.node, sizeof(n->all.node));
	n->heard[0] = true;
	n->missing = o->command.core->config.world - 1;
	n->from = 1;
	r = take_record(o, &n->own);
	while (r == 0 && n->missing > 0) {
		hear_missing(o);
		CKPT_AWAIT(task, o->call.task.finished);
		r = o->call.task.result;
		if (r == 0)
			r = take_heard(o);
		else if (r == -ETIMEDOUT)
			r = ckpt_env_now(o->command.core->parts.env) < n->deadline_ns ? 0 : late(o);
		else
			r = ckpt_fail(&o->command.error, r,
				"it was closed before the other ranks had opened the stores of "
				"their nodes");
	}
	if (r == 0)
		r = check_claims(o);
	if (r < 0)
		return r;
	decide(o);
	return ckpt_task_continue(
		task, strcmp(n->own.run_id, CKPT_NODE_NO_RUN) == 0 ? name_run_body : decided_body);
	CKPT_TASK_END(task);
}

/* The others. */

static int take_decision(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	const struct ckpt_exchange_item *item = &o->call.items[0];

	int r = ckpt_node_record_decode(
		item->data, item->length, item->key, &o->command.error, &n->all);
	ckpt_exchange_items_clear(o->call.items, o->call.count);
	if (r < 0)
		return r;
	r = n->all.verdict.code;
	return r < 0 ? ckpt_fail(&o->command.error, r, "%s", n->all.verdict.reason) : 0;
}

static int follow_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	char key[CKPT_EXCHANGE_KEY_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_open_prepare_talk(o, task, n->deadline_ns);
	ckpt_key_node(key, n->own.rank);
	r = tell(o, &n->own, key);
	if (r < 0)
		return r;
	CKPT_AWAIT(task, o->call.task.finished);
	if (o->call.task.result < 0)
		return o->call.task.result == -EEXIST ? told_before(o) : o->call.task.result;
	n->told = true;
	ckpt_open_prepare_talk(o, task, n->deadline_ns);
	ckpt_key_nodes(o->call.items[0].key);
	ckpt_exchange_call_get(&o->call);
	CKPT_AWAIT(task, o->call.task.finished);
	if (o->call.task.result < 0)
		return o->call.task.result;
	r = take_decision(o);
	return r < 0 ? r : ckpt_task_continue(task, ckpt_open_catchup_body);
	CKPT_TASK_END(task);
}

/* What this rank's store holds. */

static int go_on(struct ckpt_task *task)
{
	return ckpt_task_continue(
		task, opener_of(task)->command.core->config.rank == 0 ? lead_body : follow_body);
}

static void add_item(struct ckpt_node_item *items, size_t *count, const struct ckpt_scan_step *step,
	uint32_t from)
{
	if (*count < CKPT_NODE_STEPS)
		items[(*count)++] = (struct ckpt_node_item){
			.generation = step->generation, .step = step->step, .from = from};
}

static bool is_generation_told(const struct ckpt_node_record *own, uint64_t generation)
{
	for (size_t i = 0; i < own->step_count; i++)
		if (own->steps[i].generation == generation)
			return true;
	return false;
}

/* The newest, and those of all steps that are told: without its claim a commit is in no lineage. */
static void list_claims(struct ckpt_node_record *own, const struct ckpt_scan *scan)
{
	const size_t newest = CKPT_NODE_CLAIMS - CKPT_NODE_STEPS;

	own->newest = ckpt_scan_newest_claim(scan);
	for (size_t i = scan->gen_count; i-- > 0 && own->claim_count < CKPT_NODE_CLAIMS;) {
		const struct ckpt_scan_gen *gen = &scan->gens[i];
		if (gen->claimed && !gen->broken &&
			(own->claim_count < newest || is_generation_told(own, gen->generation)))
			own->claims[own->claim_count++] =
				(struct ckpt_node_item){.generation = gen->generation,
					.step = ckpt_node_claim_mark(gen->claim.nonce),
					.from = own->rank};
	}
}

static void list_items(struct ckpt_open_sync *n, const struct ckpt_scan *scan)
{
	struct ckpt_node_record *own = &n->own;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *step = &scan->steps[i];
		/* What could not be read may be what another store lacks: it is read again to be sent. */
		if (step->state == CKPT_STEP_COMMITTED || step->state == CKPT_STEP_QUARANTINED ||
			(step->state == CKPT_STEP_BROKEN && ckpt_select_may_be_good(step)))
			add_item(own->steps, &own->step_count, step, own->rank);
		else if (step->state == CKPT_STEP_PENDING)
			add_item(own->open, &own->open_count, step, own->rank);
	}
	list_claims(own, scan);
}

/* The other stores may lack what is newest here: it must be known whether there is such a step. */
static int check_newest(struct ckpt_opener *o)
{
	const struct ckpt_scan *scan = &o->scanner.scan;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *step = &scan->steps[i];
		if (step->state == CKPT_STEP_COMMITTED || step->state == CKPT_STEP_QUARANTINED)
			break;
		if (step->state != CKPT_STEP_BROKEN || !ckpt_select_may_be_good(step))
			continue;
		ckpt_name_manifest(o->path, step->generation, step->step);
		return ckpt_fail_at(&o->command.error, step->code,
			&(struct ckpt_where){.tier = "local", .file = o->path},
			"which is the newest step of %s cannot be told: %s could not be read: %s",
			o->command.core->parts.label, o->path, step->note);
	}
	return 0;
}

int ckpt_open_sync_held_body(struct ckpt_task *task)
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
	newest = ckpt_scan_newest_claim(&o->scanner.scan);
	if (o->held || newest > o->newest)
		return ckpt_open_in_use(o, ckpt_max_u64(newest, o->newest));
	r = check_newest(o);
	if (r < 0)
		return r;
	list_items(o->nodes, &o->scanner.scan);
	ckpt_scanner_clear(&o->scanner);
	return go_on(task);
	CKPT_TASK_END(task);
}

int ckpt_open_sync_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_core *core = o->command.core;
	struct ckpt_store_op *op = &o->op;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_error_clear(&o->command.error);
	ckpt_store_list(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	if (op->result < 0 && op->result != -ENOENT)
		return op->result;
	o->newest = ckpt_newest_claim(&op->listing);
	ckpt_free(op->listing.names);
	op->listing = (struct ckpt_listing){0};
	ckpt_store_get(core->store, op, CKPT_NAME_MARKER, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, op->done);
	if (op->result == -ENOENT && o->newest > 0)
		return ckpt_open_lost_marker(o, o->newest);
	if (op->result < 0 && op->result != -ENOENT)
		return op->result;
	r = op->result < 0 ? 0 : take_marker(o);
	if (r < 0)
		return r;
	if (!o->nodes->own.keeps || op->result == -ENOENT)
		return go_on(task);
	ckpt_store_mkdir(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	return op->result < 0 ? op->result : ckpt_task_continue(task, ckpt_open_hold_body);
	CKPT_TASK_END(task);
}

bool ckpt_open_sync_refuse(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	struct ckpt_task *waiter = &o->command.task;
	struct ckpt_node_record record = n->own;
	const struct ckpt_error why = o->command.error;
	char key[CKPT_EXCHANGE_KEY_MAX];

	/* In the session of another start nothing is said. */
	if (o->work.result == 0 || o->used)
		return false;
	if (n->told)
		return n->own.keeps && ckpt_open_catchup_tell(o, o->work.result, waiter);
	record.verdict.code = o->work.result;
	record.claim_count = record.step_count = record.open_count = 0;
	(void)snprintf(record.verdict.reason, sizeof(record.verdict.reason), "%.250s",
		why.code ? why.message : ckpt_code_text(o->work.result));
	if (n->own.rank == 0)
		ckpt_key_nodes(key);
	else
		ckpt_key_node(key, n->own.rank);
	ckpt_open_prepare_talk(o, waiter,
		ckpt_env_now(o->command.core->parts.env) +
			ckpt_min_u64(timeout_ns(o->command.core) / 8, TELL_MAX_NS));
	o->call.err = NULL;
	int r = tell(o, &record, key);
	o->command.error = why;
	return r == 0;
}

void ckpt_open_sync_free(struct ckpt_open_sync *nodes)
{
	if (!nodes)
		return;
	ckpt_free(nodes->node_leaders);
	ckpt_free(nodes->heard);
	ckpt_buf_free(&nodes->words);
	ckpt_buf_free(&nodes->bytes);
	ckpt_free(nodes);
}
