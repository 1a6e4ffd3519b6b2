/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the stores of a job's nodes together: what each rank puts, and what rank 0 decides. */
#include "engine/lineage/open_sync.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/open_catchup.h"
#include "engine/lineage/select_step.h"

static ckpt_task_fn store_body;

static struct ckpt_opener *opener_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_opener, work);
}

static struct ckpt_open_sync *sync_of(struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, struct ckpt_open_sync, round);
}

static const struct ckpt_open_sync *const_sync_of(const struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, const struct ckpt_open_sync, round);
}

static void name_key(const struct ckpt_round *round, uint32_t rank, char *ret_key)
{
	(void)round;
	if (rank == CKPT_ROUND_OUTCOME)
		ckpt_key_nodes(ret_key);
	else
		ckpt_key_node(ret_key, rank);
}

static int encode(const struct ckpt_round *round, const char *key, struct ckpt_buf *out)
{
	const struct ckpt_open_sync *n = const_sync_of(round);
	struct ckpt_node_record failed;

	if (n->own.verdict.code == 0)
		return ckpt_node_record_encode(n->own.rank == 0 ? &n->all : &n->own, key, out);
	failed = n->own;
	failed.claim_count = failed.step_count = failed.open_count = 0;
	return ckpt_node_record_encode(&failed, key, out);
}

/* A code of damage would be taken for damage of a store. */
static int decode(struct ckpt_round *round, const struct ckpt_exchange_item *item,
	struct ckpt_node_record *ret_record)
{
	struct ckpt_error damage;

	ckpt_error_clear(&damage);
	if (ckpt_node_record_decode(item->data, item->length, item->key, &damage, ret_record) < 0)
		return ckpt_fail(&round->why, -EIO, "%s of the exchange cannot be read: %s",
			item->key, damage.message);
	return 0;
}

static int take(struct ckpt_round *round, const struct ckpt_exchange_item *item, uint32_t rank)
{
	struct ckpt_node_record record;

	int r = decode(round, item, &record);
	if (r < 0)
		return r;
	if (record.rank != rank || record.verdict.code < 0)
		return ckpt_fail(&round->why, -EIO,
			"%s of the exchange is not what rank %u has found", item->key, rank);
	return ckpt_node_union_add(&sync_of(round)->found, &record, &round->why);
}

/*
 * The failure of a rank. One whose deadline came first does not know who is missing. Rank 0 knows it, once its own record
 * is there and it has asked for the others'.
 */
static void take_failure(struct ckpt_open_sync *n, const struct ckpt_node_record *outcome)
{
	const struct ckpt_verdict *verdict = &outcome->verdict;
	char missing[CKPT_ROUND_MISSING_CHARS];

	ckpt_error_clear(&n->failure);
	ckpt_round_list_missing(&n->round, missing, sizeof(missing));
	if (verdict->code == -ETIMEDOUT && outcome->rank > 0 && n->round.passed && *missing)
		(void)ckpt_fail(&n->failure, verdict->code,
			"of %u ranks these had not opened the stores of their nodes when another "
			"one gave up: %s: start all of them, and see what became of these (%s)",
			n->round.core->config.world, missing, verdict->reason);
	else
		(void)ckpt_fail(&n->failure, verdict->code, "%s", verdict->reason);
}

static int receive(struct ckpt_round *round, const struct ckpt_exchange_item *item)
{
	struct ckpt_open_sync *n = sync_of(round);
	struct ckpt_node_record outcome;

	if (!item)
		return 0;
	int r = decode(round, item, &outcome);
	if (r < 0)
		return r;
	r = outcome.verdict.code;
	if (r == 0 && (outcome.rank > 0 || !round->passed))
		return ckpt_fail(&round->why, -EIO,
			"the ranks of %s do not agree about its stores: give every start of the "
			"job a session of its own",
			round->core->parts.label);
	if (r < 0) {
		take_failure(n, &outcome);
		return 0;
	}
	n->all = outcome;
	n->agreed = true;
	return 1;
}

/* What the others receive. Their engines are not closed. */
static void set_verdict(struct ckpt_open_sync *n, int code, const char *reason)
{
	struct ckpt_verdict *verdict = &n->own.verdict;

	verdict->code = code == CKPT_ECLOSED ? -ECANCELED : code;
	(void)snprintf(verdict->reason, sizeof(verdict->reason), "%s", reason);
}

static void fail(struct ckpt_round *round, int code)
{
	struct ckpt_open_sync *n = sync_of(round);
	const bool worded = round->why.code && code != -ECANCELED;
	const char *reason = ckpt_code_text(code);
	char words[CKPT_REASON_CHARS];

	if (worded)
		reason = round->why.message;
	else if (code == -ECANCELED)
		reason = "it was closed before the stores of all nodes were open";
	ckpt_error_clear(&n->failure);
	if (worded)
		(void)ckpt_fail(&n->failure, code, "%s", reason);
	else
		(void)ckpt_fail(&n->failure, code, "rank %u: %s", n->own.rank, reason);
	if (n->own.rank == 0) {
		set_verdict(n, code, n->failure.message);
		return;
	}
	/* The others are told who says it. */
	(void)snprintf(words, sizeof(words), "rank %u on node %s: %.400s", n->own.rank, n->own.node,
		reason);
	set_verdict(n, code, words);
}

static void late(struct ckpt_round *round, const char *missing)
{
	const struct ckpt_core_config *config = &round->core->config;

	if (config->rank == 0)
		(void)ckpt_fail(&round->why, -ETIMEDOUT,
			"of %u ranks these have not opened the stores of their nodes in time: %s: "
			"start all of them, and see what became of these",
			config->world, missing);
	else
		(void)ckpt_fail(&round->why, -ETIMEDOUT,
			"rank 0 has not said in time whether the stores of all nodes are open: see "
			"what became of it, and of the ranks that it waits for");
}

static const struct ckpt_round_ops sync_ops = {.name_key = name_key,
	.encode = encode,
	.take = take,
	.receive = receive,
	.fail = fail,
	.late = late};

int ckpt_open_sync_start(struct ckpt_opener *o)
{
	struct ckpt_core *core = o->command.core;
	const uint32_t rank = core->config.rank;
	struct ckpt_open_sync *n = ckpt_alloc(sizeof(*n));

	if (!n)
		return ckpt_fail(&o->command.error, -ENOMEM, "out of memory");
	o->nodes = n;
	n->opener = o;
	n->own.rank = rank;
	n->own.keeps = ckpt_core_owns_store(core);
	memcpy(n->own.node, core->config.node, sizeof(n->own.node));
	memcpy(n->own.run_id, CKPT_NODE_NO_RUN, sizeof(n->own.run_id));
	n->all.rank = rank;
	memcpy(n->all.node, core->config.node, sizeof(n->all.node));
	memcpy(n->all.run_id, CKPT_NODE_NO_RUN, sizeof(n->all.run_id));
	n->round.ops = &sync_ops;
	n->round.core = core;
	n->round.waiter = &o->work;
	n->round.held = rank == 0;
	n->round.deadline_ns = ckpt_round_deadline_within(core, ckpt_open_patience_ns(core));
	n->deadline_ns = ckpt_open_deadline_ns(core, rank == 0 ? 6 : 7);
	o->then = store_body;
	return ckpt_task_continue(&o->work, ckpt_open_hello_body);
}

/* After this rank's first word in the session. */
static void put(struct ckpt_round *round, bool well)
{
	if (!ckpt_task_active(&round->task))
		ckpt_round_start(round);
	ckpt_round_put(round, well);
}

/* The outcome of the round is known. */
static int outcome_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, n->round.decided);
	ckpt_error_clear(&o->command.error);
	if (n->agreed) {
		/* The outcome may be later than the deadline, and still well: what comes after it has its time. */
		n->deadline_ns =
			ckpt_max_u64(n->deadline_ns, ckpt_open_deadline_ns(o->command.core, 1));
		return ckpt_task_continue(task, ckpt_open_catchup_body);
	}
	o->command.error = n->failure;
	return n->failure.code;
	CKPT_TASK_END(task);
}

static int release_body(struct ckpt_task *task)
{
	struct ckpt_round *round = &opener_of(task)->nodes->round;

	/* It may have ended meanwhile. */
	if (ckpt_round_is_complete(round))
		ckpt_round_release(round);
	return ckpt_task_continue(task, outcome_body);
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

/* Somebody has made this store meanwhile. The rest that a new one needs is still to be made. */
static int take_run(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;

	int r = take_marker(o);
	if (r < 0)
		return r;
	if (n->drawn)
		memcpy(n->all.run_id, n->own.run_id, sizeof(n->all.run_id));
	r = ckpt_node_union_check_run(&n->found, &n->own, &o->command.error);
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
	return ckpt_task_continue(task, release_body);
	CKPT_TASK_END(task);
}

static int round_body(struct ckpt_task *task)
{
	struct ckpt_opener *o = opener_of(task);
	struct ckpt_open_sync *n = o->nodes;
	int r;

	CKPT_TASK_BEGIN(task);
	/* Whoever lacks the memory for it says so: the round can put a failure without. */
	r = ckpt_round_init(&n->round, n->own.rank, o->command.core->config.world);
	if (r == 0 && n->own.rank == 0)
		r = ckpt_node_union_init(&n->found, &n->all, o->command.core->config.world);
	if (r < 0)
		return ckpt_fail(&o->command.error, r, "out of memory");
	if (n->own.rank == 0) {
		r = ckpt_node_union_add(&n->found, &n->own, &o->command.error);
		if (r < 0)
			return r;
	}
	put(&n->round, true);
	CKPT_AWAIT(task, n->round.decided || ckpt_round_is_complete(&n->round));
	if (n->round.decided)
		return ckpt_task_continue(task, outcome_body);
	r = ckpt_node_union_finish(&n->found, &o->command.error);
	if (r < 0)
		return r;
	n->drawn = strcmp(n->all.run_id, CKPT_NODE_NO_RUN) == 0;
	if (n->drawn)
		ckpt_open_draw_run(o->command.core, n->all.run_id);
	return ckpt_task_continue(
		task, strcmp(n->own.run_id, CKPT_NODE_NO_RUN) == 0 ? name_run_body : release_body);
	CKPT_TASK_END(task);
}

/* What this rank's store holds. */

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

static int held_body(struct ckpt_task *task)
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
	return ckpt_task_continue(task, round_body);
	CKPT_TASK_END(task);
}

static int store_body(struct ckpt_task *task)
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
		return ckpt_task_continue(task, round_body);
	ckpt_store_mkdir(core->store, op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, op->done);
	o->then = held_body;
	return op->result < 0 ? op->result : ckpt_task_continue(task, ckpt_open_hold_body);
	CKPT_TASK_END(task);
}

void ckpt_open_sync_end(struct ckpt_opener *o)
{
	struct ckpt_open_sync *n = o->nodes;
	const struct ckpt_error *why = &o->command.error;
	const int code = o->work.result;
	const char *reason = why->code ? why->message : ckpt_code_text(code);
	char words[CKPT_REASON_CHARS];

	n->round.waiter = &o->command.task;
	/* In a session that is known to be another start's nothing is said. */
	if (code == 0 || o->used)
		return;
	if (n->agreed && n->own.keeps)
		(void)ckpt_open_catchup_tell(o, code, &o->command.task);
	if (n->round.decided)
		return;
	if (n->own.rank > 0)
		(void)snprintf(words, sizeof(words),
			"rank %u on node %s could not open its store: %.250s", n->own.rank,
			n->own.node, reason);
	else
		(void)snprintf(words, sizeof(words), "%.250s", reason);
	set_verdict(n, code, words);
	put(&n->round, false);
}

bool ckpt_open_sync_over(const struct ckpt_opener *o)
{
	return !ckpt_task_active(&o->nodes->round.task) && !ckpt_task_active(&o->call.task);
}

void ckpt_open_sync_free(struct ckpt_open_sync *nodes)
{
	if (!nodes)
		return;
	ckpt_round_clear(&nodes->round);
	ckpt_node_union_clear(&nodes->found);
	ckpt_buf_free(&nodes->words);
	ckpt_buf_free(&nodes->bytes);
	ckpt_free(nodes);
}
