/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank holds what of a step, by its catalog: the complete tensors, as reshard/tensor_map.h has them from all
 * indexes, and the ranks that hold a part of a box. So only the indexes of these ranks are needed. Pure.
 */
#ifndef CKPT_ENGINE_RESHARD_CATALOG_MAP_H
#define CKPT_ENGINE_RESHARD_CATALOG_MAP_H

#include "engine/reshard/tensor_map.h"
#include "format/catalog.h"

struct ckpt_catalog_map {
	/* Names, types and shapes of the tensors, and their aliases; its other fields have no meaning. */
	struct ckpt_layout *names;

	/* Private. */
	struct ckpt_layout_catalog *catalog;
	struct ckpt_catalog_list *lists; /* of catalog->tensors */
	char *file;                      /* all of it: catalog->bytes */
	struct ckpt_part *parts;         /* result of the last search */
	struct ckpt_entry *entries;
	int64_t *dims;
	size_t room;
};

/*
 * Decodes a catalog file, and takes ownership of it, also on failure (ckpt_free). Every list is compared with its
 * digest. `named` is the digest in its name. CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, -ENOMEM; `path` is for the
 * message.
 */
int ckpt_catalog_map_open(char *file, size_t length, const struct ckpt_digest *named,
	uint32_t world, const char *path, struct ckpt_error *err,
	struct ckpt_catalog_map **ret_catalog_map);
/* NULL is ignored. */
void ckpt_catalog_map_free(struct ckpt_catalog_map *catalog_map);

/*
 * The parts of an entry of names->entries that share an element with a box of it, which is not empty, sorted by box and
 * rank. Their place in a shard is unknown: `offset` is 0. Valid until the next call. -ENOMEM.
 */
int ckpt_catalog_map_find(struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole,
	const struct ckpt_box *box, const struct ckpt_part **ret_parts, size_t *ret_count);
/* Whether a rank holds exactly what its index says. CKPT_EFORMAT names `path`, the tensor and the rank. */
int ckpt_catalog_map_compare(const struct ckpt_catalog_map *catalog_map,
	const struct ckpt_index *index, const char *path, struct ckpt_error *err);
/* The lowest rank that holds a part of the tensor. */
uint32_t ckpt_catalog_map_first(
	const struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole);

#endif
