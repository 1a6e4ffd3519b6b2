/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files of its ranks a step has, by a listing of its directory. A rank's files have the attempt that the manifest
 * names, unless the rank was repaired: then a shard and an index of another attempt are in their place (FORMAT.md,
 * section 6).
 */
#ifndef CKPT_ENGINE_LINEAGE_RANK_FILES_H
#define CKPT_ENGINE_LINEAGE_RANK_FILES_H

#include <string.h>
#include "base/task.h"
#include "store/store.h"

/* Which file of a rank. */
struct ckpt_rank_file_name {
	enum ckpt_rank_file form;
	char attempt[CKPT_ATTEMPT_CHARS];
};

static inline bool ckpt_rank_file_name_equal(
	const struct ckpt_rank_file_name *a, const struct ckpt_rank_file_name *b)
{
	return a->form == b->form && strcmp(a->attempt, b->attempt) == 0;
}

/* Zero is empty. */
struct ckpt_rank_files {
	struct ckpt_listing listing;
	const char **
		names; /* of ranks' files, in the listing's order: those of a rank follow one another */
	size_t count;
};

/* Takes the names of `listing` over, and leaves it empty. -ENOMEM: it is as it was. */
int ckpt_rank_files_take(struct ckpt_rank_files *files, struct ckpt_listing *listing);
void ckpt_rank_files_clear(struct ckpt_rank_files *files);

/* Of each kind that is asked for below, CKPT_RANK_SHARD stands for a shard in either form, plain or encoded. */
static inline bool ckpt_rank_file_is(enum ckpt_rank_file file, enum ckpt_rank_file kind)
{
	return file == kind || (kind == CKPT_RANK_SHARD && file == CKPT_RANK_ENCODED);
}

/* Whether the rank has any file of that kind. */
bool ckpt_rank_files_has(
	const struct ckpt_rank_files *files, uint32_t rank, enum ckpt_rank_file kind);
/* Whether it has an index and, of the same attempt, a shard: an index is published when its shard is whole. */
bool ckpt_rank_files_has_both(const struct ckpt_rank_files *files, uint32_t rank);
/* Whether it has that file of this attempt. */
bool ckpt_rank_files_has_attempt(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, const char *attempt);
/* Goes to the next attempt of which the rank has a file of that kind; `attempt` is empty at first. False: no more. */
bool ckpt_rank_files_next(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, char attempt[CKPT_ATTEMPT_CHARS]);
/* The file that the rank has of that kind and attempt: of a shard that is there in both forms the plain one. */
enum ckpt_rank_file ckpt_rank_files_form(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, const char *attempt);

/*
 * Goes to the next file of that kind, and says what it is: of a shard that is there in both forms the plain one comes
 * first, and then the encoded one. Its attempt is empty at first. False: no more.
 */
bool ckpt_rank_files_next_file(const struct ckpt_rank_files *files, uint32_t rank,
	enum ckpt_rank_file kind, struct ckpt_rank_file_name *name);
/* The same, of shards that have no index of their attempt: they were begun, and nobody has finished them yet. */
bool ckpt_rank_files_next_unfinished(
	const struct ckpt_rank_files *files, uint32_t rank, struct ckpt_rank_file_name *name);

/*
 * The same for many readers of one step: the directory is listed when the first one asks, and once for all of them. A
 * bucket is not listed for each of a thousand ranks.
 */
struct ckpt_rank_lister_wait {
	struct ckpt_task *task;
	struct ckpt_rank_lister_wait *next;
	bool done;
};

/*
 * A list may be older than a repair, or a recode, which goes from rank to rank. So many times at most it is made again for a
 * file that is not in it then, either.
 */
#define CKPT_RANK_LISTER_AGAIN 8

struct ckpt_rank_lister {
	struct ckpt_store *store;
	struct ckpt_sched *sched;
	uint64_t generation;
	uint64_t step;
	const int *stop; /* not 0: give up; NULL: nobody says so */

	/* After a wait. */
	int result; /* 0: `files` is what there is, nothing if there is no directory; else `err` says why not */
	struct ckpt_rank_files files;
	struct ckpt_error err;

	/* Its own. */
	struct ckpt_task task;
	struct ckpt_store_op op;
	struct ckpt_error said; /* by the store */
	struct ckpt_rank_lister_wait *waits;
	unsigned begun; /* lists, so far */
	unsigned lists; /* of them, ended: one at a time */
	unsigned vain;  /* of those that were made again, less the files that they have brought */
};

/*
 * Zeroed, but for what comes before the first blank line. Await `wait->done`: `task` is woken for it, and `wait` is the
 * lister's until then. A listing that has failed is not tried again.
 */
void ckpt_rank_lister_want(struct ckpt_rank_lister *lister, struct ckpt_rank_lister_wait *wait,
	struct ckpt_task *task);
/*
 * The same, of a list that is made anew. The one that is waited for may have been begun before: compare `lists` with
 * `begun` as it was. False: it is not made, as it was often enough, or has failed.
 */
bool ckpt_rank_lister_want_again(struct ckpt_rank_lister *lister,
	struct ckpt_rank_lister_wait *wait, struct ckpt_task *task);
/* The list has a file that was asked for, and was not in an earlier one: it was not made in vain. */
void ckpt_rank_lister_found(struct ckpt_rank_lister *lister);
/* Nobody waits. */
void ckpt_rank_lister_clear(struct ckpt_rank_lister *lister);

#endif
