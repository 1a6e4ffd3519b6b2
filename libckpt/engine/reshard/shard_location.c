/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a step's directory to find the ranks whose files are in the store of another node. */
#include "engine/reshard/shard_location.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"

/* Texts that are sorted once, then searched. */
struct texts {
	const char **items;
	size_t count;
};

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort(struct texts *texts)
{
	if (texts->count > 0)
		qsort(texts->items, texts->count, sizeof(*texts->items), by_text);
}

static bool holds(const struct texts *texts, const char *text)
{
	return texts->count > 0 &&
	       bsearch(&text, texts->items, texts->count, sizeof(*texts->items), by_text) != NULL;
}

static struct ckpt_shard_location *elsewhere_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard_location, task);
}

/* Notes the ranks without an index there, and the nodes of which any file is. */
static void look(const struct ckpt_shard_location *e, bool *absent, struct texts *nodes)
{
	const struct ckpt_rank_files *files = &e->lister.files;

	for (uint32_t i = 0; i < e->pick->manifest.world; i++) {
		absent[i] = !ckpt_rank_files_has(files, i, CKPT_RANK_INDEX);
		if (!absent[i] || ckpt_rank_files_has(files, i, CKPT_RANK_SHARD))
			nodes->items[nodes->count++] = e->pick->manifest.ranks[i].node;
	}
	sort(nodes);
}

/*
 * A rank without an index is elsewhere if nothing of its node is here, or if only some ranks were copied here. The name
 * of this node does not count: if its disk was lost, its step is not here, but it is not damaged, least of all in the
 * stores of other nodes.
 */
static void judge(struct ckpt_shard_location *e, const struct texts *nodes)
{
	for (uint32_t i = 0; i < e->pick->manifest.world; i++) {
		const char *node = e->pick->manifest.ranks[i].node;

		e->ranks[i] = e->ranks[i] &&
			      (e->core->lineage->marker.partial || (*node && !holds(nodes, node)));
		e->count += e->ranks[i];
	}
}

static int take_listing(struct ckpt_shard_location *e)
{
	uint32_t world = e->pick->manifest.world;
	struct texts nodes = {.items = ckpt_alloc_array(world, sizeof(*nodes.items))};
	bool *ranks = ckpt_alloc_array(world, sizeof(*ranks));

	if (nodes.items && ranks) {
		look(e, ranks, &nodes);
		e->ranks = ranks;
		judge(e, &nodes);
	} else {
		ckpt_free(ranks);
	}
	ckpt_free(nodes.items);
	return e->ranks ? 0
			: ckpt_fail(e->err, -ENOMEM, "out of memory for the names of %u ranks",
				  world);
}

static int elsewhere_body(struct ckpt_task *task)
{
	struct ckpt_shard_location *e = elsewhere_of(task);

	CKPT_TASK_BEGIN(task);
	if (e->core->lineage->marker.shared)
		return 0;
	ckpt_rank_lister_want(&e->lister, &e->wait, task);
	CKPT_AWAIT(task, e->wait.done);
	if (e->lister.result < 0) {
		*e->err = e->lister.err;
		return e->lister.result;
	}
	return take_listing(e);
	CKPT_TASK_END(task);
}

static void elsewhere_done(struct ckpt_task *task)
{
	ckpt_task_wake(elsewhere_of(task)->waiter);
}

void ckpt_shard_location_init_lister(struct ckpt_shard_location *elsewhere)
{
	elsewhere->lister = (struct ckpt_rank_lister){.store = elsewhere->core->store,
		.sched = &elsewhere->core->sched,
		.generation = elsewhere->pick->chosen.generation,
		.step = elsewhere->pick->chosen.step,
		.stop = elsewhere->pick->stop};
}

void ckpt_shard_location_start(struct ckpt_shard_location *elsewhere)
{
	CKPT_ASSERT(!elsewhere->ranks && elsewhere->pick->manifest.ranks);
	ckpt_shard_location_init_lister(elsewhere);
	ckpt_task_start(&elsewhere->task, &elsewhere->core->sched, elsewhere_body, elsewhere_done);
}

bool ckpt_shard_location_has(const struct ckpt_shard_location *elsewhere, uint32_t rank)
{
	return elsewhere->ranks && elsewhere->ranks[rank];
}

bool ckpt_shard_location_has_all(const struct ckpt_shard_location *elsewhere)
{
	return elsewhere->count > 0 && elsewhere->count == elsewhere->pick->manifest.world;
}

uint32_t ckpt_shard_location_first(const struct ckpt_shard_location *elsewhere)
{
	uint32_t rank = 0;

	CKPT_ASSERT(elsewhere->count > 0);
	while (!elsewhere->ranks[rank])
		rank++;
	return rank;
}

static int note(
	const struct ckpt_shard_location *e, uint32_t rank, struct ckpt_error *err, int code)
{
	if (err) {
		err->step = (int64_t)e->pick->chosen.step;
		err->rank = (int32_t)rank;
	}
	return code;
}

/* It is unknown which other ranks are needed with those that were copied here. */
static int fail_partial(const struct ckpt_shard_location *e, uint32_t rank, const char *tensor,
	const char *what, struct ckpt_error *err)
{
	const char *node = e->pick->manifest.ranks[rank].node;
	int r = ckpt_fail_at(err, CKPT_EOTHERNODE,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->core->store), .tensor = tensor},
		"%.400s: the files of rank %u of step %llu%s%s were not copied into %s, which has "
		"the files of %u of %u ranks: copy them as well (ckpt-restore --rank %u), or start "
		"the job on the node that has them",
		what, rank, (unsigned long long)e->pick->chosen.step, *node ? " on node " : "",
		node, e->core->parts.label, e->pick->manifest.world - e->count,
		e->pick->manifest.world, rank);

	return note(e, rank, err, r);
}

/* It is unknown here whether the node that wrote it still has it. */
static int fail_all(const struct ckpt_shard_location *e, uint32_t rank, const char *tensor,
	const char *what, struct ckpt_error *err)
{
	int r = ckpt_fail_at(err, CKPT_EOTHERNODE,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->core->store), .tensor = tensor},
		"%.400s: %s has no file of step %llu, which rank %u wrote on node %s; start the "
		"job there, or copy that node's files of the step here",
		what, e->core->parts.label, (unsigned long long)e->pick->chosen.step, rank,
		e->pick->manifest.ranks[rank].node);

	return note(e, rank, err, r);
}

int ckpt_shard_location_fail(const struct ckpt_shard_location *elsewhere, uint32_t rank,
	const char *tensor, const char *what, struct ckpt_error *err)
{
	const char *node = elsewhere->pick->manifest.ranks[rank].node;
	unsigned long long step = elsewhere->pick->chosen.step;
	bool own = strcmp(node, elsewhere->core->config.node) == 0;
	char more[48] = "";

	CKPT_ASSERT(ckpt_shard_location_has(elsewhere, rank));
	if (elsewhere->core->lineage->marker.partial)
		return fail_partial(elsewhere, rank, tensor, what, err);
	if (ckpt_shard_location_has_all(elsewhere))
		return fail_all(elsewhere, rank, tensor, what, err);
	if (elsewhere->count > 1)
		(void)snprintf(more, sizeof(more), " (%u of %u ranks are elsewhere)",
			elsewhere->count, elsewhere->pick->manifest.world);
	int r = ckpt_fail_at(err, CKPT_EOTHERNODE,
		&(struct ckpt_where){
			.tier = ckpt_store_tier(elsewhere->core->store), .tensor = tensor},
		"%.400s: the files of rank %u of step %llu are in the store of node %s%s%s; start "
		"the job on the node that has it, or copy that node's files of the step into %s",
		what, rank, step, node, own ? ", which had this node's name but another disk" : "",
		more, elsewhere->core->parts.label);
	return note(elsewhere, rank, err, r);
}

void ckpt_shard_location_clear(struct ckpt_shard_location *elsewhere)
{
	CKPT_ASSERT(!ckpt_task_active(&elsewhere->task));
	ckpt_free(elsewhere->ranks);
	ckpt_rank_lister_clear(&elsewhere->lister);
	*elsewhere = (struct ckpt_shard_location){0};
}
