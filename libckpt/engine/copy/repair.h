/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mending a step that was found damaged here: every rank's files that are here are verified, chunk by chunk. For those
 * that are bad new files are written: the chunks that are good here come from here, and only the others from the remote
 * store, all of them verified. A new file gets its name when it is whole and durable, and the old one has it until then.
 * So where it is given up the files of that rank are as they were.
 */
#ifndef CKPT_ENGINE_COPY_REPAIR_H
#define CKPT_ENGINE_COPY_REPAIR_H

#include "engine/lineage/select_step.h"
#include "engine/reshard/shard_location.h"
#include "engine/shard/read.h"
#include "engine/shard/shard.h"

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
	 * from being mended, and the next one who tries may have more luck.
	 */
	bool lost;
	uint32_t repaired; /* ranks whose files were written again */
	/* What was had from there for them. */
	uint32_t indexes;
	size_t chunks;
	uint64_t bytes; /* of the chunks */

	/* Its own. */
	struct ckpt_shard_location elsewhere;
	struct ckpt_listing names;
	const char *name;
	struct ckpt_shard shard;  /* what is here, perhaps with the index from there */
	struct ckpt_chunkset bad; /* of it */
	bool index_bad;
	bool index_put;
	bool size_bad;            /* it is missing, or has another size */
	bool unread;              /* the disk could not read some of it, this time */
	struct ckpt_object there; /* the shard in the remote store; fd -1: not open */
	struct ckpt_shard_read_patch patch;
	struct ckpt_object file;  /* a new one, under a name that is not its own yet */
	bool made;                /* it is there */
	char path[CKPT_PATH_MAX]; /* the name that it is for */
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
/* What has become of the damage that was found, in the place of its own words. After a result of 0. */
void ckpt_repairer_tell(const struct ckpt_repairer *repairer, struct ckpt_error *found);

#endif
