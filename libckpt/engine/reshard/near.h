/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks of a node have in a step's files of their own all that they need. */
#ifndef CKPT_ENGINE_RESHARD_NEAR_H
#define CKPT_ENGINE_RESHARD_NEAR_H

#include "engine/core/rankset.h"
#include "format/manifest.h"

/*
 * `near`: the ranks on one node, of `world`; some, not all. True if as many ranks saved the step into stores of nodes,
 * and no other rank was on the nodes of these. -ENOMEM.
 */
int ckpt_near_suffices(const struct ckpt_rankset *near, uint32_t world,
	const struct ckpt_manifest *manifest, bool *ret_enough);

#endif
