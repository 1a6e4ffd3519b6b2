/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 makes of the records of all stores of a job's nodes: which run it is, the newest claim, and what some stores
 * lack that others have. Pure.
 */
#ifndef CKPT_ENGINE_LINEAGE_NODE_UNION_H
#define CKPT_ENGINE_LINEAGE_NODE_UNION_H

#include "exchange/node_messages.h"

struct ckpt_node_leader {
	uint32_t rank;
	char node[CKPT_NODE_CHARS];
};

struct ckpt_node_union {
	struct ckpt_node_record *all; /* the owner's */
	struct ckpt_node_leader *leaders;
	uint32_t leader_count;
	uint32_t run_rank; /* whose run it is */
	char run_node[CKPT_NODE_CHARS];
	bool any; /* low_* are set */
	struct ckpt_node_item
		low_claim; /* the oldest of all node leaders' newest ones; generation 0: none */
	struct ckpt_node_item low_step;

	/* When it is finished: the commits of all stores, lacking anywhere or not. */
	struct ckpt_node_item steps[CKPT_NODE_STEPS];
	size_t step_count;
};

/* `all` has no items yet, and no run. -ENOMEM. */
int ckpt_node_union_init(struct ckpt_node_union *u, struct ckpt_node_record *all, uint32_t world);
void ckpt_node_union_clear(struct ckpt_node_union *u);
/* The record of one rank, each once. CKPT_EMISMATCH: it is of no store of this job. */
int ckpt_node_union_add(
	struct ckpt_node_union *u, const struct ckpt_node_record *record, struct ckpt_error *err);
/* CKPT_EMISMATCH: of another run: two nodes' directories were never stores of one job. */
int ckpt_node_union_check_run(
	struct ckpt_node_union *u, const struct ckpt_node_record *record, struct ckpt_error *err);
/*
 * All are added. Of the items of `all` only those stay that some store lacks. CKPT_EMISMATCH: the stores have two
 * histories.
 */
int ckpt_node_union_finish(struct ckpt_node_union *u, struct ckpt_error *err);

#endif
