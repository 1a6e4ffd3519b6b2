/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing the ranks of a step in the other form, in the store where they are: encoded, or plain. A rank whose shard has
 * the form already is left as it is. Of another one a new shard is written under an attempt of its own, read back,
 * decoded and compared with the digests; then its index is published, and then the old files are removed. So at every
 * moment the rank has files that are whole and durable, and somebody who is killed has left no more than files that mean
 * nothing, or a rank with two good sets of files. The next one uses a set that is finished, if it is good, and removes all
 * else of the rank.
 *
 * Like a reader, it takes another file of the rank where the first one is bad.
 */
#ifndef CKPT_ENGINE_COPY_RECODE_H
#define CKPT_ENGINE_COPY_RECODE_H

#include "base/task_job.h"
#include "engine/copy/shard_copy.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/shard_location.h"

struct ckpt_recode {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick; /* the step, locked */
	struct ckpt_shard_location
		*elsewhere; /* of it, ended; ranks that are elsewhere are left out */
	bool encodes;       /* shards become encoded; else plain */
	const int *stop;    /* not 0: give up, with this code */
	struct ckpt_error *err;
	atomic_uint_fast64_t *counter; /* bytes of shards that were read are added */
	struct ckpt_task *waiter;

	/* So far. */
	uint32_t ranks;        /* that were stored again */
	uint64_t bytes_before; /* of the shard files of all ranks that are here */
	uint64_t bytes_after;

	/* Its own. */
	struct ckpt_rank_lister_wait wait;
	struct ckpt_shard shard; /* as it is */
	struct ckpt_shard made;  /* the one that stays, with the index of `shard` ... */
	struct ckpt_rank_file_name made_name;
	bool kept; /* ... which an earlier one has finished */
	struct ckpt_rank_file_name unfinished;
	struct ckpt_shard_copy copy;
	struct ckpt_shard_read fetch; /* of one of both, to look at it */
	struct ckpt_chunkset bad;
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store, of what `op` was asked */
	struct ckpt_task_job job;
	atomic_uint_fast64_t looked; /* at bytes of one of both: nobody asks */
	uint64_t counted;            /* by `counter`, before the rank */
	uint32_t rank;
	int code; /* with which it ends; 0: it goes on */
};

/* Zeroed, but for what comes before the first blank line. */
void ckpt_recode_start(struct ckpt_recode *recode);
/* Has it look at `stop`. */
void ckpt_recode_wake(struct ckpt_recode *recode);

#endif
