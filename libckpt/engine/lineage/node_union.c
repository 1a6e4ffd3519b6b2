/* SPDX-License-Identifier: Apache-2.0 */
/* What all records together say. */
#include "engine/lineage/node_union.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

int ckpt_node_union_init(struct ckpt_node_union *u, struct ckpt_node_record *all, uint32_t world)
{
	u->all = all;
	u->leaders = ckpt_alloc_array(world, sizeof(*u->leaders));
	return u->leaders ? 0 : -ENOMEM;
}

void ckpt_node_union_clear(struct ckpt_node_union *u)
{
	ckpt_free(u->leaders);
	u->leaders = NULL;
}

int ckpt_node_union_check_run(
	struct ckpt_node_union *u, const struct ckpt_node_record *record, struct ckpt_error *err)
{
	if (strcmp(record->run_id, CKPT_NODE_NO_RUN) == 0)
		return 0;
	if (strcmp(u->all->run_id, CKPT_NODE_NO_RUN) == 0) {
		memcpy(u->all->run_id, record->run_id, sizeof(u->all->run_id));
		u->run_rank = record->rank;
		memcpy(u->run_node, record->node, sizeof(u->run_node));
		return 0;
	}
	if (strcmp(u->all->run_id, record->run_id) == 0)
		return 0;
	return ckpt_fail(err, CKPT_EMISMATCH,
		"the store of rank %u on node %s is of another run than that of rank %u on node "
		"%s: give every node the directory that this job has written there, or a new one",
		record->rank, record->node, u->run_rank, u->run_node);
}

/* Manifests tell nodes apart by their names: two stores of one name would each miss the other's files. */
static int check_name(
	struct ckpt_node_union *u, const struct ckpt_node_record *record, struct ckpt_error *err)
{
	if (!record->keeps)
		return 0;
	for (uint32_t i = 0; i < u->leader_count; i++)
		if (strcmp(u->leaders[i].node, record->node) == 0)
			return ckpt_fail(err, CKPT_EMISMATCH,
				"ranks %u and %u each keep a store of node %s: give every node a "
				"name of its own (ckpt_engine_opts.node, in Python LIBCKPT_NODE), "
				"and all its ranks one directory and one keeper",
				u->leaders[i].rank, record->rank, record->node);
	struct ckpt_node_leader *leader = &u->leaders[u->leader_count++];
	leader->rank = record->rank;
	memcpy(leader->node, record->node, sizeof(leader->node));
	return 0;
}

/* What every node leader has is older than what some lack. */
static void lower(struct ckpt_node_union *u, const struct ckpt_node_record *record)
{
	struct ckpt_node_item claim = {.generation = record->newest, .step = CKPT_STEP_MAX};
	struct ckpt_node_item step = {0};

	if (record->step_count > 0)
		step = record->steps[0];
	if (!u->any || ckpt_node_item_order(&claim, &u->low_claim) < 0)
		u->low_claim = claim;
	if (!u->any || ckpt_node_item_order(&step, &u->low_step) < 0)
		u->low_step = step;
	u->any = true;
}

int ckpt_node_union_add(
	struct ckpt_node_union *u, const struct ckpt_node_record *record, struct ckpt_error *err)
{
	int r = ckpt_node_union_check_run(u, record, err);

	if (r == 0)
		r = check_name(u, record, err);
	if (r < 0)
		return r;
	if (record->keeps)
		lower(u, record);
	ckpt_node_record_unite(u->all, record);
	return 0;
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
static int check_claims(const struct ckpt_node_record *all, struct ckpt_error *err)
{
	for (size_t i = 1; i < all->claim_count; i++) {
		const struct ckpt_node_item *a = &all->claims[i - 1];
		const struct ckpt_node_item *b = &all->claims[i];
		if (a->generation == b->generation)
			return ckpt_fail(err, CKPT_EMISMATCH,
				"generation %llu is one thing in the store of rank %u and another "
				"in that of rank %u: starts of the job on some of its nodes did "
				"not know of each other; go on with the nodes of one of them, and "
				"give the others new directories",
				(unsigned long long)a->generation, a->from, b->from);
	}
	return 0;
}

int ckpt_node_union_finish(struct ckpt_node_union *u, struct ckpt_error *err)
{
	struct ckpt_node_record *all = u->all;

	int r = check_claims(all, err);
	if (r < 0)
		return r;
	u->step_count = all->step_count;
	memcpy(u->steps, all->steps, sizeof(u->steps));
	all->claim_count = count_lacking(all->claims, all->claim_count, &u->low_claim);
	all->step_count = keep_lacking(all, &u->low_step);
	all->open_count = 0;
	return 0;
}
