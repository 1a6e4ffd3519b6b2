/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that write the same box of a tensor should write the same bytes. The digests in their indexes show whether they
 * do. Indexes are added one by one, and none is kept. No shard is read. Pure.
 *
 * A tensor smaller than a chunk has its own digest if its rank was told that others may write it, too
 * (CKPT_TENSOR_SHARED). Otherwise its chunk has one, which is compared with that of another rank whose chunk has the
 * same
 * tensors, none of them with its own digest. Ranks that have such a tensor in chunks with different tensors cannot be
 * compared, and neither can boxes that overlap without being equal.
 */
#ifndef CKPT_ENGINE_RESHARD_REPLICA_CHECK_H
#define CKPT_ENGINE_RESHARD_REPLICA_CHECK_H

#include "engine/reshard/tensor_map.h"
#include "format/manifest.h"

/* Most boxes and chunks in the table, 32 bytes each. It is at most three quarters full. */
#define CKPT_REPLICA_CHECK_BOXES (UINT64_C(1) << 22)
#define CKPT_REPLICA_CHECK_NAMED 3
#define CKPT_REPLICA_CHECK_NAME  256
#define CKPT_REPLICA_CHECK_ODD   64
/* Size of the description of a difference, including the NUL. */
#define CKPT_REPLICA_CHECK_WORDS 251

/* A box or chunk in the table. */
struct ckpt_replica_check_box {
	uint64_t key;   /* hash of its identity */
	uint64_t value; /* hash of its bytes; or number of elements of all parts of a tensor */
	uint32_t rank;  /* the first rank that has it */
	uint32_t last;  /* the last rank so far that has the same bytes */
	uint32_t count; /* ranks that have the same bytes; 0: free */
};

/* A rank with other bytes than the first rank, for the first box that differs. */
struct ckpt_replica_check_odd {
	uint64_t value;
	uint32_t rank;
};

struct ckpt_replica_check {
	/* Set before the first rank is added: */
	uint32_t world;
	const struct ckpt_manifest_rank
		*ranks; /* says which rank is on which node; NULL: not needed */
	uint64_t most;  /* most boxes in the table; 0: CKPT_REPLICA_CHECK_BOXES */

	/* Results. */
	/* Tensors, or chunks of small ones, whose bytes differ between two ranks. */
	size_t differing;
	bool near;      /* two of these ranks are on one node */
	size_t unknown; /* tensors with equal elements on two ranks that cannot be compared */
	bool full;      /* some boxes were not compared: too many, or out of memory */
	uint64_t *held; /* bits: ranks that were compared with another one; NULL: none */

	/* Private. Long names are cut. */
	char first[CKPT_REPLICA_CHECK_NAMED]
		  [CKPT_REPLICA_CHECK_NAME]; /* in the first unit that differs */
	size_t first_count;
	size_t first_tensors; /* number of all tensors in it */
	char later[CKPT_REPLICA_CHECK_NAMED - 1]
		  [CKPT_REPLICA_CHECK_NAME]; /* single tensors that also differ */
	size_t later_count;
	struct ckpt_replica_check_box odd_box; /* the first unit that differs */
	struct ckpt_replica_check_odd odd[CKPT_REPLICA_CHECK_ODD];
	uint32_t odd_count; /* may be more than are stored */
	char unknown_name[CKPT_REPLICA_CHECK_NAME];
	uint32_t unknown_ranks[2];
	struct ckpt_replica_check_box *boxes; /* hash table; a power of two */
	size_t room;
	size_t count;
};

/* Compares a rank with the first rank that has the same boxes. Add each rank once. */
void ckpt_replica_check_add(
	struct ckpt_replica_check *replicas, uint32_t rank, const struct ckpt_layout *layout);
/* The last rank was added: frees what the results do not need. */
void ckpt_replica_check_end(struct ckpt_replica_check *replicas);
/*
 * The same for readers, with all ranks at once and without a table: does not find out which ranks were compared and
 * what cannot be compared.
 */
void ckpt_replica_check_compare(struct ckpt_replica_check *replicas,
	const struct ckpt_tensor_map *tensor_map, const struct ckpt_index *const *indexes);
/* Whether a rank was compared with another one. */
bool ckpt_replica_check_has(const uint64_t *held, uint32_t rank);

/* The first tensor that differs; NULL: one of several differs, or none. */
const char *ckpt_replica_check_name(const struct ckpt_replica_check *replicas);
/*
 * "rank 2 and rank 0 hold different bytes of 'w'": describes the differences, in at most CKPT_REPLICA_CHECK_WORDS
 * bytes.
 */
void ckpt_replica_check_word(const struct ckpt_replica_check *replicas, char *out, size_t size);
/* "'b' of ranks 0 and 2, and 3 more": describes what cannot be compared. */
void ckpt_replica_check_word_unknown(
	const struct ckpt_replica_check *replicas, char *out, size_t size);

void ckpt_replica_check_clear(struct ckpt_replica_check *replicas);

#endif
