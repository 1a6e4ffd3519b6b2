/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout divided into blocks: a slot holds one, and a request transfers one. Chunks are bounded by content and blocks
 * by position, so a chunk may end one block later than it begins, but never more. Its digest is checked with the block
 * in which it ends, which then also needs the previous block.
 */
#ifndef CKPT_ENGINE_RESHARD_BLOCKS_H
#define CKPT_ENGINE_RESHARD_BLOCKS_H

#include "format/layout.h"

struct ckpt_span {
	uint64_t offset;    /* offset of the block in the shard; a multiple of block_bytes */
	uint32_t length;    /* its bytes in the shard */
	bool straddled;     /* the first chunk that ends here begins in the previous block */
	size_t first_chunk; /* the chunks that end in this block */
	size_t chunk_count;
};

/* The number of blocks of a layout. Requires chunk_bytes <= block_bytes. */
size_t ckpt_blocks_count(const struct ckpt_layout *layout, uint32_t block_bytes);
struct ckpt_span ckpt_blocks_span(
	const struct ckpt_layout *layout, uint32_t block_bytes, size_t block);

/*
 * Where bytes [offset, offset+length) of the shard are: in `here`, the memory of block `block`, or partly in `before`,
 * that of the previous block. Sets the two pieces; either may be empty.
 */
struct ckpt_pieces {
	char *head;
	uint64_t head_length;
	char *tail;
	uint64_t tail_length;
};
struct ckpt_pieces ckpt_blocks_pieces(uint64_t offset, uint64_t length, uint64_t block_offset,
	uint32_t block_bytes, char *before, char *here);

#endif
