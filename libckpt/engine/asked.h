/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller has asked for, kept for later: copies of targets, whose memory stays the caller's. */
#ifndef CKPT_ENGINE_ASKED_H
#define CKPT_ENGINE_ASKED_H

#include <ckpt/restore.h>
#include "base/attr.h"

/* Zero is empty. */
struct ckpt_asked {
	struct ckpt_target **items;
	size_t count;
	size_t room;
};

/* One that was checked. -ENOMEM. */
int ckpt_asked_add(struct ckpt_asked *asked, const struct ckpt_target *target);
/* Those behind the first `count`. */
void ckpt_asked_forget(struct ckpt_asked *asked, size_t count);
void ckpt_asked_clear(struct ckpt_asked *asked);

#endif
