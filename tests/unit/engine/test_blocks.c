/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of layouts of every kind, against a walk over the chunks. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/reshard/blocks.h"
#include "lib/prng.h"

#define TENSORS 40

static struct ckpt_layout *random_layout(struct prng *d, uint64_t chunk_bytes)
{
	static char names[TENSORS][16];
	static int64_t shapes[TENSORS];
	static const uint32_t dtypes[] = {CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_C128};
	struct ckpt_tensor tensors[TENSORS];
	struct ckpt_layout *layout = NULL;
	size_t count = prng_below(d, TENSORS + 1);

	for (size_t i = 0; i < count; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
		/* Empty, small, about a chunk, or several. */
		static const uint64_t most[] = {1, 64, 5000, 40000};
		shapes[i] = (int64_t)prng_below(d, most[prng_below(d, 4)]);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = dtypes[prng_below(d, 5)],
			.ndim = 1,
			.shape = &shapes[i]};
	}
	assert_int_equal(ckpt_layout_build(tensors, count, NULL, 0, chunk_bytes, NULL, &layout), 0);
	return layout;
}

/* Every byte is in one block, and every chunk ends in one, with all those before it accounted for. */
static void check_spans(const struct ckpt_layout *layout, uint32_t block_bytes)
{
	uint64_t offset = 0;
	size_t chunk = 0;

	for (size_t i = 0; i < ckpt_blocks_count(layout, block_bytes); i++) {
		struct ckpt_span s = ckpt_blocks_span(layout, block_bytes, i);
		uint64_t end = s.offset + s.length;

		assert_int_equal(s.offset, offset);
		assert_true(s.length > 0 && s.length <= block_bytes);
		assert_true(s.length == block_bytes || end == layout->bytes);
		if (s.chunk_count > 0)
			assert_int_equal(s.first_chunk, chunk);
		bool straddled = false;
		for (size_t k = 0; k < s.chunk_count; k++, chunk++) {
			const struct ckpt_chunk *c = &layout->chunks[chunk];
			assert_true(c->offset + c->length > offset);
			assert_true(c->offset + c->length <= end);
			straddled = straddled || c->offset < offset;
			if (c->offset < offset)
				assert_true(k == 0 && i > 0 && c->offset >= offset - block_bytes);
		}
		assert_int_equal(s.straddled, straddled);
		offset = end;
	}
	assert_int_equal(offset, layout->bytes);
	assert_int_equal(chunk, layout->chunk_count);
}

static char byte_at(uint64_t offset)
{
	return (char)(offset * 31 + (offset >> 8) * 7 + (offset >> 16));
}

static void check_piece(const char *piece, uint64_t length, uint64_t offset)
{
	for (uint64_t i = 0; i < length; i++)
		assert_int_equal(piece[i], byte_at(offset + i));
}

/* The two pieces are the range, wherever it lies in a block and its predecessor. */
static void check_pieces(struct prng *d, const struct ckpt_layout *layout, uint32_t block_bytes)
{
	char *memory = malloc(2 * (size_t)block_bytes);

	for (size_t i = 0; i < ckpt_blocks_count(layout, block_bytes); i++) {
		struct ckpt_span s = ckpt_blocks_span(layout, block_bytes, i);
		uint64_t from = i ? s.offset - block_bytes : 0;
		for (uint64_t k = i ? 0 : block_bytes; k < 2 * (uint64_t)block_bytes; k++)
			memory[k] = byte_at(s.offset - block_bytes + k);
		for (int n = 0; n < 20; n++) {
			uint64_t lo = from + prng_below(d, s.offset + s.length - from);
			uint64_t length = prng_below(d, s.offset + s.length - lo + 1);
			struct ckpt_pieces p = ckpt_blocks_pieces(lo, length, s.offset, block_bytes,
				i ? memory : NULL, memory + block_bytes);
			assert_int_equal(p.head_length + p.tail_length, length);
			check_piece(p.head, p.head_length, lo);
			check_piece(p.tail, p.tail_length, lo + p.head_length);
			/* Where an empty one would lie may be before the memory. */
			if (p.tail_length == 0)
				assert_null(p.tail);
		}
	}
	free(memory);
}

static void test_spans(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct prng d = {seed};
		uint64_t chunk_bytes = 1 + prng_below(&d, 20000);
		uint32_t block_bytes =
			(uint32_t)(chunk_bytes + prng_below(&d, seed % 3 ? 50000 : 2));
		struct ckpt_layout *layout = random_layout(&d, chunk_bytes);
		check_spans(layout, block_bytes);
		ckpt_layout_free(layout);
	}
}

static void test_pieces(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		struct prng d = {seed * 1000};
		uint64_t chunk_bytes = 1 + prng_below(&d, 5000);
		struct ckpt_layout *layout = random_layout(&d, chunk_bytes);
		check_pieces(&d, layout, (uint32_t)(chunk_bytes + prng_below(&d, 5000)));
		ckpt_layout_free(layout);
	}
}

/* A chunk that ends with its block belongs to that block, not to the next one. */
static void test_edges(void **state)
{
	int64_t shape = INT64_C(4) * 4096;
	struct ckpt_tensor tensor = {
		.size = sizeof(tensor), .name = "w", .dtype = CKPT_U8, .ndim = 1, .shape = &shape};
	struct ckpt_layout *layout = NULL;

	(void)state;
	assert_int_equal(ckpt_layout_build(&tensor, 1, NULL, 0, 4096, NULL, &layout), 0);
	assert_int_equal(layout->bytes, 5 * 4096);
	assert_int_equal(ckpt_blocks_count(layout, 8192), 3);
	for (size_t i = 0; i < 3; i++) {
		struct ckpt_span s = ckpt_blocks_span(layout, 8192, i);
		assert_int_equal(s.first_chunk, 2 * i);
		assert_int_equal(s.chunk_count, i < 2 ? 2 : 1);
		assert_false(s.straddled);
	}
	ckpt_layout_free(layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_edges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
