/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of a caller, kept for later: copies, but for the target's memory. */
#ifndef CKPT_ENGINE_RESHARD_PENDING_TARGETS_H
#define CKPT_ENGINE_RESHARD_PENDING_TARGETS_H

#include <ckpt/restore.h>
#include "base/compiler.h"

/* Zero is empty. */
struct ckpt_pending_targets {
	struct ckpt_target **items;
	size_t count;
	size_t room;
};

/* Adds a target that was checked. -ENOMEM. */
int ckpt_pending_targets_add(struct ckpt_pending_targets *asked, const struct ckpt_target *target);
/* Removes those after the first `count`. */
void ckpt_pending_targets_forget(struct ckpt_pending_targets *asked, size_t count);
void ckpt_pending_targets_clear(struct ckpt_pending_targets *asked);

#endif
