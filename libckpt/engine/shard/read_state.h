/* SPDX-License-Identifier: Apache-2.0 */
/* One block of a fetch on its way, and what shard/read.c and shard/read_block.c share. For these two only. */
#ifndef CKPT_ENGINE_SHARD_READ_STATE_H
#define CKPT_ENGINE_SHARD_READ_STATE_H

#include "engine/core/copy_batch.h"
#include "engine/shard/read.h"

/* In the order in which a block goes through them. */
enum block_state {
	BLOCK_LIFTING = 1, /* its bytes are copied out of slots that have them */
	BLOCK_READING,
	BLOCK_READ,
	BLOCK_CHECKING,
	BLOCK_CHECKED,
	BLOCK_COPYING,
	BLOCK_WRITING,
	BLOCK_DONE,
};

struct ckpt_shard_read_block {
	struct ckpt_shard_read *fetch;
	enum block_state state;
	struct ckpt_span span;
	struct ckpt_slot *slot;
	char *before;     /* its predecessor's memory, when a wanted chunk begins there */
	bool tail_wanted; /* a wanted chunk goes on in its successor */
	uint64_t lo;      /* of the bytes that are wanted, in the shard: first and last */
	uint64_t hi;
	uint64_t read; /* what is wanted before it has been read, or is being read */
	uint64_t at;   /* where the request under way begins */
	bool patching; /* what comes from the other copy is read, after all the rest */
	bool narrow;   /* a request failed: each chunk is read by itself, to see which */
	struct ckpt_store_op op;
	/* Of an encoded shard. Empty: nothing is to be decoded any more. */
	struct ckpt_stored_plan stored;
	struct ckpt_stored_plan patched;    /* the same, of the other copy */
	struct ckpt_chunk_decoder *decoder; /* as long as it is checked */
	struct ckpt_job check;
	struct ckpt_job lift;
	bool lifted;
	size_t from;       /* chunk at which the check goes on */
	size_t bad;        /* chunk at which it stopped; CKPT_SHARD_READ_NO_CHUNK: none */
	int bad_code;      /* what is wrong with it */
	unsigned bad_base; /* in which base; 0: in none */
	uint64_t verified;
	struct ckpt_segment_list segments;
	uint64_t devices; /* a mask of those that the segments are on */
	struct ckpt_copy_batch batch;
};

static inline bool ckpt_shard_read_wants(const struct ckpt_shard_read *f, size_t chunk)
{
	return f->wanted[chunk / 64] >> (chunk % 64) & 1;
}

static inline bool ckpt_shard_read_shares(const struct ckpt_shard_read *f, size_t chunk)
{
	return f->config.targets->shared[chunk / 64] >> (chunk % 64) & 1;
}

/* shard/read.c: it comes from the other copy. */
bool ckpt_shard_read_patches(const struct ckpt_shard_read *f, size_t chunk);
/* shard/read.c: some of what it reads is encoded. */
bool ckpt_shard_read_decodes(const struct ckpt_shard_read *f);

static inline bool ckpt_shard_read_stopping(const struct ckpt_shard_read *f)
{
	return f->code || *f->config.stop;
}

/* The bases of the copy that is read; NULL: it has none. */
static inline const struct ckpt_chain *ckpt_shard_read_chain(
	const struct ckpt_shard_read *f, bool patching)
{
	return f->bases[patching].count > 0 ? &f->bases[patching].chain : NULL;
}

/* shard/read.c: of several failures the first in the file is told, whichever came back first. */
void ckpt_shard_read_fail(struct ckpt_shard_read *f, int code, uint64_t at, size_t chunk);
/*
 * The same of what was read, of the file of a base if `base` is not 0. If everything is to be found a bad chunk is noted,
 * and does not end the fetch.
 */
void ckpt_shard_read_take_failure(
	struct ckpt_shard_read *f, int code, uint64_t at, size_t chunk, unsigned base);

/* shard/read_block.c: begins to read, if anything is to be read, or to copy what slots still have. */
void ckpt_shard_read_block_start(struct ckpt_shard_read_block *block);
/* Of encoded shards: what it is decoded from, when it was found. -ENOMEM. */
int ckpt_shard_read_block_plan(struct ckpt_shard_read_block *block);
/* Memory for that, when it begins. -ENOMEM. */
int ckpt_shard_read_block_begin(struct ckpt_shard_read_block *block);
/* Bytes of that memory. */
uint64_t ckpt_shard_read_block_stored(const struct ckpt_shard_read_block *block);
/* Nothing is to be decoded any more. */
void ckpt_shard_read_block_drop(struct ckpt_shard_read_block *block);
/* Lets it go on as far as it can, but not out. `prior` is its predecessor in the ring; NULL: none. */
void ckpt_shard_read_block_advance(
	struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *prior);
/*
 * Lets it out if it was checked. What another store is given stays there, whatever comes after it: so a block waits
 * for the rest of its last chunk, which is its successor's (NULL: not begun yet) to check.
 */
void ckpt_shard_read_block_let_out(
	struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *next);
/* Every chunk that has a byte in it is good. */
bool ckpt_shard_read_block_passes(
	const struct ckpt_shard_read_block *block, const struct ckpt_shard_read_block *next);

#endif
