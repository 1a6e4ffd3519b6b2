/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the next step of a rank may be predicted from: its shard of the last committed step. Its bytes are still in the
 * staging slots from which they were written. These slots are free, and anybody's to take: a save takes them back, if
 * nobody has used them since. So a base takes no memory from others, and may be lost at any time.
 */
#ifndef CKPT_ENGINE_SAVE_STAGED_BASE_H
#define CKPT_ENGINE_SAVE_STAGED_BASE_H

#include "engine/core/staged_shard.h"
#include "engine/save/plan.h"
#include "format/encoded.h"
#include "format/manifest.h"

/* Whoever reads it while a save has it on workers changes nothing. */
struct ckpt_staged_base {
	struct ckpt_digest plan; /* of the shard's names, types and boxes */
	uint64_t bytes;          /* of the shard */
	uint64_t header_bytes;
	size_t chunk_count;
	uint32_t block_bytes;
	/* All that it is decoded from, by step. The last one is the shard itself, which has no name at first. */
	struct ckpt_encoded_base files[CKPT_ENCODED_BASES_MAX];
	unsigned file_count;
	uint8_t *origins;            /* by chunk: which of `files` has its bytes */
	struct ckpt_digest *digests; /* of the chunks */
	struct ckpt_pool *pool;
	struct ckpt_staged_shard *staged; /* its blocks */
	bool taken;
};

/*
 * Of a shard that has been written, with this table. `staged` becomes its own, if there is one. NULL: no memory, or it is
 * decoded from as many shards as there may be.
 */
struct ckpt_staged_base *ckpt_staged_base_new(const struct ckpt_plan *plan,
	const struct ckpt_encoded *table, struct ckpt_pool *pool, struct ckpt_staged_shard *staged);
/* Its step is committed: `rank` is its entry in the manifest. */
void ckpt_staged_base_name(struct ckpt_staged_base *base, const struct ckpt_manifest_rank *rank,
	uint64_t generation, uint64_t step);
/* It is not taken. NULL is ignored. */
void ckpt_staged_base_free(struct ckpt_staged_base *base);

/* Whether a shard has the same tensors and the same chunks. */
bool ckpt_staged_base_fits(const struct ckpt_staged_base *base, const struct ckpt_plan *plan);
/* Takes its slots out of the pool. False: not all have its bytes any more. */
bool ckpt_staged_base_take(struct ckpt_staged_base *base);
/* They are free again, with what they hold. */
void ckpt_staged_base_put(struct ckpt_staged_base *base);

/* Of one that is taken; any thread. */

/* Its bytes from `offset` on. If they are not contiguous in memory, they are copied to `room`. */
const void *ckpt_staged_base_bytes(
	const struct ckpt_staged_base *base, uint64_t offset, size_t length, void *room);
/*
 * The number that a chunk of the next shard has for its base: 1 for the first of `files`. 0: what is in memory is not what was
 * saved, and nothing may be predicted from it.
 */
uint8_t ckpt_staged_base_number(
	const struct ckpt_staged_base *base, const struct ckpt_layout *layout, size_t chunk);

/* A table whose chunks have these numbers names all of `files`; none if no chunk has one. */
void ckpt_staged_base_list(const struct ckpt_staged_base *base, struct ckpt_encoded *table);

#endif
