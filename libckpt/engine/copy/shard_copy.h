/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's files on their way into a store, for export, upload, repair and recode: a new shard, of which every chunk
 * is verified before it is written; then its index, which says that the shard is whole.
 */
#ifndef CKPT_ENGINE_COPY_SHARD_COPY_H
#define CKPT_ENGINE_COPY_SHARD_COPY_H

#include "engine/copy/shard_encode.h"
#include "engine/lineage/rank_files.h"
#include "engine/shard/read.h"
#include "engine/shard/shard.h"

struct ckpt_shard_copy {
	struct ckpt_task task;          /* await `finished`, look at `result` */
	const struct ckpt_shard *shard; /* its index is there */
	struct ckpt_store *dest;
	/*
	 * Which file is read, how, and for whom: without what `shard` and `dest` say. `core`, `stop` and `err` are used
	 * here, too. `counter` is in bytes of the shard, however long the file is that holds it.
	 */
	struct ckpt_shard_read_config read;
	const struct ckpt_stored_view
		*view; /* `file` is encoded, and is copied as it is; NULL: the new shard is plain */
	bool encodes;  /* `file` is plain, and the new shard is encoded */
	const int *stop; /* not 0: `dest` gives up what it waits for; NULL: it does not */
	bool syncs;      /* the name of the shard is durable before its index is there */
	bool fresh;      /* the rank has files there: the new ones get an attempt of their own */
	bool resumes; /* a bucket: what was begun of the shard stays, and the next try goes on with it */
	struct ckpt_task *waiter;

	char attempt[CKPT_ATTEMPT_CHARS]; /* of the new files */
	/* The new shard. After a failure it may be open: shut or abandon it. */
	struct ckpt_object file;
	bool made;        /* it was created */
	bool index_tried; /* its index may be there */
	struct ckpt_shard_read fetch;
	struct ckpt_shard_encode encode; /* with `encodes`, in the place of `fetch` */

	/* Its own. */
	struct ckpt_store_op op;
	const struct ckpt_rank_files *there;
	enum ckpt_rank_file stays; /* the form of the shard that does */
	struct ckpt_rank_file_name old;
	bool removed; /* an index */
};

/* Zeroed, but for what comes before the first blank line. One after the other, each awaited. */

/* Creates the shard, copies it, and syncs it. */
void ckpt_shard_copy_start(struct ckpt_shard_copy *copy);
/*
 * Publishes its index. -EEXIST: one of that attempt is there. After another failure it may be there: where others decide
 * by what they list, both files stay.
 */
void ckpt_shard_copy_start_index(struct ckpt_shard_copy *copy);
/*
 * Removes the new files after a failure: the index, if it was tried, and then the shard. In a bucket what was begun
 * stays (`resumes`), and is closed. Nothing is worded, and nobody is waited for but the disk.
 */
void ckpt_shard_copy_start_undo(struct ckpt_shard_copy *copy);
/*
 * Removes what `there` has of the rank, but for the new files: indexes first, so that none is without its shard. `there`
 * was listed before the new files were created: then two copies at once never remove the new files of both.
 */
void ckpt_shard_copy_start_clean(struct ckpt_shard_copy *copy, const struct ckpt_rank_files *there);
/* The same where the shard that stays was there: of copy->attempt, and in this form. */
void ckpt_shard_copy_start_clean_beside(struct ckpt_shard_copy *copy,
	const struct ckpt_rank_files *there, enum ckpt_rank_file form);

/* Has it look at `stop`. */
void ckpt_shard_copy_wake(struct ckpt_shard_copy *copy);
/* Bytes of the new file; of one that is being encoded the most that they can be. */
uint64_t ckpt_shard_copy_bytes(const struct ckpt_shard_copy *copy);
/* Whether `there` has any file of the rank. */
bool ckpt_shard_copy_is_taken(const struct ckpt_rank_files *there, uint32_t rank);
/* After a failure: what was read of the file of `shard` is bad, so that another file of the rank may be good. */
bool ckpt_shard_copy_has_bad_source(const struct ckpt_shard_copy *copy);

/* After the end, or never started. */
void ckpt_shard_copy_clear(struct ckpt_shard_copy *copy);

#endif
