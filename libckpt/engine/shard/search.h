/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a rank's files is tried, and which one after it. The attempt that the manifest names comes first; a shard of
 * it may be there in either form, plain or encoded. Then come those that the step's directory has besides: a repaired
 * rank has files of another attempt, and a copy that was begun in one form and finished in the other has left both.
 */
#ifndef CKPT_ENGINE_SHARD_SEARCH_H
#define CKPT_ENGINE_SHARD_SEARCH_H

#include "base/error.h"
#include "engine/lineage/rank_files.h"
#include "format/manifest.h"

/* Files of one rank that are remembered. If it has more bad ones these may be read again. */
#define CKPT_SHARD_TRIED 10

struct ckpt_shard_search {
	uint32_t rank;
	enum ckpt_rank_file kind;
	struct ckpt_rank_lister *lister; /* NULL: no other attempt is tried */
	/* The names of the manifest's attempt, in the order in which they are tried; none once another file is. */
	struct ckpt_rank_file_name own[2];
	unsigned own_count;
	unsigned own_at;
	struct ckpt_rank_file_name listed; /* the last one that the list has given ... */
	unsigned listed_in;                /* ... which was list number so much */
	/* Those that were tried, so that no list makes them be tried again: no name is used twice. */
	struct ckpt_rank_file_name tried[CKPT_SHARD_TRIED];
	unsigned tried_count;
	struct ckpt_rank_lister_wait wait; /* for the list */
	bool missing;                      /* a file that was tried is not there ... */
	unsigned missing_after;            /* ... since so many lists were begun */
	/* Of the files that are no good the one that is told. */
	struct ckpt_error first;
	struct ckpt_rank_file_name first_name;
	bool first_open; /* it could be opened */
};

/* `form` of a shard is tried before the other one. The first file to try. */
void ckpt_shard_search_begin(struct ckpt_shard_search *search,
	const struct ckpt_manifest_rank *rank, enum ckpt_rank_file form,
	struct ckpt_rank_lister *lister, struct ckpt_rank_file_name *ret_name);
/* The file is not there: goes to the other form of the manifest's attempt. False: that was tried, or is not meant. */
bool ckpt_shard_search_turn(struct ckpt_shard_search *search, struct ckpt_rank_file_name *name);
/* Tries the names of the manifest's attempt once more. */
void ckpt_shard_search_restart(struct ckpt_shard_search *search, struct ckpt_rank_file_name *name);
/* Only the file that its owner names is meant from now on. */
void ckpt_shard_search_fix(struct ckpt_shard_search *search);

/* The file is not there: one that a repair has put in its place since may come with a newer list. */
void ckpt_shard_search_miss(struct ckpt_shard_search *search);
/* Why the file is no good. `open`: it could be opened. Of several files one is told. */
void ckpt_shard_search_keep(struct ckpt_shard_search *search,
	const struct ckpt_rank_file_name *name, const struct ckpt_error *why, bool open);

/* Await `wait.done`. */
void ckpt_shard_search_list(struct ckpt_shard_search *search, struct ckpt_task *task);
/*
 * After that: goes to the next file. 1: the list is made anew; await it, and call this again. -ENOENT: there is none,
 * and `err` is that of the file that is told. Another code less than 0: that is not known, and `err` says why.
 */
int ckpt_shard_search_next(struct ckpt_shard_search *search, struct ckpt_task *task,
	struct ckpt_rank_file_name *name, struct ckpt_error *err);

#endif
