/* SPDX-License-Identifier: Apache-2.0 */
/* A bit for each chunk. */
#include "engine/shard/chunkset.h"

#include <errno.h>

#include "base/alloc.h"

int ckpt_chunkset_init(struct ckpt_chunkset *set, const struct ckpt_layout *layout)
{
	*set = (struct ckpt_chunkset){.room = layout->chunk_count};
	set->bits = ckpt_alloc_array(set->room / 64 + 1, sizeof(*set->bits));
	return set->bits ? 0 : -ENOMEM;
}

void ckpt_chunkset_clear(struct ckpt_chunkset *set)
{
	ckpt_free(set->bits);
	*set = (struct ckpt_chunkset){0};
}

void ckpt_chunkset_add(struct ckpt_chunkset *set, size_t chunk)
{
	CKPT_ASSERT(chunk < set->room);
	set->count += !ckpt_chunkset_has(set, chunk);
	set->bits[chunk / 64] |= UINT64_C(1) << (chunk % 64);
}

void ckpt_chunkset_add_behind(
	struct ckpt_chunkset *set, const struct ckpt_layout *layout, uint64_t bytes)
{
	for (size_t i = layout->chunk_count; i > 0; i--) {
		const struct ckpt_chunk *c = &layout->chunks[i - 1];

		if (c->offset + c->length <= bytes)
			break;
		ckpt_chunkset_add(set, i - 1);
	}
}

bool ckpt_chunkset_has(const struct ckpt_chunkset *set, size_t chunk)
{
	return chunk < set->room && set->bits[chunk / 64] >> (chunk % 64) & 1;
}

uint64_t ckpt_chunkset_bytes(const struct ckpt_chunkset *set, const struct ckpt_layout *layout)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < set->room; i++)
		if (ckpt_chunkset_has(set, i))
			bytes += layout->chunks[i].length;
	return bytes;
}
