/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store that an export writes to: another directory, which becomes a store of the same run that
 * holds the step. Same order as a save: marker and claim, shards, indexes, directory, manifest.
 *
 * The newest claim there is locked meanwhile, as its holder would: no live job, and no second export,
 * works beside this one.
 */
#ifndef CKPT_ENGINE_EXPORTER_H
#define CKPT_ENGINE_EXPORTER_H

#include "engine/holders.h"
#include "engine/pick.h"
#include "engine/shard.h"

struct ckpt_exporter {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_pick *pick;
	const struct ckpt_holders *catalog; /* NULL: none goes along */
	struct ckpt_core_place place;
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	struct ckpt_store *store; /* NULL: not open */
	struct ckpt_object file;  /* the shard being written; fd -1: none */
	uint64_t unit;            /* what it is written in; 0: as one likes */
	bool publish_tried;       /* the manifest may be there: nothing is taken back any more */

	/* Its own. */
	const struct ckpt_shard *shard;
	struct ckpt_store_op op;
	struct ckpt_object lock;
	char *marker;
	uint64_t marker_length;
	char *claim;
	uint64_t claim_length;
	uint64_t newest;
	size_t at;            /* in the claims of the source */
	uint32_t ranks_begun; /* those before it may have left files */
	uint32_t rank;
	bool dirs_made;
	bool catalog_made;
	char path[CKPT_PATH_MAX];
};

/* Zeroed, but for core, pick, catalog, place, stop, err and waiter. */
void ckpt_exporter_init(struct ckpt_exporter *exporter);

/* One after the other, each awaited. */

/* Opens the destination and makes it a store with a place for the step. -EEXIST: it has it already. */
void ckpt_exporter_start_prepare(struct ckpt_exporter *exporter);
/* Begins a rank's shard; its bytes are for fetch.h to write. The index of `shard` is there. */
void ckpt_exporter_start_shard(struct ckpt_exporter *exporter, const struct ckpt_shard *shard);
/* Seals that shard and writes its index. */
void ckpt_exporter_start_seal(struct ckpt_exporter *exporter);
/* Publishes. */
void ckpt_exporter_start_commit(struct ckpt_exporter *exporter);
/* Ends: takes back what was written, unless a manifest may be there; unlocks; closes. Always succeeds. */
void ckpt_exporter_start_end(struct ckpt_exporter *exporter);

/* After the end, or never started. */
void ckpt_exporter_clear(struct ckpt_exporter *exporter);

#endif
