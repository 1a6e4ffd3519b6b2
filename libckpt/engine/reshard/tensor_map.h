/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The complete tensors of a step, from the indexes of all ranks: their types and shapes, and which rank holds which
 * box. Pure. The indexes must outlive it. NULL indexes are ignored; at least one is not NULL.
 */
#ifndef CKPT_ENGINE_RESHARD_TENSOR_MAP_H
#define CKPT_ENGINE_RESHARD_TENSOR_MAP_H

#include "engine/reshard/box.h"
#include "format/index.h"

/* A box of a tensor that a rank holds. */
struct ckpt_part {
	const struct ckpt_entry *entry; /* in that rank's index */
	uint32_t rank;
};

struct ckpt_tensor_map {
	/* Names, types and shapes of the tensors, and their aliases; its other fields have no meaning. */
	const struct ckpt_layout *names;

	/* Private. */
	struct ckpt_layout *made; /* NULL: the names are those of the only index */
	struct ckpt_part *parts;  /* sorted by tensor, box and rank */
	/* First part of each tensor, by its `source`; NULL: one part each, in order. */
	size_t *firsts;
};

/* Whether there is one rank that holds complete tensors only, so that its index can be used as it is. */
bool ckpt_tensor_map_are_plain(const struct ckpt_index *const *indexes, uint32_t world);
/* -ENOMEM, or CKPT_EFORMAT: two ranks do not agree about a name. The error names both. `world` is at least 1. */
int ckpt_tensor_map_build(const struct ckpt_index *const *indexes, uint32_t world,
	struct ckpt_error *err, struct ckpt_tensor_map **ret_tensor_map);
/* NULL is ignored. */
void ckpt_tensor_map_free(struct ckpt_tensor_map *tensor_map);

/* The parts of an entry of names->entries. Parts with equal boxes are adjacent. */
const struct ckpt_part *ckpt_tensor_map_parts(const struct ckpt_tensor_map *tensor_map,
	const struct ckpt_entry *whole, size_t *ret_count);

/* Whether some ranks hold the same elements of a tensor: equal boxes, or more elements in total than the tensor has. */
bool ckpt_tensor_map_overlap(const struct ckpt_tensor_map *tensor_map);

struct ckpt_box ckpt_part_box(const struct ckpt_part *part);
/* Order of parts of one tensor: by box, then by rank. */
int ckpt_part_order(const struct ckpt_part *a, const struct ckpt_part *b);
/* Whether two parts of one tensor hold the same box, so that either can be read. */
bool ckpt_part_same(const struct ckpt_part *a, const struct ckpt_part *b);

#endif
