/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller has asked for, kept for later: copies of targets, whose memory stays the caller's. */
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

/* One that was checked. -ENOMEM. */
int ckpt_pending_targets_add(struct ckpt_pending_targets *asked, const struct ckpt_target *target);
/* Those behind the first `count`. */
void ckpt_pending_targets_forget(struct ckpt_pending_targets *asked, size_t count);
void ckpt_pending_targets_clear(struct ckpt_pending_targets *asked);

#endif
