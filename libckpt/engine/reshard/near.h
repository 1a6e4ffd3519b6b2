/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks of one node have all they need in the files of their own node's store. */
#ifndef CKPT_ENGINE_RESHARD_NEAR_H
#define CKPT_ENGINE_RESHARD_NEAR_H

#include "engine/core/rankset.h"
#include "format/manifest.h"

/*
 * `near`: the ranks on this node, of `world`; some but not all. True if equally many ranks saved the step in node
 * stores here, and no other rank was on their nodes. -ENOMEM.
 */
int ckpt_near_suffices(const struct ckpt_rankset *near, uint32_t world,
	const struct ckpt_manifest *manifest, bool *ret_enough);

#endif
