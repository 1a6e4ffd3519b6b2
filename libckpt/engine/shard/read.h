/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a shard: block by block into staging slots, several at a time, each chunk compared with its
 * digest, and only then let out: into targets, into another store, or nowhere.
 *
 * A block's slot comes back once its own bytes and, where a chunk straddles its end, its successor's
 * have been let out. Blocks are begun in order, so two slots are enough to go on.
 */
#ifndef CKPT_ENGINE_SHARD_READ_H
#define CKPT_ENGINE_SHARD_READ_H

#include <stdatomic.h>
#include "engine/core/core.h"
#include "engine/core/rate_limit.h"
#include "engine/core/staged_shard.h"
#include "engine/reshard/targets.h"
#include "engine/shard/bases.h"
#include "engine/shard/chunkset.h"
#include "engine/shard/decoders.h"
#include "engine/shard/findings.h"
#include "engine/shard/stored_plan.h"
#include "staging/reader_quota.h"

/* Blocks under way at most, however large the pool. */
#define CKPT_SHARD_READ_DEPTH     64
/* The same, of what does not go through the pool's slots: as many of the core's blocks in bytes, and two at least, three in a copy. */
#define CKPT_SHARD_READ_OWN       4
/* The greatest chunk that can be read. */
#define CKPT_SHARD_READ_CHUNK_MAX (UINT32_C(64) << 20)

/*
 * Another copy of the shard, and which chunks come from there. A plain one is opened cached: only these chunks are read
 * of it. Of an encoded one those that they refer to are read, too, and its bases.
 */
struct ckpt_shard_read_patch {
	struct ckpt_store *store;
	struct ckpt_object *file;
	const struct ckpt_encoded *encoded; /* what `file` is; NULL: the plain shard */
	const struct ckpt_chunkset *chunks;
};

struct ckpt_shard_read_config {
	struct ckpt_core *core;
	const struct ckpt_layout *layout;
	struct ckpt_store *store; /* of `file`; NULL: the core's own */
	struct ckpt_object *file;
	const struct ckpt_encoded *encoded; /* what `file` is; NULL: the plain shard */
	struct ckpt_object
		*cached; /* the same, for chunks that targets share; NULL: there is none */
	uint64_t generation;
	uint64_t step;
	uint32_t rank;

	/* Where the bytes go. Targets (sealed): only what they need is read. */
	struct ckpt_targets *targets;
	/* Or a file of another store; `header` is the shard's, verified. */
	struct ckpt_store *dest;
	struct ckpt_object *dest_file;
	const char *header; /* NULL: it is read like all the rest */
	const struct ckpt_chunkset
		*gaps; /* chunks that are not read, and are written as zeros; NULL: none */
	uint64_t unit; /* what it is written in, as CREATE said; 0: blocks. Not less than a block */
	const struct ckpt_shard_read_patch *patch; /* NULL: everything comes from `file` */
	/* It goes on behind the training: takes no slot from it, and workers when they have nothing urgent. */
	bool behind;
	struct ckpt_rate_limit
		*rate_limit; /* with `behind`: each block waits for it; NULL: none does */
	/* With `behind`: what slots may still have of the file, and what of it they had is counted. NULL: nothing. */
	const struct ckpt_staged_shard *left;
	atomic_uint_fast64_t *left_counter;
	/* Or nowhere: every bad chunk is a finding. */
	struct ckpt_findings *findings;
	/*
	 * Or nowhere, the header too: every bad chunk is put into it, and so is one that cannot be read. What is in it
	 * at the start is not read.
	 */
	struct ckpt_chunkset *bad;

	const int *stop;               /* not 0: give up, with this code */
	struct ckpt_error *err;        /* the first failure in the order of the file */
	atomic_uint_fast64_t *counter; /* bytes verified and let out are added */
	uint64_t counts;               /* what the whole of `layout` counts as; 0: its bytes */
	struct ckpt_task *waiter;      /* woken at the end */
	struct ckpt_task *idle;        /* woken when no copy into targets is under way any more */
};

#define CKPT_SHARD_READ_NO_CHUNK SIZE_MAX

struct ckpt_shard_read_block;

struct ckpt_shard_read {
	struct ckpt_shard_read_config config;
	struct ckpt_task task; /* await `finished`, look at `result` */
	unsigned copies;       /* into targets, under way */
	size_t noted;          /* findings made */
	uint64_t verified;     /* bytes, and let out */
	uint64_t counted;      /* what they have added to the counter */
	size_t unread;         /* chunks put into `bad` because the disk could not read them */
	bool lifted;           /* something came out of slots, and not of the file */

	/* Its own. */
	uint32_t unit; /* bytes of a block */
	size_t block_count;
	uint64_t *wanted; /* a bit for each chunk; the targets', if there are some */
	size_t next;      /* block to look at */
	size_t chunk;     /* no chunk before it is wanted in `next` or behind */
	bool prepared;
	bool found;   /* the block after the last one in the ring is known, and waits for a slot */
	bool drained; /* no block is left to begin */
	struct ckpt_reader_quota share;
	struct ckpt_shard_read_block *ring;
	unsigned depth;
	unsigned head;
	unsigned count;
	struct ckpt_slot *own; /* `depth`, instead of the pool's; NULL: these are used */
	char *own_memory;
	/*
	 * Of an encoded shard: what it is decoded with. A block holds the stored bytes of the chunks that end in it, and of
	 * up to CKPT_ENCODED_REFS_MAX others for each of them.
	 */
	struct ckpt_decoder_share decoding;
	/* Those of `file`, and of the patch: opened before all else. */
	struct ckpt_bases bases[2];
	unsigned copy;         /* whose bases are opened, or closed */
	bool bases_failed;     /* some could not be opened ... */
	bool bases_patched;    /* ... of the patch ... */
	struct ckpt_error why; /* ... and why */
	int result;
	atomic_bool stopped; /* for workers: nothing more needs to be decoded */
	/* The failure that comes first in the file, of those that were noticed. */
	int code;
	uint64_t code_at;
	size_t code_chunk;      /* CKPT_SHARD_READ_NO_CHUNK: a request failed, not a digest */
	unsigned code_base;     /* the base whose file it was; 0: not that of a base */
	bool code_read;         /* reading failed, or what was read is bad: it was not writing */
	struct ckpt_error said; /* by the store, of the first request that failed */
};

/* Everything in `config` outlives the task. */
void ckpt_shard_read_start(
	struct ckpt_shard_read *fetch, const struct ckpt_shard_read_config *config);
/* After the end, or never started. */
void ckpt_shard_read_clear(struct ckpt_shard_read *fetch);

/* After a failure: the file that could not be read or had a bad chunk, `file` or that of `patch`. NULL: something else failed. */
const struct ckpt_object *ckpt_shard_read_bad_file(const struct ckpt_shard_read *fetch);

#endif
