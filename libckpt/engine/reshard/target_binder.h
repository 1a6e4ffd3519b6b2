/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets, checked against the tensors that the step holds as wholes, and cut up among the ranks that
 * hold pieces of them.
 */
#ifndef CKPT_ENGINE_RESHARD_TARGET_BINDER_H
#define CKPT_ENGINE_RESHARD_TARGET_BINDER_H

#include <ckpt/restore.h>
#include "engine/reshard/box_cover.h"
#include "engine/reshard/catalog_map.h"
#include "engine/reshard/shard_location.h"
#include "engine/reshard/targets.h"

/* Zero is empty. */
struct ckpt_target_binder {
	const struct ckpt_layout *names;          /* borrowed: of the wholes */
	const struct ckpt_tensor_map *tensor_map; /* borrowed; NULL: there are `holders` */
	struct ckpt_catalog_map *catalog_map;     /* borrowed */
	struct ckpt_targets *ranks;               /* of each rank */
	uint32_t world;
	struct ckpt_box_cover cover;
	const struct ckpt_shard_location *elsewhere; /* borrowed; NULL: no rank is */
};

/* -ENOMEM. */
int ckpt_target_binder_init(struct ckpt_target_binder *binder,
	const struct ckpt_tensor_map *tensor_map, uint32_t world);
/*
 * The same without the indexes: what is wanted of each shard has no place in it then, and tells no more than
 * whether anything is.
 */
int ckpt_target_binder_init_holders(
	struct ckpt_target_binder *binder, struct ckpt_catalog_map *catalog_map, uint32_t world);
/*
 * Checks and adds targets, all or none; empty ones are checked only. CKPT_EMISMATCH (no tensor of that
 * name, another type or shape, a box that no rank holds), CKPT_EOTHERNODE (a tensor, or a box of it, that no
 * rank holds whose files are here, while others are elsewhere), CKPT_EUNSUPPORTED (a device that this build
 * has not, bytes of a tensor that is stored in pieces), -EINVAL, -ENOMEM, worded into `err`.
 */
int ckpt_target_binder_add(struct ckpt_target_binder *binder, const struct ckpt_target *add,
	size_t count, struct ckpt_error *err);
/* What a target that was added wants of its tensor. */
uint64_t ckpt_target_binder_bytes(const struct ckpt_target *target, const struct ckpt_entry *whole);
void ckpt_target_binder_clear(struct ckpt_target_binder *binder);

#endif
