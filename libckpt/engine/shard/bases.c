/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/bases.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/rank_files.h"

static struct ckpt_bases *bases_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_bases, task);
}

/* In the table, the base that is opened. */
static const struct ckpt_encoded_base *named(const struct ckpt_bases *b)
{
	return &b->encoded->bases[b->at];
}

static int fail_table(struct ckpt_bases *b, const char *why)
{
	return ckpt_fail_at(b->err, CKPT_EFORMAT,
		&(struct ckpt_where){.tier = ckpt_store_tier(b->store), .file = b->path},
		"%s in %s %s: put the file back from a copy, or use another step", b->path,
		b->store->label, why);
}

/* What is wrong with a base is wrong with the step that is decoded with it. */
static int fail_base(struct ckpt_bases *b, int code)
{
	const struct ckpt_where where = {
		.tier = ckpt_store_tier(b->store), .file = b->why.file[0] ? b->why.file : b->path};

	if (*b->stop)
		return *b->stop;
	return ckpt_fail_at(b->err, code, &where,
		"step %llu is decoded with the shard of step %llu: %.900s",
		(unsigned long long)b->step, (unsigned long long)named(b)->step,
		b->why.code ? b->why.message : ckpt_code_text(code));
}

/* A base is older than the shard. So it may have no bases that need the shard in turn. */
static bool is_possible(const struct ckpt_bases *b)
{
	const struct ckpt_encoded_base *last = &b->encoded->bases[b->encoded->base_count - 1];

	return last->step < b->step && last->generation <= b->generation;
}

static void prepare(struct ckpt_bases *b)
{
	struct ckpt_base *base = &b->items[b->at];
	const struct ckpt_encoded_base *name = named(b);

	base->rank = (struct ckpt_manifest_rank){.rank = b->rank,
		.index_digest = name->index_digest,
		.index_bytes = name->index_bytes,
		.shard_bytes = b->layout->bytes};
	ckpt_name_attempt(base->rank.attempt, name->attempt);
	base->lister = (struct ckpt_rank_lister){.store = b->store,
		.sched = &b->core->sched,
		.generation = name->generation,
		.step = name->step,
		.stop = b->stop};
	base->shard = (struct ckpt_shard){.core = b->core,
		.store = b->store,
		.generation = name->generation,
		.step = name->step,
		.rank = &base->rank,
		.lister = &base->lister,
		.stop = b->stop,
		.err = &b->why,
		.waiter = &b->task};
	ckpt_shard_init(&base->shard);
	ckpt_error_clear(&b->why);
	b->count++;
}

/* It is open: what there is of the index is in its table, too. */
static int take(struct ckpt_bases *b)
{
	struct ckpt_base *base = &b->items[b->at];

	if (!base->shard.encoded) {
		base->plain = ckpt_chain_plain(base->shard.index->layout);
		if (!base->plain)
			return ckpt_fail(
				b->err, -ENOMEM, "out of memory for the bases of %s", b->path);
	}
	ckpt_index_free(base->shard.index);
	base->shard.index = NULL;
	ckpt_chain_add(
		&b->chain, b->at + 1, base->shard.encoded ? base->shard.encoded : base->plain);
	return 0;
}

static int check_chain(struct ckpt_bases *b)
{
	unsigned file;

	return ckpt_chain_broken(&b->chain, &file) == SIZE_MAX
		       ? 0
		       : fail_table(b, "names bases that its chunks cannot be decoded with");
}

static int open_body(struct ckpt_task *task)
{
	struct ckpt_bases *b = bases_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (!is_possible(b))
		return fail_table(b, "names a base that is not older than its own step");
	b->items = ckpt_alloc_array(b->encoded->base_count, sizeof(*b->items));
	if (!b->items)
		return ckpt_fail(b->err, -ENOMEM, "out of memory for the bases of %s", b->path);
	ckpt_chain_begin(&b->chain, b->encoded);
	for (b->at = 0; b->at < b->encoded->base_count; b->at++) {
		prepare(b);
		ckpt_shard_start_index(&b->items[b->at].shard);
		CKPT_AWAIT(task, b->items[b->at].shard.task.finished);
		r = b->items[b->at].shard.task.result;
		if (r < 0)
			return fail_base(b, r);
		if (!ckpt_chain_is_alike(b->items[b->at].shard.index->layout, b->layout))
			return fail_table(b, "names a base that has other tensors");
		ckpt_shard_start_open(&b->items[b->at].shard);
		CKPT_AWAIT(task, b->items[b->at].shard.task.finished);
		r = b->items[b->at].shard.task.result;
		if (r < 0)
			return fail_base(b, r);
		r = take(b);
		if (r < 0)
			return r;
	}
	return check_chain(b);
	CKPT_TASK_END(task);
}

static int shut_body(struct ckpt_task *task)
{
	struct ckpt_bases *b = bases_of(task);

	CKPT_TASK_BEGIN(task);
	for (b->at = 0; b->at < b->count; b->at++) {
		ckpt_shard_start_shut(&b->items[b->at].shard);
		CKPT_AWAIT(task, b->items[b->at].shard.task.finished);
	}
	CKPT_TASK_END(task);
}

static void bases_done(struct ckpt_task *task)
{
	ckpt_task_wake(bases_of(task)->waiter);
}

void ckpt_bases_start_open(struct ckpt_bases *bases)
{
	CKPT_ASSERT(bases->encoded->base_count > 0 && bases->count == 0);
	ckpt_task_start(&bases->task, &bases->core->sched, open_body, bases_done);
}

void ckpt_bases_start_shut(struct ckpt_bases *bases)
{
	ckpt_task_start(&bases->task, &bases->core->sched, shut_body, bases_done);
}

void ckpt_bases_clear(struct ckpt_bases *bases)
{
	CKPT_ASSERT(!ckpt_task_active(&bases->task));
	for (unsigned i = 0; i < bases->count; i++) {
		struct ckpt_base *base = &bases->items[i];

		ckpt_shard_clear(&base->shard);
		ckpt_rank_lister_clear(&base->lister);
		ckpt_encoded_free(base->plain);
	}
	ckpt_free(bases->items);
	*bases = (struct ckpt_bases){0};
}
