/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that a crew saves together, and the catalogs that their manifests name. */
#ifndef CKPT_TESTS_NAMED_H
#define CKPT_TESTS_NAMED_H

#include "lib/rank_rig.h"

struct named {
	uint64_t bytes; /* 0: none is named */
	struct ckpt_digest digest;
};

/* Until the saves of all ranks have ended, or some seconds have passed. */
void named_wait(struct rank_rig *s, uint32_t world);
/* All ranks save two tensors of so many numbers, and it must succeed. */
void named_save(struct rank_rig *s, uint32_t world, uint64_t step, size_t floats);
/* Each its own; what rank 0 comes to. */
int named_try(struct rank_rig *s, uint32_t world, uint64_t step, const size_t floats[]);
/* What the manifest of a step says; a file of these bytes is there if it names one. */
struct named named_by(const struct rank_rig *s, uint64_t generation, uint64_t step);
/* Both name one, and it is the same. */
bool named_same(struct named a, struct named b);

#endif
