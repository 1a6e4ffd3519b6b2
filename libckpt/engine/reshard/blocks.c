/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks that end in a block, and where their bytes are. */
#include "engine/reshard/blocks.h"

size_t ckpt_blocks_count(const struct ckpt_layout *layout, uint32_t block_bytes)
{
	CKPT_ASSERT(block_bytes > 0 && layout->bytes <= CKPT_SHARD_BYTES_MAX);
	return (size_t)((layout->bytes + block_bytes - 1) / block_bytes);
}

static uint64_t chunk_end(const struct ckpt_layout *layout, size_t chunk)
{
	return layout->chunks[chunk].offset + layout->chunks[chunk].length;
}

struct ckpt_span ckpt_blocks_span(
	const struct ckpt_layout *layout, uint32_t block_bytes, size_t block)
{
	CKPT_ASSERT(block < ckpt_blocks_count(layout, block_bytes));
	uint64_t offset = (uint64_t)block * block_bytes;
	uint64_t length = ckpt_min_u64(block_bytes, layout->bytes - offset);
	uint64_t end = offset + length;
	struct ckpt_span span = {.offset = offset, .length = (uint32_t)length};

	/* The chunk that contains the first byte ends after it, so no earlier chunk ends in this block. */
	span.first_chunk = ckpt_layout_chunk_at(layout, offset);
	size_t last = ckpt_layout_chunk_at(layout, end - 1);
	span.chunk_count = last - span.first_chunk + (chunk_end(layout, last) <= end);
	span.straddled = layout->chunks[span.first_chunk].offset < offset;
	return span;
}

struct ckpt_pieces ckpt_blocks_pieces(uint64_t offset, uint64_t length, uint64_t block_offset,
	uint32_t block_bytes, char *before, char *here)
{
	struct ckpt_pieces pieces = {0};
	uint64_t start = offset;

	CKPT_ASSERT(offset + length <= block_offset + block_bytes);
	if (offset < block_offset) {
		uint64_t back = block_offset - offset;
		CKPT_ASSERT(before && back <= block_bytes);
		pieces.head = before + (block_bytes - back);
		pieces.head_length = ckpt_min_u64(length, back);
		start += pieces.head_length;
	}
	if (offset + length > start) {
		pieces.tail = here + (start - block_offset);
		pieces.tail_length = offset + length - start;
	}
	return pieces;
}
