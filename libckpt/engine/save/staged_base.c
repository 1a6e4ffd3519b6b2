/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/staged_base.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

struct ckpt_staged_base *ckpt_staged_base_new(const struct ckpt_plan *plan,
	const struct ckpt_encoded *table, struct ckpt_pool *pool, struct ckpt_staged_shard *staged)
{
	const struct ckpt_layout *layout = plan->layout;
	struct ckpt_staged_base *base;

	CKPT_ASSERT(table->chunk_count == layout->chunk_count);
	if (table->base_count == CKPT_ENCODED_BASES_MAX)
		return NULL;
	base = ckpt_alloc(sizeof(*base));
	if (!base)
		return NULL;
	*base = (struct ckpt_staged_base){.plan = plan->digest,
		.bytes = layout->bytes,
		.header_bytes = layout->header_bytes,
		.chunk_count = layout->chunk_count,
		.block_bytes = plan->block_bytes,
		.file_count = table->base_count + 1,
		.origins = ckpt_alloc_array(layout->chunk_count, sizeof(*base->origins)),
		.digests = ckpt_alloc_array(layout->chunk_count, sizeof(*base->digests)),
		.pool = pool};
	if (!base->origins || !base->digests) {
		ckpt_staged_base_free(base);
		return NULL;
	}
	memcpy(base->files, table->bases, table->base_count * sizeof(base->files[0]));
	for (size_t i = 0; i < base->chunk_count; i++) {
		const struct ckpt_encoded_chunk *c = &table->chunks[i];

		base->origins[i] =
			(uint8_t)(c->kind == CKPT_ENCODED_SAME ? c->base - 1u : table->base_count);
		base->digests[i] = layout->chunks[i].digest;
	}
	base->staged = staged;
	return base;
}

void ckpt_staged_base_name(struct ckpt_staged_base *base, const struct ckpt_manifest_rank *rank,
	uint64_t generation, uint64_t step)
{
	base->files[base->file_count - 1] = (struct ckpt_encoded_base){.generation = generation,
		.step = step,
		.attempt = strtoull(rank->attempt, NULL, 16),
		.index_bytes = rank->index_bytes,
		.index_digest = rank->index_digest};
}

void ckpt_staged_base_free(struct ckpt_staged_base *base)
{
	if (!base)
		return;
	CKPT_ASSERT(!base->taken);
	ckpt_free(base->origins);
	ckpt_free(base->digests);
	ckpt_staged_shard_free(base->staged);
	ckpt_free(base);
}

bool ckpt_staged_base_fits(const struct ckpt_staged_base *base, const struct ckpt_plan *plan)
{
	return ckpt_digest_equal(&base->plan, &plan->digest) &&
	       base->bytes == plan->layout->bytes &&
	       base->header_bytes == plan->layout->header_bytes &&
	       base->chunk_count == plan->layout->chunk_count &&
	       base->block_bytes == plan->block_bytes;
}

static struct ckpt_slot *slot_of(const struct ckpt_staged_base *base, size_t block)
{
	return ckpt_pool_slot(base->pool, base->staged->blocks[block].slot);
}

static void put_first(struct ckpt_staged_base *base, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ckpt_pool_put(base->pool, slot_of(base, i));
}

bool ckpt_staged_base_take(struct ckpt_staged_base *base)
{
	const struct ckpt_staged_shard *staged = base->staged;

	CKPT_ASSERT(!base->taken);
	for (size_t i = 0; i < staged->count; i++) {
		if (ckpt_pool_retake(base->pool, staged->blocks[i].slot, staged->blocks[i].uses))
			continue;
		put_first(base, i);
		return false;
	}
	base->taken = true;
	return true;
}

void ckpt_staged_base_put(struct ckpt_staged_base *base)
{
	CKPT_ASSERT(base->taken);
	put_first(base, base->staged->count);
	base->taken = false;
}

const void *ckpt_staged_base_bytes(
	const struct ckpt_staged_base *base, uint64_t offset, size_t length, void *room)
{
	size_t block = (size_t)(offset / base->block_bytes);
	uint32_t at = (uint32_t)(offset % base->block_bytes);
	char *to = room;

	CKPT_ASSERT(base->taken);
	if (length <= base->block_bytes - at)
		return slot_of(base, block)->data + at;
	for (; length > 0; block++, at = 0) {
		size_t size = ckpt_min_u64(length, base->block_bytes - at);

		memcpy(to, slot_of(base, block)->data + at, size);
		to += size;
		length -= size;
	}
	return room;
}

/* A chunk lies in one block or in two. */
static struct ckpt_digest digest_of(
	const struct ckpt_staged_base *base, const struct ckpt_chunk *chunk)
{
	size_t last = (size_t)((chunk->offset + chunk->length - 1) / base->block_bytes);
	struct ckpt_pieces p = ckpt_blocks_pieces(chunk->offset, chunk->length,
		last * base->block_bytes, base->block_bytes,
		last > 0 ? slot_of(base, last - 1)->data : NULL, slot_of(base, last)->data);

	return ckpt_digest_of_two(p.head, p.head_length, p.tail, p.tail_length);
}

uint8_t ckpt_staged_base_number(
	const struct ckpt_staged_base *base, const struct ckpt_layout *layout, size_t chunk)
{
	struct ckpt_digest digest = digest_of(base, &layout->chunks[chunk]);

	return ckpt_digest_equal(&digest, &base->digests[chunk])
		       ? (uint8_t)(base->origins[chunk] + 1)
		       : 0;
}

void ckpt_staged_base_list(const struct ckpt_staged_base *base, struct ckpt_encoded *table)
{
	bool any = false;

	for (size_t i = 0; i < table->chunk_count; i++)
		any = any || table->chunks[i].base > 0;
	/* What one of them is decoded from is among the others. */
	table->base_count = any ? base->file_count : 0;
	memcpy(table->bases, base->files, table->base_count * sizeof(table->bases[0]));
}
