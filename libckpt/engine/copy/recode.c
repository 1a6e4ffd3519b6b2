/* SPDX-License-Identifier: Apache-2.0 */
/* A step whose shards are stored again, encoded or plain. */
#include "engine/copy/recode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"

static struct ckpt_recode *recode_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_recode, task);
}

static ckpt_task_fn rank_body;
static ckpt_task_fn write_body;
static ckpt_task_fn check_body;
static ckpt_task_fn publish_body;
static ckpt_task_fn clean_body;
static ckpt_task_fn shut_body;

static int end(struct ckpt_recode *c, int code)
{
	c->code = *c->stop ? *c->stop : code;
	return ckpt_task_continue(&c->task, shut_body);
}

static void init_shard(struct ckpt_recode *c, struct ckpt_shard *shard)
{
	*shard = (struct ckpt_shard){.core = c->core,
		.generation = c->pick->chosen.generation,
		.step = c->pick->chosen.step,
		.rank = &c->pick->manifest.ranks[c->rank],
		.lister = &c->elsewhere->lister,
		.keep_bytes = true,
		.stop = c->stop,
		.err = c->err,
		.waiter = &c->task};
	ckpt_shard_init(shard);
}

static uint64_t file_bytes(const struct ckpt_shard *shard)
{
	return shard->encoded ? shard->file_bytes : shard->index->layout->bytes;
}

static int rank_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	while (c->rank < c->pick->manifest.world && ckpt_shard_location_has(c->elsewhere, c->rank))
		c->rank++;
	if (c->rank == c->pick->manifest.world || *c->stop)
		return *c->stop;
	init_shard(c, &c->shard);
	ckpt_shard_start_index(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	if (c->shard.task.result < 0)
		return end(c, c->shard.task.result);
	ckpt_shard_start_open(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	if (c->shard.task.result < 0)
		return end(c, c->shard.task.result);
	ckpt_shard_start_header(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	if (c->shard.task.result < 0)
		return end(c, c->shard.task.result);
	c->bytes_before += file_bytes(&c->shard);
	if (c->encodes != (c->shard.encoded != NULL))
		return ckpt_task_continue(task, write_body);
	c->bytes_after += file_bytes(&c->shard);
	atomic_fetch_add(c->counter, c->shard.index->layout->bytes);
	return ckpt_task_continue(task, shut_body);
	CKPT_TASK_END(task);
}

static void start_copy(struct ckpt_recode *c)
{
	c->copy = (struct ckpt_shard_copy){.shard = &c->shard,
		.dest = c->core->store,
		.encodes = c->encodes,
		.read = {.core = c->core,
			.store = c->shard.store,
			.file = &c->shard.file,
			.encoded = c->shard.encoded,
			.header = c->shard.header,
			.stop = c->stop,
			.err = c->err,
			.counter = c->counter},
		.stop = c->stop,
		.syncs = true,
		.fresh = true,
		.waiter = &c->task,
		.file = {.fd = -1}};
	ckpt_shard_copy_start(&c->copy);
}

/* What is there is listed first: nothing that anybody creates after it is removed. */
static int write_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_rank_lister_want(&c->elsewhere->lister, &c->wait, task);
	CKPT_AWAIT(task, c->wait.done);
	if (c->elsewhere->lister.result < 0)
		return end(c, ckpt_error_copy(&c->elsewhere->lister.err, c->err));
	start_copy(c);
	CKPT_AWAIT(task, c->copy.task.finished);
	if (c->copy.task.result < 0)
		return end(c, c->copy.task.result);
	return ckpt_task_continue(task, check_body);
	CKPT_TASK_END(task);
}

static void start_fetch(struct ckpt_recode *c)
{
	const struct ckpt_shard_read_config config = {.core = c->core,
		.layout = c->shard.index->layout,
		.file = &c->made.file,
		.encoded = c->made.encoded,
		.generation = c->made.generation,
		.step = c->made.step,
		.rank = c->rank,
		.bad = &c->bad,
		.stop = c->stop,
		.err = c->err,
		.counter = &c->looked,
		.waiter = &c->task};

	ckpt_shard_read_start(&c->fetch, &config);
}

static void start_again(struct ckpt_recode *c)
{
	struct ckpt_rank_file_name name = {
		.form = c->encodes ? CKPT_RANK_ENCODED : CKPT_RANK_SHARD};

	memcpy(name.attempt, c->copy.attempt, sizeof(name.attempt));
	ckpt_shard_start_again(&c->made, &name);
}

/* The old files may be all that there is of the step: they go when the new one has been read back. */
static int check_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	init_shard(c, &c->made);
	c->made.index = c->shard.index;
	start_again(c);
	CKPT_AWAIT(task, c->made.task.finished);
	if (c->made.task.result < 0)
		return end(c, c->made.task.result);
	if (ckpt_chunkset_init(&c->bad, c->shard.index->layout) < 0)
		return end(c, ckpt_fail(c->err, -ENOMEM, "out of memory"));
	start_fetch(c);
	CKPT_AWAIT(task, c->fetch.task.finished);
	if (c->fetch.task.result < 0)
		return end(c, c->fetch.task.result);
	if (c->bad.count > 0)
		return end(
			c, ckpt_fail_at(c->err, CKPT_EINTEGRITY,
				   &(struct ckpt_where){.tier = ckpt_store_tier(c->core->store),
					   .file = c->made.path},
				   "%zu of %zu chunks of %s are not what was written to it: the "
				   "disk or the memory of this machine is at fault; step %llu is "
				   "as it was",
				   c->bad.count, c->shard.index->layout->chunk_count, c->made.path,
				   (unsigned long long)c->made.step));
	return ckpt_task_continue(task, publish_body);
	CKPT_TASK_END(task);
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_copy_start_index(&c->copy);
	CKPT_AWAIT(task, c->copy.task.finished);
	if (c->copy.task.result < 0)
		return end(c, c->copy.task.result);
	/* Both are whole from now on. */
	c->copy.made = false;
	ckpt_store_list(c->core->store, &c->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, c->op.done);
	return ckpt_task_continue(task, clean_body);
	CKPT_TASK_END(task);
}

/* A later job may have removed the step and copied it here again: then the names in the list are those of its files. */
static int check_claims(struct ckpt_recode *c)
{
	uint64_t known = ckpt_scan_newest_claim(&c->core->lineage->scan);
	int r = c->op.result < 0 ? ckpt_store_fail(&c->op, "list", &c->said, c->err) : *c->stop;
	uint64_t newest = ckpt_take_newest_claim(&c->op);

	if (r == 0 && newest > known)
		r = ckpt_fail(c->err, CKPT_EFENCED,
			"generation %llu has taken over %s: the old files of rank %u of step %llu "
			"stay",
			(unsigned long long)newest, c->core->store->label, c->rank,
			(unsigned long long)c->shard.step);
	return r;
}

static int clean_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = check_claims(c);
	if (r < 0)
		return end(c, r);
	ckpt_shard_copy_start_clean(&c->copy, &c->elsewhere->lister.files);
	CKPT_AWAIT(task, c->copy.task.finished);
	if (c->copy.task.result < 0)
		return end(c, c->copy.task.result);
	c->ranks++;
	c->bytes_after += file_bytes(&c->made);
	return ckpt_task_continue(task, shut_body);
	CKPT_TASK_END(task);
}

static void clear_rank(struct ckpt_recode *c)
{
	ckpt_shard_copy_clear(&c->copy);
	ckpt_shard_read_clear(&c->fetch);
	c->made.index = NULL;
	ckpt_shard_clear(&c->made);
	ckpt_shard_clear(&c->shard);
	ckpt_chunkset_clear(&c->bad);
}

/* A file that was not finished, or not read back, goes. */
static int shut_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	if (c->made.file.fd >= 0) {
		ckpt_shard_start_shut(&c->made);
		CKPT_AWAIT(task, c->made.task.finished);
	}
	if (c->copy.made) {
		ckpt_shard_copy_start_undo(&c->copy);
		CKPT_AWAIT(task, c->copy.task.finished);
	}
	if (c->shard.file.fd >= 0) {
		ckpt_shard_start_shut(&c->shard);
		CKPT_AWAIT(task, c->shard.task.finished);
	}
	clear_rank(c);
	c->rank++;
	return c->code ? c->code : ckpt_task_continue(task, rank_body);
	CKPT_TASK_END(task);
}

static void recode_done(struct ckpt_task *task)
{
	ckpt_task_wake(recode_of(task)->waiter);
}

void ckpt_recode_start(struct ckpt_recode *recode)
{
	recode->copy.file.fd = -1;
	ckpt_shard_init(&recode->shard);
	ckpt_shard_init(&recode->made);
	ckpt_error_clear(&recode->said);
	ckpt_store_op_init(&recode->op, &recode->task, &recode->said);
	recode->op.quiet = true;
	recode->op.stop = recode->stop;
	ckpt_task_start(&recode->task, &recode->core->sched, rank_body, recode_done);
}

void ckpt_recode_wake(struct ckpt_recode *recode)
{
	ckpt_task_wake(&recode->fetch.task);
	ckpt_shard_copy_wake(&recode->copy);
}
