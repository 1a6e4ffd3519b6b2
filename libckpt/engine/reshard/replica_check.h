/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that write the same box of a tensor should write the same bytes of it. The digests in their indexes show
 * whether they do. Indexes are added one after the other, and none is kept. No shard is read. Pure.
 *
 * A tensor smaller than a chunk has a digest of its own where its rank was told that others may write it
 * (CKPT_TENSOR_SHARED). Else its chunk has one, and is compared with that of another rank which has the same tensors in
 * it, unless any of these has a digest of its own. Two ranks that have such a tensor, each beside other tensors, cannot be
 * compared. Nor can boxes that overlap and are not the same.
 */
#ifndef CKPT_ENGINE_RESHARD_REPLICA_CHECK_H
#define CKPT_ENGINE_RESHARD_REPLICA_CHECK_H

#include "engine/reshard/tensor_map.h"
#include "format/manifest.h"

/* Boxes and chunks that are kept, 32 bytes each in a table that is at most three quarters full. */
#define CKPT_REPLICA_CHECK_BOXES (UINT64_C(1) << 22)
#define CKPT_REPLICA_CHECK_NAMED 3
#define CKPT_REPLICA_CHECK_NAME  256
#define CKPT_REPLICA_CHECK_ODD   64
/* Words about a difference, with the end. */
#define CKPT_REPLICA_CHECK_WORDS 251

/* What is known of a box or of a chunk. */
struct ckpt_replica_check_box {
	uint64_t key;   /* hash of what it is */
	uint64_t value; /* hash of its bytes; elements of all parts of a tensor */
	uint32_t rank;  /* the first that has it */
	uint32_t last;  /* the last so far that has it with these bytes */
	uint32_t count; /* ranks that have it with these bytes; 0: this one is free */
};

/* Of the first box of which two ranks have different bytes: a rank with others than the first one. */
struct ckpt_replica_check_odd {
	uint64_t value;
	uint32_t rank;
};

struct ckpt_replica_check {
	/* Before the first rank: */
	uint32_t world;
	const struct ckpt_manifest_rank
		*ranks; /* says who is on which node; NULL: it does not matter */
	uint64_t most;  /* boxes that are kept; 0: CKPT_REPLICA_CHECK_BOXES */

	/* What was found. */
	size_t differing; /* tensors, or chunks of small ones, of which two ranks have different bytes */
	bool near;        /* two of these ranks are on one node */
	size_t unknown; /* tensors of which two ranks have the same elements, and that cannot be compared */
	bool full; /* there were more boxes than are kept, or there was no memory: some were not compared */
	uint64_t *held; /* bits: ranks that have been compared with another one; NULL: none */

	/* Its own. Names are cut if they are longer. */
	char first[CKPT_REPLICA_CHECK_NAMED]
		  [CKPT_REPLICA_CHECK_NAME]; /* in the first unit that differs */
	size_t first_count;
	size_t first_tensors; /* all that are in it */
	char later[CKPT_REPLICA_CHECK_NAMED - 1]
		  [CKPT_REPLICA_CHECK_NAME]; /* single tensors that differ, too */
	size_t later_count;
	struct ckpt_replica_check_box odd_box; /* the first unit that differs */
	struct ckpt_replica_check_odd odd[CKPT_REPLICA_CHECK_ODD];
	uint32_t odd_count; /* may be more than are kept */
	char unknown_name[CKPT_REPLICA_CHECK_NAME];
	uint32_t unknown_ranks[2];
	struct ckpt_replica_check_box *boxes; /* by key; a power of two */
	size_t room;
	size_t count;
};

/* Compares what a rank has with the first one that has the same. Each rank once. */
void ckpt_replica_check_add(
	struct ckpt_replica_check *replicas, uint32_t rank, const struct ckpt_layout *layout);
/* Nothing is added any more: lets go of what no word is made of. */
void ckpt_replica_check_end(struct ckpt_replica_check *replicas);
/* The same for readers, of all ranks at once, and without memory: who was compared, and what cannot be, is not found out. */
void ckpt_replica_check_compare(struct ckpt_replica_check *replicas,
	const struct ckpt_tensor_map *tensor_map, const struct ckpt_index *const *indexes);
/* Whether a rank has been compared with another one. */
bool ckpt_replica_check_has(const uint64_t *held, uint32_t rank);

/* The first tensor that differs; NULL: it is one of several, or there is none. */
const char *ckpt_replica_check_name(const struct ckpt_replica_check *replicas);
/* "rank 2 and rank 0 hold different bytes of 'w'": of what differs, CKPT_REPLICA_CHECK_WORDS at most. */
void ckpt_replica_check_word(const struct ckpt_replica_check *replicas, char *out, size_t size);
/* "'b' of ranks 0 and 2, and 3 more": of what cannot be compared. */
void ckpt_replica_check_word_unknown(
	const struct ckpt_replica_check *replicas, char *out, size_t size);

void ckpt_replica_check_clear(struct ckpt_replica_check *replicas);

#endif
