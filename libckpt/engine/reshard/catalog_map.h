/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds what of a step, from its catalog: the tensors as wholes, as reshard/tensor_map.h has them from the indexes of all
 * ranks, and of each the ranks that hold a part of some box. So only their indexes are needed. Pure.
 */
#ifndef CKPT_ENGINE_RESHARD_CATALOG_MAP_H
#define CKPT_ENGINE_RESHARD_CATALOG_MAP_H

#include "engine/reshard/tensor_map.h"
#include "format/catalog.h"

struct ckpt_catalog_map {
	/* Names, types and shapes of the wholes, and their aliases; nothing else in it means anything. */
	struct ckpt_layout *names;

	/* Its own. */
	struct ckpt_layout_catalog *catalog;
	struct ckpt_catalog_list *lists; /* of its tensors */
	char *file;                      /* all of it: catalog->bytes */
	struct ckpt_part *parts;         /* of the last box that was asked for */
	struct ckpt_entry *entries;
	int64_t *dims;
	size_t room;
};

/*
 * Reads a catalog file, which becomes theirs, also on failure (ckpt_free). Every list is compared with its digest,
 * and read. `named` is the digest that it goes by. CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, -ENOMEM, worded
 * with `path`.
 */
int ckpt_catalog_map_open(char *file, size_t length, const struct ckpt_digest *named,
	uint32_t world, const char *path, struct ckpt_error *err,
	struct ckpt_catalog_map **ret_catalog_map);
/* NULL is ignored. */
void ckpt_catalog_map_free(struct ckpt_catalog_map *catalog_map);

/*
 * The parts of one of names->entries that share an element with a box of it, which is not empty, by box and rank;
 * where they lie in a shard is not known: `offset` is 0. Valid until the next call. -ENOMEM.
 */
int ckpt_catalog_map_find(struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole,
	const struct ckpt_box *box, const struct ckpt_part **ret_parts, size_t *ret_count);
/*
 * Whether a rank holds what its index says, and nothing else. CKPT_EFORMAT, worded with `path`, the tensor and
 * the rank.
 */
int ckpt_catalog_map_compare(const struct ckpt_catalog_map *catalog_map,
	const struct ckpt_index *index, const char *path, struct ckpt_error *err);
/* The lowest rank that holds something of it. */
uint32_t ckpt_catalog_map_first(
	const struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole);

#endif
