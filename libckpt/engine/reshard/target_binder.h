/* SPDX-License-Identifier: Apache-2.0 */
/* Checks targets against the tensors of the step, and divides them among the ranks that hold parts of them. */
#ifndef CKPT_ENGINE_RESHARD_TARGET_BINDER_H
#define CKPT_ENGINE_RESHARD_TARGET_BINDER_H

#include <ckpt/restore.h>
#include "engine/reshard/box_cover.h"
#include "engine/reshard/catalog_map.h"
#include "engine/reshard/shard_location.h"
#include "engine/reshard/targets.h"

/* Zero is empty. */
struct ckpt_target_binder {
	const struct ckpt_layout *names;          /* borrowed: the step's tensors */
	const struct ckpt_tensor_map *tensor_map; /* borrowed; NULL: catalog_map is used */
	struct ckpt_catalog_map *catalog_map;     /* borrowed */
	struct ckpt_targets *ranks;               /* for each rank */
	uint32_t world;
	struct ckpt_box_cover cover;
	const struct ckpt_shard_location *elsewhere; /* borrowed; NULL: no rank is elsewhere */
};

/* -ENOMEM. */
int ckpt_target_binder_init(struct ckpt_target_binder *binder,
	const struct ckpt_tensor_map *tensor_map, uint32_t world);
/*
 * The same without indexes: places in shards are unknown then, so that the targets of a shard only tell whether it is
 * needed.
 */
int ckpt_target_binder_init_holders(
	struct ckpt_target_binder *binder, struct ckpt_catalog_map *catalog_map, uint32_t world);
/*
 * Checks and adds targets, all or none; empty ones are only checked. CKPT_EMISMATCH (no tensor of that name, another
 * type or shape, a box that no rank holds), CKPT_EOTHERNODE (no rank whose files are here holds the tensor or box, and
 * other ranks are elsewhere), CKPT_EUNSUPPORTED (a device that this build does not support, a byte range of a tensor
 * stored in pieces), -EINVAL, -ENOMEM. Sets `err`.
 */
int ckpt_target_binder_add(struct ckpt_target_binder *binder, const struct ckpt_target *add,
	size_t count, struct ckpt_error *err);
/* Number of bytes that an added target reads of its tensor. */
uint64_t ckpt_target_binder_bytes(const struct ckpt_target *target, const struct ckpt_entry *whole);
void ckpt_target_binder_clear(struct ckpt_target_binder *binder);

#endif
