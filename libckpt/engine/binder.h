/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets, checked against the tensors that the step holds as wholes, and cut up among the ranks that
 * hold pieces of them.
 */
#ifndef CKPT_ENGINE_BINDER_H
#define CKPT_ENGINE_BINDER_H

#include <ckpt/restore.h>
#include "engine/cover.h"
#include "engine/elsewhere.h"
#include "engine/holders.h"
#include "engine/targets.h"

/* Zero is empty. */
struct ckpt_binder {
	const struct ckpt_layout *names;  /* borrowed: of the wholes */
	const struct ckpt_wholes *wholes; /* borrowed; NULL: there are `holders` */
	struct ckpt_holders *holders;     /* borrowed */
	struct ckpt_targets *ranks;       /* of each rank */
	uint32_t world;
	struct ckpt_cover cover;
	const struct ckpt_elsewhere *elsewhere; /* borrowed; NULL: no rank is */
};

/* -ENOMEM. */
int ckpt_binder_init(struct ckpt_binder *binder, const struct ckpt_wholes *wholes, uint32_t world);
/*
 * The same without the indexes: what is wanted of each shard has no place in it then, and tells no more than
 * whether anything is.
 */
int ckpt_binder_init_holders(
	struct ckpt_binder *binder, struct ckpt_holders *holders, uint32_t world);
/*
 * Checks and adds targets, all or none; empty ones are checked only. CKPT_EMISMATCH (no tensor of that
 * name, another type or shape, a box that no rank holds), CKPT_EOTHERNODE (a tensor, or a box of it, that no
 * rank holds whose files are here, while others are elsewhere), CKPT_EUNSUPPORTED (a device that this build
 * has not, bytes of a tensor that is stored in pieces), -EINVAL, -ENOMEM, worded into `err`.
 */
int ckpt_binder_add(struct ckpt_binder *binder, const struct ckpt_target *add, size_t count,
	struct ckpt_error *err);
/* What a target that was added wants of its tensor. */
uint64_t ckpt_binder_bytes(const struct ckpt_target *target, const struct ckpt_entry *whole);
void ckpt_binder_clear(struct ckpt_binder *binder);

#endif
