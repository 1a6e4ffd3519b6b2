/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a step whose files are in the store of another node. If every node has its own store, these files are
 * not missing here. The step's directory is listed once. A rank is elsewhere if its index is not here and no other file
 * of the node that wrote it is. So the result does not depend on the host's current name, on the machine that a copy
 * was moved to, or on its current disk.
 *
 * The readers of the step's shards look for the files of repaired ranks in the same list.
 */
#ifndef CKPT_ENGINE_RESHARD_SHARD_LOCATION_H
#define CKPT_ENGINE_RESHARD_SHARD_LOCATION_H

#include "engine/lineage/rank_files.h"
#include "engine/lineage/select_step.h"

struct ckpt_shard_location {
	struct ckpt_task task; /* await `finished`, then look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* Results. */
	bool *ranks; /* for each rank: whether it is elsewhere; NULL: none is */
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
/* Whether every rank of the step is elsewhere. */
bool ckpt_shard_location_has_all(const struct ckpt_shard_location *elsewhere);
/* The lowest rank that is elsewhere. There must be one. */
uint32_t ckpt_shard_location_first(const struct ckpt_shard_location *elsewhere);
/*
 * Sets `err` to CKPT_EOTHERNODE: what cannot be restored (a tensor, or NULL), and that the files of this rank, which is
 * elsewhere, may help.
 */
int ckpt_shard_location_fail(const struct ckpt_shard_location *elsewhere, uint32_t rank,
	const char *tensor, const char *what, struct ckpt_error *err);
/* It has ended, or was never started. */
void ckpt_shard_location_clear(struct ckpt_shard_location *elsewhere);

#endif
