/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repairing a step that was found damaged here: every rank's files that are here are verified, chunk by chunk. For those
 * that are bad new files are written: the chunks that are good here come from here, and only the others from the remote
 * store, all of them verified. The new files have an attempt of their own. The old ones are removed when these are whole
 * and durable. So where it is given up the files of that rank are as they were.
 *
 * Two processes may repair one step at once, where locks do not reach. Each lists the step before it creates anything,
 * and removes only what is in that list, when its own files are durable. So of those who remove something the one that
 * listed last keeps its files: they are in nobody's list.
 */
#ifndef CKPT_ENGINE_COPY_REPAIR_H
#define CKPT_ENGINE_COPY_REPAIR_H

#include "engine/copy/shard_copy.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/shard_location.h"

struct ckpt_repairer {
	struct ckpt_task task; /* await `finished`, look at `result`: 0, all that is here is good */
	struct ckpt_core *core;
	struct ckpt_store *source;      /* the remote store */
	const struct ckpt_select *pick; /* the step, locked */
	const int *stop;                /* not 0: give up, with this code */
	struct ckpt_task *waiter;

	struct ckpt_error err; /* why it failed */
	/*
	 * Then: some of the step is good neither here nor there, as what was read says. False: something else kept it
	 * from being repaired, and the next one who tries may have more luck.
	 */
	bool lost;
	uint32_t repaired; /* ranks whose files were written again */
	/* What was had from there for them. */
	uint32_t indexes;
	size_t chunks;
	uint64_t bytes; /* of the chunks */

	/* Its own. */
	struct ckpt_shard_location elsewhere;
	struct ckpt_rank_lister lister; /* of what the remote store has */
	struct ckpt_rank_lister_wait wait;
	struct ckpt_shard shard;  /* what is here, perhaps with the index from there */
	struct ckpt_chunkset bad; /* of it */
	bool index_bad;
	bool size_bad; /* it is missing, or has another size */
	bool unread; /* the disk could not read some of it, this time, or it may be decodable there */
	/* Of several files here that are bad the one with the fewest bad chunks: which, and whether its size is bad. */
	struct ckpt_chunkset best_bad;
	struct ckpt_rank_file_name best;
	bool best_size_bad;
	struct ckpt_shard there; /* its shard in the remote store, with the index of `shard` */
	struct ckpt_shard_read_patch patch;
	struct ckpt_shard_copy copy;
	struct ckpt_shard_read fetch;
	struct ckpt_store_op op;
	struct ckpt_error said; /* by a store, of what `op` was asked */
	atomic_uint_fast64_t read;
	uint32_t rank;
	bool over; /* with this code */
	int code;
};

/* Zeroed, but for what comes before the first blank line. */
void ckpt_repairer_start(struct ckpt_repairer *repairer);
/* Has it look at `stop`. */
void ckpt_repairer_wake(struct ckpt_repairer *repairer);
/* What has become of the damage that was found, in the place of its own words. After a result of 0. */
void ckpt_repairer_tell(const struct ckpt_repairer *repairer, struct ckpt_error *found);

#endif
