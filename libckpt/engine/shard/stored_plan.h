/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some chunks of an encoded shard that are decoded together: which bytes of the file are read for them, into what
 * memory, and with which requests. Pure: the caller reads.
 */
#ifndef CKPT_ENGINE_SHARD_STORED_PLAN_H
#define CKPT_ENGINE_SHARD_STORED_PLAN_H

#include "engine/shard/chunk_decode.h"

/* Zero is empty. */
struct ckpt_stored_plan {
	const struct ckpt_layout *layout;
	const struct ckpt_encoded *encoded;
	const struct ckpt_chain *chain;  /* of the shard and its bases; NULL: it has none */
	uint64_t align;                  /* of requests */
	struct ckpt_stored_chunk *items; /* finished: by file and chunk, each once */
	size_t count;
	size_t room;
	size_t *order;   /* items by file, and by their place in it */
	uint64_t *where; /* of each item, in `memory` */
	uint64_t bytes;  /* of all requests */
	char *allocated; /* NULL: there is no memory yet */
	char *memory;
	bool narrow; /* a request is for one chunk */
	/* The request under way, or the last one: items of `order` from `first` up to `end`. */
	size_t first;
	size_t end;
	uint64_t at;   /* in the file, aligned */
	uint64_t want; /* up to here in the file; the request is longer, as it is aligned */
};

struct ckpt_stored_request {
	unsigned file; /* 0: of the shard; else the base that it is for */
	void *data;
	uint64_t offset;
	uint64_t length;
	uint64_t end; /* what is behind it in the file is not needed */
};

/* The chunk is to be decoded: it is read, those that it refers to, and what all these are in the bases. -ENOMEM. */
int ckpt_stored_plan_add(struct ckpt_stored_plan *plan, size_t chunk);
/* No more are added: sets `bytes`. -ENOMEM. */
int ckpt_stored_plan_finish(struct ckpt_stored_plan *plan);
/* Makes the memory for them. -ENOMEM. */
int ckpt_stored_plan_begin(struct ckpt_stored_plan *plan);

/* The next request. False: there is none. */
bool ckpt_stored_plan_next(struct ckpt_stored_plan *plan, struct ckpt_stored_request *ret_request);
/* Chunks of the request under way, by number from 0 on. */
static inline size_t ckpt_stored_plan_chunk(const struct ckpt_stored_plan *plan, size_t i)
{
	return plan->items[plan->order[plan->first + i]].chunk;
}

/* The file that it is of. */
static inline unsigned ckpt_stored_plan_file(const struct ckpt_stored_plan *plan)
{
	return plan->items[plan->order[plan->first]].file;
}

/* What it was for is in memory. */
void ckpt_stored_plan_take(struct ckpt_stored_plan *plan);
/*
 * It has failed, and the rest is wanted all the same: its chunks are read one by one, to see which cannot be. False: it
 * was for one chunk. That has no bytes then, and cannot be decoded.
 */
bool ckpt_stored_plan_narrow(struct ckpt_stored_plan *plan);

/* As ckpt_chunk_decode(), of a chunk that was added, when all has been read. */
CKPT_MUST_CHECK int ckpt_stored_plan_decode(const struct ckpt_stored_plan *plan,
	struct ckpt_chunk_decoder *decoder, const atomic_bool *stopped, size_t chunk, char *out,
	const char **ret_bytes);
/* It is empty then. */
void ckpt_stored_plan_clear(struct ckpt_stored_plan *plan);

#endif
