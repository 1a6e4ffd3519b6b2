/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random tensors that many ranks have written, each its boxes of them, and what may be wanted of them
 * again: the tensors as wholes are kept, to compare with.
 */
#ifndef CKPT_TESTS_SHARDED_FIXTURE_H
#define CKPT_TESTS_SHARDED_FIXTURE_H

#include <ckpt/restore.h>
#include "engine/reshard/box.h"
#include "lib/prng.h"
#include "lib/store_fixture.h"

#define SHARDED_TENSORS   10
#define SHARDED_WORLD_MAX 12
#define SHARDED_NDIM      4

struct sharded_tensor {
	char name[16];
	uint32_t dtype;
	uint32_t ndim;
	int64_t shape[SHARDED_NDIM];
	uint64_t bytes;
	char *data;
	bool once; /* no rank holds what another holds */
};

struct sharded_piece {
	struct ckpt_box box;
	char *data;
};

struct sharded {
	struct sharded_tensor tensors[SHARDED_TENSORS];
	uint32_t world;
	/* Of each rank: what it writes, in the order of the tensors; ndim 99: it holds nothing of it. */
	struct sharded_piece pieces[SHARDED_WORLD_MAX][SHARDED_TENSORS];
	struct ckpt_tensor lists[SHARDED_WORLD_MAX][SHARDED_TENSORS];
	char metas[SHARDED_WORLD_MAX][32];
	struct fixture_rank ranks[SHARDED_WORLD_MAX];
	struct fixture_step step;
};

#define SHARDED_NONE 99

/* `side`: about the size of a dimension. Commits nothing yet. */
void sharded_make(struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t side);
/* The same of tensors of a few rows, each of up to so many bytes: boxes of them have large gaps. */
void sharded_make_wide(struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t bytes);
/* Writes it as that step of the store in `dir`, whose generation 1 has been claimed. */
void sharded_commit(struct sharded *sharded, const char *dir, uint64_t step, uint64_t chunk_bytes);
/* The same with a catalog; `lie`: see store_fixture.h. */
void sharded_commit_cataloged(struct sharded *sharded, const char *dir, uint64_t step,
	uint64_t chunk_bytes, uint32_t lie);
/* Whether what a rank holds of a tensor is nothing, or another one has the same. */
bool sharded_has_copy(const struct sharded *sharded, size_t tensor, uint32_t rank);
void sharded_clear(struct sharded *sharded);

/* A target with its memory, and what that must hold in the end. */
struct sharded_goal {
	struct ckpt_target target;
	const struct sharded_tensor *tensor;
	struct ckpt_box box;
	int64_t strides[SHARDED_NDIM];
	size_t room;
	char *memory;
	char *expected;
};

/* Wants a tensor, or a box of it, in memory with gaps or without. `goal` stays where it is. */
void sharded_want(
	const struct sharded *sharded, struct prng *prng, size_t tensor, struct sharded_goal *goal);
/* Whether all of it, and nothing but it, has been written to. */
bool sharded_got(const struct sharded_goal *goal);
void sharded_forget(struct sharded_goal *goal);

#endif
