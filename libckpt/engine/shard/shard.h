/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's files of a step that was picked: its index, compared with the manifest; its shard, opened;
 * the shard's header, compared with both. What remains is for shard/read.h.
 *
 * A shard is stored plain or encoded (FORMAT.md, section 23), and whichever file is there is opened. Of an encoded one
 * the table is read and checked then. Its header is not read by itself: the index has all of it.
 *
 * Where a file is missing or bad, the rank's other files of that kind are tried (shard/search.h).
 */
#ifndef CKPT_ENGINE_SHARD_SHARD_H
#define CKPT_ENGINE_SHARD_SHARD_H

#include "base/task_job.h"
#include "engine/core/core.h"
#include "engine/shard/search.h"
#include "engine/shard/stored_view.h"
#include "format/index.h"

struct ckpt_shard {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *store; /* NULL: the core's own */
	uint64_t generation;
	uint64_t step;
	const struct ckpt_manifest_rank *rank;
	struct ckpt_rank_lister
		*lister; /* of the step in that store; NULL: no other attempt is tried */
	bool keep_bytes; /* of the index, as they are in the store; and the view: for a copy */
	const struct ckpt_core_place
		*into;   /* where it is sent, if that is a bucket: for the claim */
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	char *index_bytes;
	uint64_t index_length;
	struct ckpt_index *index;
	struct ckpt_object file;      /* fd -1: not open */
	struct ckpt_object cached;    /* the same, through the page cache; fd -1: not open */
	struct ckpt_object sole;      /* a lock: nobody else sends it there; fd -1: none */
	struct ckpt_encoded *encoded; /* what `file` is; NULL: the plain shard */
	struct ckpt_stored_view view; /* of an encoded one without bases, with `keep_bytes` */
	uint64_t
		holds; /* bytes of the shard that `file` can have: its size, or of an encoded one all */
	char *header; /* index->layout->header_bytes of it; NULL: not read, or the shard is encoded */
	struct ckpt_rank_file_name
		name; /* of the file that was tried last: of the index, then of the shard */

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store, of what `op` was asked */
	struct ckpt_task_job job;
	char *header_memory;
	uint64_t header_read;
	uint64_t file_bytes; /* of an encoded one */
	char *tail_memory;   /* its end, with the table */
	char *tail;          /* aligned */
	uint64_t tail_from;  /* where it begins in the file */
	uint64_t tail_read;  /* up to here it is there, or asked for */
	struct ckpt_encoded_trailer trailer;
	int table_code; /* why the table is no good */
	struct ckpt_shard_search search;
	bool exhausted;           /* there is no other file */
	bool other;               /* the first one could be opened: another one was asked for */
	unsigned claims;          /* how often it was to be locked, and had no name */
	char path[CKPT_PATH_MAX]; /* of the index, until it is there; then of the shard */
};

/* Zeroed, but for what comes before the blank line. */
void ckpt_shard_init(struct ckpt_shard *shard);

/*
 * One after the other, each awaited; the claim only for what is sent into a bucket. No copy of this shard is sent to
 * that place by anybody else then, of this process or another, until it is shut: so two never send parts of one upload,
 * which some gateways lose data of (Ceph 16), and whoever has left one has ended, but for requests that he had under
 * way. What is there is looked up after it: he may have sent all. CKPT_EINUSE: somebody is at it. Where it cannot be
 * locked that is not known: 0, and the log says it once. Locks are of one host, and a store in a bucket has none.
 *
 * CKPT_EINCOMPLETE: missing or short. CKPT_EINTEGRITY: longer, or it
 * differs from its digest. CKPT_EFORMAT, CKPT_EVERSION, system errors. Of several files of which none is good the first
 * one that is there is told. A plain shard that has another size is open all the same; an encoded one without a good
 * table is not.
 */
void ckpt_shard_start_claim(struct ckpt_shard *shard);
void ckpt_shard_start_index(struct ckpt_shard *shard);
void ckpt_shard_start_open(struct ckpt_shard *shard);
/*
 * Its header, or what was read of it, is no good, and `err` says why: opens the rank's next shard in its place, from
 * its header on. -ENOENT: there is none, `err` is that of the first one, and that one is open again, if it can be. Else,
 * less than 0: whether there is one is not known. After open: `cached` is shut, too.
 */
void ckpt_shard_start_other(struct ckpt_shard *shard);
/*
 * Opens a shard that was tried before, in the place of the one that is open, and no other. After open, and not after
 * share. A plain one of another size is open, and the code says so.
 */
void ckpt_shard_start_again(struct ckpt_shard *shard, const struct ckpt_rank_file_name *name);
/*
 * How a copy takes the file that is open over as it is, with `keep_bytes`. NULL: it is stored plain there, as it is here, or
 * because it has bases: what is copied needs no other step.
 */
static inline const struct ckpt_stored_view *ckpt_shard_view(const struct ckpt_shard *shard)
{
	return shard->encoded && shard->encoded->base_count == 0 ? &shard->view : NULL;
}
/* What another copy of the same bytes may help against. */
bool ckpt_shard_is_bad_copy(int code);
/* Opens it a second time, for what other ranks on this node read. If that fails there is the first one. */
void ckpt_shard_start_share(struct ckpt_shard *shard);
void ckpt_shard_start_header(struct ckpt_shard *shard);
/* Closes what is open. Always succeeds. */
void ckpt_shard_start_shut(struct ckpt_shard *shard);

/* Frees everything. The file has been shut. */
void ckpt_shard_clear(struct ckpt_shard *shard);

#endif
