/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One committed step on its way into the remote store: shards and indexes of this rank first, each confirmed, then,
 * by rank 0 and once the indexes of all ranks are there, the manifest. What is there already is not sent again:
 * an index is there only when its shard is. So the same upload is started again and again, until it has committed.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_H
#define CKPT_ENGINE_COPY_UPLOAD_H

#include "engine/copy/shard_copy.h"
#include "engine/lineage/rank_files.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/catalog_map_reader.h"
#include "engine/reshard/shard_location.h"

struct ckpt_upload {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *dest;
	uint64_t generation;
	uint64_t step;
	bool all; /* of whichever rank files are here, they are sent; else only this rank's own */
	bool parent; /* the claim that is there goes on from it: one that has a tombstone may go all the same */
	const struct ckpt_staged_shard
		*left;   /* what the pool may still have of this rank's shard; NULL: nothing */
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	atomic_uint_fast64_t *counter; /* bytes of shards that were verified and sent are added */
	struct ckpt_rate_limit
		*rate_limit; /* for the bytes of shards; NULL: the store has the bound */
	atomic_uint_fast64_t *bytes_left; /* those that the pool had, too */
	struct ckpt_task *waiter;

	/*
	 * When it has finished with 0: whether the remote store holds the step; else this rank has done its part.
	 * CKPT_ENOSTEP: the step is neither here any more nor there, or was never committed. CKPT_EINUSE: the files of `rank` are being
	 * sent there by somebody else, or a directory is held by another process.
	 */
	bool committed;
	bool misled;      /* what the pool had was something else: without it then */
	bool differs;     /* a file of the step there is not the same as here: nobody can send it */
	bool deleting;    /* neither: it has a tombstone there, and is not sent */
	bool found;       /* if it is going: its manifest is there yet */
	bool complete;    /* if it has not: all ranks' parts are there */
	uint32_t missing; /* if they are not: the lowest rank whose part is not */
	bool outdone; /* if it has not: a later claim is there than this rank, which is not 0, has heard of */
	uint32_t rank; /* whose files it was at last; after `committed` it says nothing */

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_error said;  /* by the remote store, of its failures */
	struct ckpt_select pick; /* manifest and lock of the step, here */
	/* Of the newest claim there, shared, in a directory: no export works beside this one. */
	struct ckpt_object lock;
	uint64_t newest; /* its generation */
	struct ckpt_shard_location elsewhere;
	ckpt_task_fn *then; /* what comes after ckpt_upload_look(), the fence, or a comparison */
	bool lists;         /* it lists the step as well */
	struct ckpt_rank_files there; /* what the remote store has of the step */
	uint64_t looked_ns;           /* when the tombstone was last looked at ... */
	uint64_t listed_ns;           /* ... and for that list */
	unsigned rounds;              /* of both */
	struct ckpt_shard shard;
	struct ckpt_shard_copy copy;
	unsigned
		looked; /* 0 to 3: which file of the rank was looked for; not 0: its index is there */
	/* What is compared: a small file there, by its path, with these bytes. */
	char path[CKPT_PATH_MAX];
	const void *own;
	uint64_t own_length;
	struct ckpt_rank_file_name leftover; /* the one that was removed last */
	struct ckpt_catalog_map_reader *catalog;
	int code;
};

/* Zeroed, but for what comes before the first blank line. */
void ckpt_upload_start(struct ckpt_upload *upload);

#endif
