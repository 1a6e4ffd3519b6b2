/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 claims for all ranks. The others receive its claim or its failure. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"

#define TELL_MAX_NS     UINT64_C(10000000000)
#define UNSEEN_PAUSE_NS UINT64_C(50000000)

static struct ckpt_claimer *claimer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_claimer, work);
}

static void prepare_call(struct ckpt_exchange_call *call, struct ckpt_core *core,
	struct ckpt_task *waiter, const int *never, uint64_t timeout_ns, struct ckpt_error *err)
{
	memset(call->items, 0, 2 * sizeof(call->items[0]));
	call->core = core;
	call->stop = never;
	call->deadline_ns = ckpt_env_now(core->parts.env) + timeout_ns;
	call->err = err;
	call->waiter = waiter;
}

bool ckpt_claim_tell(struct ckpt_claimer *claimer)
{
	struct ckpt_core *core = claimer->command.core;
	struct ckpt_exchange_item *item = &claimer->call.items[0];
	struct ckpt_verdict verdict = {.code = claimer->work.result};

	prepare_call(
		&claimer->call, core, &claimer->command.task, &claimer->never, TELL_MAX_NS, NULL);
	claimer->call.count = 1;
	if (verdict.code == 0) {
		ckpt_key_claim(item->key, core->lineage->claims + 1);
		item->data = claimer->buf.data;
		item->length = claimer->buf.len;
	} else {
		(void)snprintf(verdict.reason, sizeof(verdict.reason), "%.250s",
			claimer->command.error.code ? claimer->command.error.message
						    : ckpt_code_text(verdict.code));
		ckpt_key_claim_failed(
			item->key, core->lineage->claims + 1, core->lineage->claim_tries);
		if (ckpt_verdict_encode(&verdict, &claimer->words) < 0) {
			ckpt_error_clear(&claimer->call.why);
			claimer->call.task.result =
				ckpt_fail(&claimer->call.why, -ENOMEM, "out of memory");
			return false;
		}
		item->data = claimer->words.data;
		item->length = claimer->words.len;
	}
	ckpt_exchange_call_put(&claimer->call);
	return true;
}

static void count_claim(struct ckpt_core *core, bool made)
{
	core->lineage->claims += made;
	core->lineage->claim_tries = made ? 0 : core->lineage->claim_tries + 1;
}

void ckpt_claim_told(struct ckpt_claimer *claimer)
{
	struct ckpt_core *core = claimer->command.core;

	count_claim(core, claimer->work.result == 0);
	core->lineage->claim_untold = claimer->work.result == 0 && claimer->call.task.result < 0;
	if (claimer->call.task.result < 0)
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"the other ranks of %s were not told of the claim: %s", core->parts.label,
			claimer->call.why.message);
}

/* Sends a claim that the other ranks may not know. */
struct teller {
	struct ckpt_task task;
	struct ckpt_core *core;
	uint64_t generation; /* that it sends */
	struct ckpt_exchange_call call;
	struct ckpt_buf words;
	int never;
};

static int retell_body(struct ckpt_task *task)
{
	struct teller *t = CKPT_CONTAINER(task, struct teller, task);

	CKPT_TASK_BEGIN(task);
	ckpt_exchange_call_put(&t->call);
	CKPT_AWAIT(task, t->call.task.finished);
	/* Another generation may have been claimed since. */
	if (t->core->lineage->generation == t->generation)
		t->core->lineage->claim_untold = t->call.task.result < 0;
	CKPT_TASK_END(task);
}

static void retell_done(struct ckpt_task *task)
{
	struct teller *t = CKPT_CONTAINER(task, struct teller, task);

	t->core->lineage->claim_telling = false;
	t->core->commands--;
	ckpt_task_wake(t->core->closer);
	ckpt_buf_free(&t->words);
	ckpt_free(t);
}

void ckpt_claim_retell(struct ckpt_core *core)
{
	const struct ckpt_scan_gen *gen =
		ckpt_scan_gen(&core->lineage->scan, core->lineage->generation);
	struct teller *t = core->lineage->claim_telling ? NULL : ckpt_alloc(sizeof(*t));

	CKPT_ASSERT(gen && gen->claimed);
	/* Out of memory: the next save tries again. */
	if (!t)
		return;
	if (ckpt_claim_encode(&gen->claim, &t->words) < 0) {
		ckpt_buf_free(&t->words);
		ckpt_free(t);
		return;
	}
	t->core = core;
	t->generation = core->lineage->generation;
	prepare_call(&t->call, core, &t->task, &t->never, TELL_MAX_NS, NULL);
	t->call.count = 1;
	ckpt_key_claim(t->call.items[0].key, core->lineage->claims);
	t->call.items[0].data = t->words.data;
	t->call.items[0].length = t->words.len;
	core->lineage->claim_telling = true;
	core->commands++;
	ckpt_task_start(&t->task, &core->sched, retell_body, retell_done);
}

/* Rank 0's claim may be of another store, or its ranks may have resumed from different steps. */
static int check_claim(struct ckpt_claimer *c)
{
	struct ckpt_core *core = c->command.core;
	const struct ckpt_claim *claim = &c->claim;
	struct ckpt_error *err = &c->command.error;
	uint64_t parent = core->lineage->adopted ? core->lineage->parent_generation : 0;
	uint64_t step = core->lineage->adopted ? core->lineage->parent_step : 0;

	if (strcmp(claim->run_id, core->lineage->marker.run_id) != 0)
		return ckpt_fail(err, CKPT_EMISMATCH,
			"rank 0 saves into another store than rank %u does into %s: give all ranks "
			"one directory that they share",
			core->config.rank, core->parts.label);
	if (claim->world != core->config.world)
		return ckpt_fail(err, CKPT_EMISMATCH,
			"rank 0 is one of %u ranks, and rank %u one of %u: give all the same world",
			claim->world, core->config.rank, core->config.world);
	if (claim->parent_generation != parent || claim->parent_step != step)
		return ckpt_fail(err, CKPT_EMISMATCH,
			"rank 0 has resumed from step %llu of generation %llu, and rank %u from "
			"step %llu of generation %llu: resume all ranks from one step",
			(unsigned long long)claim->parent_step,
			(unsigned long long)claim->parent_generation, core->config.rank,
			(unsigned long long)step, (unsigned long long)parent);
	return 0;
}

static int take_claim(struct ckpt_claimer *c)
{
	const struct ckpt_exchange_item *item = &c->call.items[0];
	struct ckpt_error *err = &c->command.error;

	int r = ckpt_claim_decode(item->data, item->length, item->key, err, &c->claim);
	if (r < 0)
		return r;
	/* If this rank cannot join, it reports that under this generation, because rank 0 saves and waits for it. */
	c->command.core->lineage->heard_generation = c->claim.generation;
	c->command.core->lineage->heard_nonce = c->claim.nonce;
	r = check_claim(c);
	if (r < 0 || !ckpt_core_owns_store(c->command.core))
		return r;
	/* The bytes of the claim file in this node's store. */
	ckpt_buf_free(&c->buf);
	ckpt_buf_put(&c->buf, item->data, item->length);
	return c->buf.failed ? ckpt_fail(err, -ENOMEM, "out of memory") : 0;
}

/* The claim in the store must be the one received, not one of another start that uses the same session. */
static int check_stored(struct ckpt_claimer *c)
{
	const struct ckpt_core *core = c->command.core;
	const struct ckpt_where where = {.tier = "local", .file = c->path};
	struct ckpt_claim stored;

	int r = ckpt_claim_decode(c->op.data, c->op.length, c->path, &c->command.error, &stored);
	ckpt_free(c->op.data);
	c->op.data = NULL;
	if (r < 0)
		return r;
	if (stored.nonce == c->claim.nonce && stored.generation == c->claim.generation &&
		stored.world == c->claim.world &&
		stored.parent_generation == c->claim.parent_generation &&
		stored.parent_step == c->claim.parent_step &&
		strcmp(stored.run_id, c->claim.run_id) == 0)
		return 0;
	return ckpt_fail_at(&c->command.error, CKPT_EMISMATCH, &where,
		"%s of %s is not the claim of rank 0: give all ranks one directory that "
		"they share, and every start of the job a session of its own",
		c->path, core->parts.label);
}

static int overtaken(struct ckpt_claimer *c)
{
	return ckpt_fail(&c->command.error, CKPT_EINUSE,
		"generation %llu of the store %s was claimed after that of rank 0, which is %llu: "
		"another start of the job has taken the store over",
		(unsigned long long)c->newest, c->command.core->parts.label,
		(unsigned long long)c->claim.generation);
}

/* Takes over the claim as this rank's own. */
static int adopt(struct ckpt_claimer *c)
{
	int r = ckpt_scan_put_gen(&c->command.core->lineage->scan,
		&(struct ckpt_scan_gen){.generation = c->claim.generation});

	return r < 0 ? ckpt_fail(&c->command.error, r, "out of memory") : ckpt_claim_adopt(c);
}

static int unseen(struct ckpt_claimer *c)
{
	return ckpt_fail_at(&c->command.error, -ETIMEDOUT,
		&(struct ckpt_where){.tier = "local", .file = c->path},
		"rank %u does not see %s in %s, which rank 0 has claimed: check that all ranks "
		"have the same directory",
		c->command.core->config.rank, c->path, c->command.core->parts.label);
}

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_claimer, timer)->work);
}

/* The claim must be in the store, and be the newest. With cached directories it may appear late. */
static int stored_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	struct ckpt_store_op *op = &c->op;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_claim(c->path, c->claim.generation);
	for (;;) {
		ckpt_store_get(core->store, op, c->path, CKPT_SEALED_MAX);
		CKPT_AWAIT(task, op->done);
		if (op->result != -ENOENT)
			break;
		if (core->closing || ckpt_env_now(core->parts.env) >= c->call.deadline_ns) {
			r = unseen(c);
			count_claim(core, false);
			return r;
		}
		c->timer.fire = timer_fired;
		ckpt_core_timer_set(
			core, &c->timer, ckpt_env_now(core->parts.env) + UNSEEN_PAUSE_NS);
		CKPT_AWAIT(task, !c->timer.set);
	}
	r = op->result < 0 ? op->result : check_stored(c);
	if (r == 0) {
		ckpt_store_list(core->store, op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, op->done);
		r = op->result;
		c->newest = ckpt_newest_claim(&op->listing);
		ckpt_free(op->listing.names);
		op->listing = (struct ckpt_listing){0};
		if (r == 0 && c->newest > c->claim.generation)
			r = overtaken(c);
	}
	if (r == 0)
		r = adopt(c);
	count_claim(core, r == 0);
	return r;
	CKPT_TASK_END(task);
}

/* In another node's store, the node leader creates a copy of the claim. */
static int create_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	struct ckpt_store_op *op = &c->op;
	int r;

	CKPT_TASK_BEGIN(task);
	/* An earlier try failed after this: its lock exists, and would block this one. */
	if (core->lineage->holds_claim && core->lineage->tried_generation == c->claim.generation &&
		core->lineage->tried_nonce == c->claim.nonce)
		return ckpt_task_continue(task, stored_body);
	if (core->lineage->adopted) {
		ckpt_claim_start_settle(c);
		CKPT_AWAIT(task, op->done);
		r = ckpt_claim_settled(c);
		if (r < 0) {
			count_claim(core, false);
			return r;
		}
	}
	/* From now on, whoever sees the file knows whose it is. */
	core->lineage->tried_generation = c->claim.generation;
	core->lineage->tried_nonce = c->claim.nonce;
	core->lineage->holds_claim = false;
	ckpt_name_claim(c->path, c->claim.generation);
	ckpt_store_publish(core->store, op, c->path, c->buf.data, c->buf.len, &c->lock);
	CKPT_AWAIT(task, op->done);
	/* Created by an earlier try. The next step compares it. */
	if (op->result == -EEXIST) {
		ckpt_store_lock(core->store, op, c->path, false, &c->lock);
		CKPT_AWAIT(task, op->done);
	}
	if (op->result < 0) {
		count_claim(core, false);
		return op->result == -EAGAIN ? ckpt_fail(&c->command.error, CKPT_EINUSE,
						       "%s of %s is held by another process: stop "
						       "that job, or give "
						       "this one a store of its own",
						       c->path, core->parts.label)
					     : op->result;
	}
	if (core->lineage->holder.fd >= 0) {
		ckpt_store_shut(core->store, op, &core->lineage->holder);
		CKPT_AWAIT(task, op->done);
	}
	core->lineage->holder = c->lock;
	core->lineage->holds_claim = true;
	return ckpt_task_continue(task, stored_body);
	CKPT_TASK_END(task);
}

static int take_failure(struct ckpt_claimer *c)
{
	const struct ckpt_exchange_item *item = &c->call.items[1];
	struct ckpt_verdict verdict;

	int r = ckpt_verdict_decode(
		item->data, item->length, item->key, &c->command.error, &verdict);
	if (r < 0)
		return r;
	return ckpt_fail(&c->command.error, verdict.code ? verdict.code : CKPT_EFORMAT,
		"rank 0 could not claim a generation: %s", verdict.reason);
}

int ckpt_claim_join_body(struct ckpt_task *task)
{
	struct ckpt_claimer *c = claimer_of(task);
	struct ckpt_core *core = c->command.core;
	bool made;
	int r;

	CKPT_TASK_BEGIN(task);
	/* Must end before the caller gives up. */
	prepare_call(&c->call, core, task, &c->never,
		(uint64_t)core->config.save_timeout_ms * 1000000 / 4 * 3, &c->command.error);
	c->call.count = 2;
	ckpt_key_claim(c->call.items[0].key, core->lineage->claims + 1);
	ckpt_key_claim_failed(
		c->call.items[1].key, core->lineage->claims + 1, core->lineage->claim_tries);
	ckpt_exchange_call_get(&c->call);
	CKPT_AWAIT(task, c->call.task.finished);
	r = c->call.task.result;
	/* A claim that succeeded counts, whatever failed before. */
	if (r == 0)
		r = c->call.items[0].data ? take_claim(c) : take_failure(c);
	made = r == 0 && c->call.items[0].data;
	ckpt_exchange_items_clear(c->call.items, c->call.count);
	if (made)
		return ckpt_task_continue(
			task, ckpt_core_owns_store(core) ? create_body : stored_body);
	count_claim(core, false);
	return r;
	CKPT_TASK_END(task);
}
