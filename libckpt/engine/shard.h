/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's files of a step that was picked: its index, compared with the manifest; its shard, opened;
 * the shard's header, compared with both. What remains is for fetch.h.
 */
#ifndef CKPT_ENGINE_SHARD_H
#define CKPT_ENGINE_SHARD_H

#include "base/task_job.h"
#include "engine/core.h"
#include "format/index.h"

struct ckpt_shard {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *store; /* NULL: the core's own */
	uint64_t generation;
	uint64_t step;
	const struct ckpt_manifest_rank *rank;
	bool keep_bytes; /* of the index, as they are in the store */
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	char *index_bytes;
	uint64_t index_length;
	struct ckpt_index *index;
	struct ckpt_object file;   /* fd -1: not open */
	struct ckpt_object cached; /* the same, through the page cache; fd -1: not open */
	char *header;              /* index->layout->header_bytes of it */

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store, of what `op` was asked */
	struct ckpt_task_job job;
	char *header_memory;
	uint64_t header_read;
	char path[CKPT_PATH_MAX]; /* of the index, until it is there; then of the shard */
};

/* Zeroed, but for what comes before the blank line. */
void ckpt_shard_init(struct ckpt_shard *shard);

/*
 * One after the other, each awaited. CKPT_EINCOMPLETE: missing or short. CKPT_EINTEGRITY: longer, or it
 * differs from its digest. CKPT_EFORMAT, CKPT_EVERSION, system errors.
 */
void ckpt_shard_start_index(struct ckpt_shard *shard);
void ckpt_shard_start_open(struct ckpt_shard *shard);
/* Opens it a second time, for what other ranks on this node read. If that fails there is the first one. */
void ckpt_shard_start_share(struct ckpt_shard *shard);
void ckpt_shard_start_header(struct ckpt_shard *shard);
/* Closes what is open. Always succeeds. */
void ckpt_shard_start_shut(struct ckpt_shard *shard);

/* Frees everything. The file has been shut. */
void ckpt_shard_clear(struct ckpt_shard *shard);

#endif
