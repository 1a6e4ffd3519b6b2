/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/frame.h"

#include <string.h>

#include "codec/huffman.h"

#define BLOCK      ((size_t)1 << 17) /* the most that a block holds */
#define BLOCK_HEAD 3
#define FEWEST     64           /* symbols of a block that are worth a code */
#define ONE_STREAM 1024         /* fewer are in one stream */
#define JUMPS      6            /* the lengths of the first three streams */
#define SLACK      ((size_t)64) /* what a writer of bits may write beyond its end */

enum block_type { BLOCK_RAW = 0, BLOCK_COMPRESSED = 2 };
enum literals_type { LITERALS_COMPRESSED = 2, LITERALS_TREELESS = 3 };

size_t ckpt_frame_room(size_t length)
{
	/* A block that would grow is stored as it is; before that is known, it has been written at 11 bits a symbol. */
	return 9 + length + (length / BLOCK + 1) * 16 + BLOCK / 2 + CKPT_HUFFMAN_HEADER + 5 * SLACK;
}

static void put_le(uint8_t *out, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static void put_block_head(uint8_t *out, bool last, enum block_type type, size_t size)
{
	put_le(out, (uint64_t)last | (uint64_t)type << 1 | (uint64_t)size << 3, BLOCK_HEAD);
}

/* One stream; or four, and the lengths of three before them. */
static size_t put_streams(const struct ckpt_kernels *kernels, const struct ckpt_huffman *table,
	const uint8_t *symbols, size_t length, uint8_t *out)
{
	size_t quarter = (length + 3) / 4;
	uint8_t *at = out + JUMPS;

	if (length < ONE_STREAM)
		return kernels->huffman(table, symbols, length, out);
	for (size_t i = 0; i < 4; i++) {
		size_t count = i < 3 ? quarter : length - 3 * quarter;
		size_t size = kernels->huffman(table, symbols + i * quarter, count, at);

		if (i < 3)
			put_le(out + 2 * i, size, 2);
		at += size;
	}
	return (size_t)(at - out);
}

/* One segment, whose size has one, two or four bytes. */
static size_t put_frame_head(size_t length, uint8_t *out)
{
	unsigned bytes = length < 256 ? 1 : length < 256 + 65536 ? 2 : 4;

	out[0] = (uint8_t)(0x20 | bytes / 2 << 6);
	put_le(out + 1, bytes == 2 ? length - 256 : length, bytes);
	return 1 + bytes;
}

/* The head of literals: both sizes have 10, 14 or 18 bits. */
static size_t literals_head(size_t count)
{
	return count < ONE_STREAM ? 3 : count < 16384 ? 4 : 5;
}

static void put_literals_head(enum literals_type type, size_t count, size_t size, uint8_t *out)
{
	size_t bytes = literals_head(count);
	unsigned bits = bytes == 3 ? 10 : bytes == 4 ? 14 : 18;

	put_le(out,
		(uint64_t)type | (uint64_t)(bytes == 3 ? 0 : bytes - 2) << 2 |
			(uint64_t)count << 4 | (uint64_t)size << (4 + bits),
		(unsigned)bytes);
}

size_t ckpt_frame_write(const struct ckpt_kernels *kernels, const uint32_t counts[256],
	const uint8_t *symbols, size_t length, uint8_t *out)
{
	struct ckpt_huffman table;
	uint8_t header[CKPT_HUFFMAN_HEADER];
	size_t header_length = ckpt_huffman_build(&table, counts, header);
	uint8_t *at = out;
	bool described = false;

	CKPT_ASSERT(length > 0 && length <= UINT32_MAX);
	if (header_length == 0)
		return 0;
	at += put_frame_head(length, at);
	while (length > 0) {
		size_t count = length < BLOCK ? length : BLOCK;
		bool last = count == length;
		size_t head = literals_head(count);
		uint8_t *literals = at + BLOCK_HEAD + head;
		size_t size = described ? 0 : header_length;

		memcpy(literals, header, size);
		if (count >= FEWEST)
			size += put_streams(kernels, &table, symbols, count, literals + size);
		/* The head before, and a byte behind that says that there are no sequences. */
		if (count < FEWEST || size + head + 1 >= count) {
			put_block_head(at, last, BLOCK_RAW, count);
			memcpy(at + BLOCK_HEAD, symbols, count);
			at += BLOCK_HEAD + count;
		} else {
			put_block_head(at, last, BLOCK_COMPRESSED, size + head + 1);
			put_literals_head(described ? LITERALS_TREELESS : LITERALS_COMPRESSED,
				count, size, at + BLOCK_HEAD);
			literals[size] = 0;
			at = literals + size + 1;
			described = true;
		}
		symbols += count;
		length -= count;
	}
	return (size_t)(at - out);
}
