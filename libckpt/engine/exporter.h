/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store that an export writes to: another directory, which becomes a store of the same run that
 * holds the step. Same order as a save: marker and claim, shards, indexes, directory, manifest.
 *
 * The newest claim there is locked meanwhile, as its holder would: no live job, and no second export,
 * works beside this one.
 *
 * One that was interrupted, or that the network let down, leaves what it has: the next one goes on with it.
 *
 * If the files of some ranks only are wanted the destination becomes a store that says so (its marker's scope), and
 * more of them may be added to a step that is there: each rank's index says that its shard is whole. So before its
 * manifest is published there, what is left of indexes of other ranks goes; in the store of a node what is left of their
 * shards goes, too.
 */
#ifndef CKPT_ENGINE_EXPORTER_H
#define CKPT_ENGINE_EXPORTER_H

#include "engine/chunkset.h"
#include "engine/fetch.h"
#include "engine/holders.h"
#include "engine/pick.h"
#include "engine/rankset.h"
#include "engine/shard.h"

struct ckpt_exporter {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_pick *pick;
	struct ckpt_rankset ranks;          /* the files of which go there; borrowed */
	const struct ckpt_holders *catalog; /* NULL: none goes along */
	struct ckpt_core_place place;
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	atomic_uint_fast64_t *
		counter; /* bytes that are there, and verified, are added; NULL: no shard is written */
	struct ckpt_task *waiter;

	struct ckpt_store *store; /* NULL: not open */
	struct ckpt_object file;  /* the shard being written; fd -1: none */
	uint64_t unit;            /* what it is written in; 0: as one likes */
	bool publish_tried;       /* the manifest may be there: nothing is taken back any more */
	bool there;               /* the destination has the step already: the same manifest */
	bool partial; /* it is a store of some ranks, or of a node: of such a step there may be more to come */
	bool have; /* the rank that was looked for is there, whole */
	/* What there is of it, if that is not all; its file is not open: nothing. And which chunks it has not. */
	struct ckpt_shard left;
	struct ckpt_chunkset left_bad;

	/* Its own. */
	const struct ckpt_shard *shard;
	struct ckpt_fetch look;
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
	size_t at;                 /* in the claims of the source, then in `names` */
	struct ckpt_listing names; /* what is there of the step */
	uint32_t undo_from;        /* ranks from this one */
	uint32_t undo_to; /* to the one before this one may have left files that go if it fails */
	uint32_t rank;
	bool adds; /* to a step that was there: what of it is whole stays, whatever follows */
	bool locked;
	bool dirs_made;
	bool catalog_made;
	bool stray_shards; /* indexes of ranks that are not wanted have gone, and now their shards go */
	bool came;         /* a marker, since it was looked for */
	uint64_t looked_ns; /* at the tombstone, and then at what is there, last */
	unsigned looks;
	char path[CKPT_PATH_MAX];
};

/* Zeroed, but for core, pick, catalog, place, stop, err, counter and waiter. */
void ckpt_exporter_init(struct ckpt_exporter *exporter);

/* One after the other, each awaited. */

/* Opens the destination and makes it a store with a place for the step. -EEXIST: it has another of that number. */
void ckpt_exporter_start_prepare(struct ckpt_exporter *exporter);
/*
 * It has the step: whether all files of it that are wanted are there, with their sizes, and their indexes are good.
 * Then the end, or, if it is partial and something is not, what follows.
 */
void ckpt_exporter_start_check(struct ckpt_exporter *exporter);
/* To the step that is there its ranks are added, as to one that is not. */
bool ckpt_exporter_may_add(const struct ckpt_exporter *exporter, int code);
void ckpt_exporter_start_add(struct ckpt_exporter *exporter);
/* Looks for what is there of a rank. The index of `shard` is there; of what it says `have`, or `left`. */
void ckpt_exporter_start_look(struct ckpt_exporter *exporter, const struct ckpt_shard *shard);
/* Begins the shard of the rank that was looked for; its bytes are for fetch.h to write. */
void ckpt_exporter_start_shard(struct ckpt_exporter *exporter);
/* Seals that shard and writes its index. */
void ckpt_exporter_start_seal(struct ckpt_exporter *exporter);
/* Publishes. */
void ckpt_exporter_start_commit(struct ckpt_exporter *exporter);
/*
 * Ends, with the code of the whole: takes back what was written, unless a manifest may be there or it can be gone
 * on with; unlocks; closes. Always succeeds.
 */
void ckpt_exporter_start_end(struct ckpt_exporter *exporter, int code);

/* After the end, or never started. */
void ckpt_exporter_clear(struct ckpt_exporter *exporter);

#endif
