/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a step as wholes, from the indexes of all its ranks: what each of them is, and which
 * rank holds which box of it. Pure. The indexes outlive it. Those that are NULL are not there, and count for
 * nothing; there is one that is.
 */
#ifndef CKPT_ENGINE_RESHARD_TENSOR_MAP_H
#define CKPT_ENGINE_RESHARD_TENSOR_MAP_H

#include "engine/reshard/box.h"
#include "format/index.h"

/* A box of a tensor that a rank holds. */
struct ckpt_part {
	const struct ckpt_entry *entry; /* of that rank's index */
	uint32_t rank;
};

struct ckpt_tensor_map {
	/* Names, types and shapes of the wholes, and their aliases; nothing else in it means anything. */
	const struct ckpt_layout *names;

	/* Its own. */
	struct ckpt_layout *made; /* NULL: the names are those of the only index */
	struct ckpt_part *parts;  /* by whole, box and rank */
	size_t *firsts; /* of each whole, by its `source`; NULL: one part each, in order */
};

/* One rank that holds nothing but wholes: its index says it all, and there is nothing to put together. */
bool ckpt_tensor_map_are_plain(const struct ckpt_index *const *indexes, uint32_t world);
/*
 * -ENOMEM, or CKPT_EFORMAT: two ranks do not agree about a name. Words into `err`, both ranks named.
 * `world` is at least 1.
 */
int ckpt_tensor_map_build(const struct ckpt_index *const *indexes, uint32_t world,
	struct ckpt_error *err, struct ckpt_tensor_map **ret_tensor_map);
/* NULL is ignored. */
void ckpt_tensor_map_free(struct ckpt_tensor_map *tensor_map);

/* The parts of one of names->entries. Those with equal boxes follow each other. */
const struct ckpt_part *ckpt_tensor_map_parts(const struct ckpt_tensor_map *tensor_map,
	const struct ckpt_entry *whole, size_t *ret_count);

/* Whether some ranks hold the same elements of a tensor: the same box, or boxes that are more than the whole. */
bool ckpt_tensor_map_overlap(const struct ckpt_tensor_map *tensor_map);

struct ckpt_box ckpt_part_box(const struct ckpt_part *part);
/* Of one tensor: by box, then by rank. */
int ckpt_part_order(const struct ckpt_part *a, const struct ckpt_part *b);
/* Of one tensor: both hold the same box, so either may be read. */
bool ckpt_part_same(const struct ckpt_part *a, const struct ckpt_part *b);

#endif
