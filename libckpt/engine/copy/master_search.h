/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which 16-bit tensors of a shard are the rounding of which fp32 tensors, found while its chunks go by once, in order: the
 * fp32 tensors come first. Some elements of the beginning of each are compared, all of which are in one chunk. An error
 * costs space and nothing else. save/masters.h does the same for a shard that is in memory as a whole.
 */
#ifndef CKPT_ENGINE_COPY_MASTER_SEARCH_H
#define CKPT_ENGINE_COPY_MASTER_SEARCH_H

#include "engine/shard/chunk_encode.h"

/* Of one chunk; the masters of others in it are not used. */
#define CKPT_MASTER_RANGES 16

struct ckpt_master_candidate_key;

struct ckpt_master_search {
	const struct ckpt_layout *layout;
	uint64_t *
		of; /* by entry, as ckpt_chunk_source has them: offset of the fp32 tensor; 0: none */
	/* fp32 tensors that have gone by, with what their samples are in bf16, and in f16. */
	struct ckpt_master_candidate_key *keys[2];
	size_t count;
	bool sorted;
	size_t next; /* entry */
};

/* fp32 elements that a chunk is encoded with: of the shard, and where they are kept meanwhile. */
struct ckpt_master_range {
	uint64_t offset;
	uint64_t length;
	uint64_t at;
};

/* -ENOMEM. */
int ckpt_master_search_open(struct ckpt_master_search *search, const struct ckpt_layout *layout);
void ckpt_master_search_close(struct ckpt_master_search *search);

/* Looks at the next chunk, whose bytes are `data`. All chunks, one after the other; any thread. */
void ckpt_master_search_look(struct ckpt_master_search *search, size_t chunk, const void *data);
/*
 * After that: the fp32 elements that the chunk may be encoded with, all before it. They lie one after the other, at most
 * 2 * CKPT_CODEC_CHUNK_BYTES. Of tensors that are left out `of` is 0 from now on. Returns their number.
 */
size_t ckpt_master_search_ranges(struct ckpt_master_search *search, size_t chunk,
	struct ckpt_master_range ranges[CKPT_MASTER_RANGES]);

#endif
