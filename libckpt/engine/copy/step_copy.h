/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store that an export writes to: another directory, which becomes a store of the same run that
 * holds the step. Same order as a save: marker and claim, shards, indexes, directory, manifest.
 *
 * The newest claim there is locked meanwhile, as its holder would: no live job, no second export, and no upload into
 * the directory works beside this one.
 *
 * One that was interrupted, or that the network let down, leaves what it has: the next one goes on with it.
 *
 * If the files of some ranks only are wanted the destination becomes a store that says so (its marker's scope), and
 * more of them may be added to a step that is there: each rank's index says that its shard is whole. So before its
 * manifest is published there, what is left of indexes of other ranks goes; in the store of a node what is left of their
 * shards goes, too.
 */
#ifndef CKPT_ENGINE_COPY_STEP_COPY_H
#define CKPT_ENGINE_COPY_STEP_COPY_H

#include "engine/copy/shard_copy.h"
#include "engine/core/rankset.h"
#include "engine/lineage/rank_files.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/catalog_map.h"
#include "engine/shard/chunkset.h"

struct ckpt_step_copy {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	struct ckpt_rankset ranks;              /* the files of which go there; borrowed */
	const struct ckpt_catalog_map *catalog; /* NULL: none goes along */
	struct ckpt_core_place place;
	bool plain;      /* encoded shards are decoded, and stored plain */
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	atomic_uint_fast64_t *
		counter; /* bytes that are there, and verified, are added; NULL: no shard is written */
	struct ckpt_task *waiter;

	struct ckpt_store *store; /* NULL: not open */
	bool publish_tried;       /* the manifest may be there: nothing is taken back any more */
	bool there;               /* the destination has the step already: the same manifest */
	bool partial; /* it is a store of some ranks, or of a node: of such a step there may be more to come */
	bool have; /* the rank that was looked for is there, whole */
	/* What there is of it, if that is not all; its file is not open: nothing. And which chunks it has not. */
	struct ckpt_shard left;
	struct ckpt_chunkset left_bad;

	/* Its own. */
	struct ckpt_shard *shard;
	struct ckpt_shard_copy copy; /* of it */
	struct ckpt_shard_read_patch patch;
	struct ckpt_shard_read look;
	uint64_t left_size;
	atomic_uint_fast64_t looked; /* at bytes: nobody asks */
	struct ckpt_error aside;     /* what is wrong with what is there is no failure */
	int code;                    /* with which it ends */
	struct ckpt_store_op op;
	struct ckpt_object lock;
	char *marker;
	uint64_t marker_length;
	char *claim;
	uint64_t claim_length;
	uint64_t newest;
	size_t at;                      /* in the claims of the source, then in `names` */
	struct ckpt_rank_files names;   /* what is there of the step */
	struct ckpt_rank_lister lister; /* the same, before anything was copied */
	struct ckpt_rank_lister_wait wait;
	char index_attempt[CKPT_ATTEMPT_CHARS]; /* of the index that `left` has */
	struct ckpt_rank_file_name unfinished;  /* the leftover that was removed last */
	uint32_t undo_from;                     /* ranks from this one */
	uint32_t undo_to; /* to the one before this one may have left files that go if it fails */
	uint32_t rank;
	bool full;  /* what was there of the rank was removed to make room */
	bool again; /* the files of the rank were begun before, and removed */
	bool adds;  /* to a step that was there: what of it is whole stays, whatever follows */
	bool locked;
	bool dirs_made;
	bool catalog_made;
	bool forms_listed; /* `names` has what was there before a shard was copied */
	bool stray_shards; /* indexes of ranks that are not wanted have gone, and now their shards go */
	bool came;         /* a marker, since it was looked for */
	uint64_t looked_ns; /* at the tombstone, and then at what is there, last */
	unsigned looks;
	char path[CKPT_PATH_MAX];
};

/* Zeroed, but for core, pick, catalog, place, plain, stop, err, counter and waiter. */
void ckpt_step_copy_init(struct ckpt_step_copy *step_copy);

/* One after the other, each awaited. */

/* Opens the destination and makes it a store with a place for the step. -EEXIST: it has another of that number. */
void ckpt_step_copy_start_prepare(struct ckpt_step_copy *step_copy);
/*
 * It has the step: whether all files of it that are wanted are there, with their sizes, and their indexes are good.
 * Then the end, or, if it is partial and something is not, what follows.
 */
void ckpt_step_copy_start_check(struct ckpt_step_copy *step_copy);
/* To the step that is there its ranks are added, as to one that is not. */
bool ckpt_step_copy_may_add(const struct ckpt_step_copy *step_copy, int code);
void ckpt_step_copy_start_add(struct ckpt_step_copy *step_copy);
/* Looks for what is there of a rank. The index of `shard` is there; of what it says `have`, or `left`. */
void ckpt_step_copy_start_look(struct ckpt_step_copy *step_copy, struct ckpt_shard *shard);
/*
 * Copies the files of the rank that was looked for. Its shard is open, and its header has been read. After a failure
 * that was met in its file (ckpt_shard_copy_has_bad_source()) it may be started again, with another file of the rank.
 */
void ckpt_step_copy_start_shard(struct ckpt_step_copy *step_copy);
/* Publishes. */
void ckpt_step_copy_start_commit(struct ckpt_step_copy *step_copy);
/*
 * Ends, with the code of the whole: takes back what was written, unless a manifest may be there or it can be gone
 * on with; unlocks; closes. Always succeeds.
 */
void ckpt_step_copy_start_end(struct ckpt_step_copy *step_copy, int code);

/* After the end, or never started. */
void ckpt_step_copy_clear(struct ckpt_step_copy *step_copy);

#endif
