/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random tensors that many ranks have written, each its boxes of them, and what may be wanted of them
 * again: the tensors as wholes are kept, to compare with.
 */
#ifndef CKPT_TESTS_SPREAD_H
#define CKPT_TESTS_SPREAD_H

#include <ckpt/restore.h>
#include "engine/reshard/box.h"
#include "lib/craft.h"
#include "lib/dice.h"

#define SPREAD_TENSORS   10
#define SPREAD_WORLD_MAX 12
#define SPREAD_NDIM      4

struct spread_tensor {
	char name[16];
	uint32_t dtype;
	uint32_t ndim;
	int64_t shape[SPREAD_NDIM];
	uint64_t bytes;
	char *data;
	bool once; /* no rank holds what another holds */
};

struct spread_piece {
	struct ckpt_box box;
	char *data;
};

struct spread {
	struct spread_tensor tensors[SPREAD_TENSORS];
	uint32_t world;
	/* Of each rank: what it writes, in the order of the tensors; ndim 99: it holds nothing of it. */
	struct spread_piece pieces[SPREAD_WORLD_MAX][SPREAD_TENSORS];
	struct ckpt_tensor lists[SPREAD_WORLD_MAX][SPREAD_TENSORS];
	char metas[SPREAD_WORLD_MAX][32];
	struct craft_rank ranks[SPREAD_WORLD_MAX];
	struct craft_step step;
};

#define SPREAD_NONE 99

/* `side`: about the size of a dimension. Commits nothing yet. */
void spread_make(struct spread *spread, struct dice *dice, uint32_t world, uint64_t side);
/* The same of tensors of a few rows, each of up to so many bytes: boxes of them have large gaps. */
void spread_make_wide(struct spread *spread, struct dice *dice, uint32_t world, uint64_t bytes);
/* Writes it as that step of the store in `dir`, whose generation 1 has been claimed. */
void spread_commit(struct spread *spread, const char *dir, uint64_t step, uint64_t chunk_bytes);
/* The same with a catalog; `lie`: see craft.h. */
void spread_commit_cataloged(
	struct spread *spread, const char *dir, uint64_t step, uint64_t chunk_bytes, uint32_t lie);
/* Whether what a rank holds of a tensor is nothing, or another one has the same. */
bool spread_has_copy(const struct spread *spread, size_t tensor, uint32_t rank);
void spread_clear(struct spread *spread);

/* A target with its memory, and what that must hold in the end. */
struct spread_goal {
	struct ckpt_target target;
	const struct spread_tensor *tensor;
	struct ckpt_box box;
	int64_t strides[SPREAD_NDIM];
	size_t room;
	char *memory;
	char *expected;
};

/* Wants a tensor, or a box of it, in memory with gaps or without. `goal` stays where it is. */
void spread_want(
	const struct spread *spread, struct dice *dice, size_t tensor, struct spread_goal *goal);
/* Whether all of it, and nothing but it, has been written to. */
bool spread_got(const struct spread_goal *goal);
void spread_forget(struct spread_goal *goal);

#endif
