/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout cut into blocks: what one slot holds and one request moves. Chunks are cut by content and
 * blocks by position, so a chunk may end in the block after the one it begins in, never later. Its
 * digest is the business of the block that it ends in, which then needs its predecessor too.
 */
#ifndef CKPT_ENGINE_RESHARD_BLOCKS_H
#define CKPT_ENGINE_RESHARD_BLOCKS_H

#include "format/layout.h"

struct ckpt_span {
	uint64_t offset;    /* of the block in the shard; a multiple of block_bytes */
	uint32_t length;    /* bytes of the shard in it */
	bool straddled;     /* the first chunk that ends here begins in the block before */
	size_t first_chunk; /* chunks that end in this block: */
	size_t chunk_count;
};

/* Number of blocks of a layout. Precondition: chunk_bytes <= block_bytes. */
size_t ckpt_blocks_count(const struct ckpt_layout *layout, uint32_t block_bytes);
struct ckpt_span ckpt_blocks_span(
	const struct ckpt_layout *layout, uint32_t block_bytes, size_t block);

/*
 * Where byte range [offset, offset+length) of the shard lies: in `here`, the memory of block `block`,
 * or partly in `before`, that of its predecessor. Sets the two pieces; either may be empty.
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
