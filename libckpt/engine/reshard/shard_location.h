/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a step whose files lie in the store of another node. Where every node has a store of its own, they
 * are not missing in this one. The step's directory is listed, once; a rank is elsewhere if it has no index
 * there, and of the node that wrote it no other file is: what is this node's is not to depend on the name that
 * the host has today, on the machine that a copy was brought to, or on the disk that the node has now.
 *
 * Who reads the step's shards looks for those of repaired ranks in the same list.
 */
#ifndef CKPT_ENGINE_RESHARD_SHARD_LOCATION_H
#define CKPT_ENGINE_RESHARD_SHARD_LOCATION_H

#include "engine/lineage/rank_files.h"
#include "engine/lineage/select_step.h"

struct ckpt_shard_location {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* When it has finished. */
	bool *ranks; /* of each rank: whether it is; NULL: none is */
	uint32_t count;

	struct ckpt_rank_lister lister; /* of the step; may be wanted by others from the start on */

	/* Its own. */
	struct ckpt_rank_lister_wait wait;
};

/*
 * Zeroed, but for what comes before the first blank line. Of a store that all nodes share no rank is, and nothing is
 * listed before somebody wants it.
 */
void ckpt_shard_location_start(struct ckpt_shard_location *elsewhere);
/* In the place of the above, for who wants the lister alone: nothing runs, no rank is elsewhere. */
void ckpt_shard_location_init_lister(struct ckpt_shard_location *elsewhere);
/* Ended, or zero. */
bool ckpt_shard_location_has(const struct ckpt_shard_location *elsewhere, uint32_t rank);
/* Every rank of the step is. */
bool ckpt_shard_location_has_all(const struct ckpt_shard_location *elsewhere);
/* The lowest one. There is one. */
uint32_t ckpt_shard_location_first(const struct ckpt_shard_location *elsewhere);
/*
 * CKPT_EOTHERNODE, worded into `err`: what cannot be had (of which tensor; NULL: of none), and that the files of
 * this rank, which is elsewhere, may help.
 */
int ckpt_shard_location_fail(const struct ckpt_shard_location *elsewhere, uint32_t rank,
	const char *tensor, const char *what, struct ckpt_error *err);
/* After the end, or never started. */
void ckpt_shard_location_clear(struct ckpt_shard_location *elsewhere);

#endif
