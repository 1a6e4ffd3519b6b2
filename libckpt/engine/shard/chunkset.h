/* SPDX-License-Identifier: Apache-2.0 */
/* Some of the chunks of a shard. Pure. */
#ifndef CKPT_ENGINE_SHARD_CHUNKSET_H
#define CKPT_ENGINE_SHARD_CHUNKSET_H

#include "format/layout.h"

/* Zero has no chunks, and takes none. */
struct ckpt_chunkset {
	uint64_t *bits;
	size_t room;  /* chunks of the shard */
	size_t count; /* of them, in the set */
};

/* Empty. -ENOMEM. */
int ckpt_chunkset_init(struct ckpt_chunkset *set, const struct ckpt_layout *layout);
void ckpt_chunkset_clear(struct ckpt_chunkset *set);

/* One that is in it already stays. */
void ckpt_chunkset_add(struct ckpt_chunkset *set, size_t chunk);
/* Those that a file of `bytes` does not hold whole. */
void ckpt_chunkset_add_behind(
	struct ckpt_chunkset *set, const struct ckpt_layout *layout, uint64_t bytes);
bool ckpt_chunkset_has(const struct ckpt_chunkset *set, size_t chunk);
uint64_t ckpt_chunkset_bytes(const struct ckpt_chunkset *set, const struct ckpt_layout *layout);

#endif
