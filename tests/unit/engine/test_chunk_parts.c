/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of chunks: of tensors whose parts are written down here, and of layouts of every kind. */
#include "lib/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/shard/chunk_parts.h"
#include "lib/prng.h"

#define TENSORS 40
#define KIB     INT64_C(1024)

struct want {
	size_t chunk;
	uint64_t length;
	unsigned width;
	enum ckpt_chunk_kind kind;
	const char *name; /* NULL: no one tensor */
};

static struct ckpt_layout *layout_of(
	struct ckpt_tensor *tensors, size_t count, uint64_t chunk_bytes)
{
	struct ckpt_layout *layout = NULL;

	assert_int_equal(ckpt_layout_build(tensors, count, NULL, 0, chunk_bytes, NULL, &layout), 0);
	return layout;
}

static void check(const struct ckpt_layout *layout, const struct want *wants, size_t count)
{
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	size_t next = 0;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		uint64_t at = layout->chunks[i].offset;

		ckpt_chunk_parts_begin(&parts, layout, i);
		while (ckpt_chunk_parts_next(&parts, &part)) {
			assert_true(next < count);
			const struct want *w = &wants[next++];
			assert_int_equal(part.offset, at);
			assert_int_equal(w->chunk, i);
			assert_int_equal(part.length, w->length);
			assert_int_equal(part.width, w->width);
			assert_int_equal(part.kind, w->kind);
			assert_true(!part.entry == !w->name);
			if (w->name)
				assert_string_equal(part.entry->name, w->name);
			at += part.length;
		}
		assert_int_equal(at, layout->chunks[i].offset + layout->chunks[i].length);
	}
	assert_int_equal(next, count);
}

#define TENSOR(text, type, elements)                                                               \
	{                                                                                          \
		.size = sizeof(struct ckpt_tensor), .name = (text), .dtype = (type), .ndim = 1,    \
		.shape = (const int64_t[])                                                         \
		{                                                                                  \
			elements                                                                   \
		}                                                                                  \
	}

static void test_written_down(void **state)
{
	struct ckpt_tensor tensors[] = {
		TENSOR("a", CKPT_C128, 10),
		TENSOR("b", CKPT_F64, 3),
		TENSOR("c", CKPT_C64, 2),
		TENSOR("d", CKPT_I64, 2),
		TENSOR("e", CKPT_F32, 100),
		TENSOR("f", CKPT_F32, 0),
		TENSOR("g", CKPT_F32, 16 * KIB),
		TENSOR("h", CKPT_F32, 4095),
		TENSOR("i", CKPT_F32, 4096),
		TENSOR("j", CKPT_F32, 300 * KIB),
		TENSOR("k", CKPT_BF16, 5),
		TENSOR("l", CKPT_C32, 5),
		TENSOR("m", CKPT_F16, 5),
		TENSOR("n", CKPT_F8_E4M3, 5),
		TENSOR("o", CKPT_F8_E8M0, 5),
		TENSOR("p", CKPT_U8, 5),
	};
	/* Elements of 16 bytes, of 8, 4, 2 and 1; by name then. */
	static const struct want wants[] = {
		{0, 4096, 1, CKPT_KIND_INT, NULL},
		{1, 160 + 24, 8, CKPT_KIND_FLOAT, NULL},
		{1, 16, 4, CKPT_KIND_FLOAT, "c"},
		{1, 16, 8, CKPT_KIND_INT, "d"},
		{1, 400, 4, CKPT_KIND_FLOAT, "e"},
		{1, 64 * 1024, 4, CKPT_KIND_FLOAT, "g"},
		{1, 4095 * 4, 4, CKPT_KIND_FLOAT, "h"},
		{1, 4096 * 4, 4, CKPT_KIND_FLOAT, "i"},
		{2, 1024 * 1024, 4, CKPT_KIND_FLOAT, "j"},
		{3, 176 * 1024, 4, CKPT_KIND_FLOAT, "j"},
		{4, 20, 2, CKPT_KIND_F16, "l"},
		{4, 10, 2, CKPT_KIND_BF16, "k"},
		{4, 10, 2, CKPT_KIND_F16, "m"},
		{4, 5, 1, CKPT_KIND_FLOAT, "n"},
		{4, 10, 1, CKPT_KIND_INT, NULL},
	};
	struct ckpt_layout *layout = layout_of(tensors, CKPT_COUNT(tensors), CKPT_CHUNK_BYTES);

	(void)state;
	check(layout, wants, CKPT_COUNT(wants));
	ckpt_layout_free(layout);
}

/* Chunks that are longer than a part, and those that are cut within elements. */
static void test_other_chunks(void **state)
{
	struct ckpt_tensor large[] = {TENSOR("a", CKPT_F32, 600 * KIB)};
	static const struct want wants[] = {
		{0, 4096, 1, CKPT_KIND_INT, NULL},
		{1, 1024 * 1024, 4, CKPT_KIND_FLOAT, "a"},
		{1, 1024 * 1024, 4, CKPT_KIND_FLOAT, "a"},
		{1, 352 * 1024, 4, CKPT_KIND_FLOAT, "a"},
	};
	struct ckpt_tensor odd[] = {TENSOR("a", CKPT_F32, 1000)};
	static const struct want odd_wants[] = {
		{0, 3001, 1, CKPT_KIND_INT, NULL},
		{1, 1095, 1, CKPT_KIND_INT, NULL},
		{2, 3001, 1, CKPT_KIND_INT, "a"},
		{3, 999, 1, CKPT_KIND_INT, "a"},
	};
	struct ckpt_layout *layout = layout_of(large, 1, UINT64_C(4) << 20);

	(void)state;
	check(layout, wants, CKPT_COUNT(wants));
	ckpt_layout_free(layout);
	layout = layout_of(odd, 1, 3001);
	check(layout, odd_wants, CKPT_COUNT(odd_wants));
	ckpt_layout_free(layout);
}

/* The parts of every chunk are its bytes, and each is whole elements. */
static void check_parts(const struct ckpt_layout *layout)
{
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		uint64_t at = layout->chunks[i].offset;

		ckpt_chunk_parts_begin(&parts, layout, i);
		while (ckpt_chunk_parts_next(&parts, &part)) {
			assert_int_equal(part.offset, at);
			assert_true(part.length > 0 && part.length <= CKPT_CODEC_CHUNK_BYTES);
			assert_true(part.width <= 8 && part.length % part.width == 0);
			at += part.length;
		}
		assert_int_equal(at, layout->chunks[i].offset + layout->chunks[i].length);
	}
}

static void test_random(void **state)
{
	static char names[TENSORS][16];
	static int64_t shapes[TENSORS];
	struct ckpt_tensor tensors[TENSORS];
	struct prng d = {1};

	(void)state;
	for (size_t round = 0; round < 300; round++) {
		size_t count = prng_below(&d, TENSORS + 1);

		for (size_t i = 0; i < count; i++) {
			static const uint64_t most[] = {1, 64, 5000, 400000};

			(void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
			shapes[i] = (int64_t)prng_below(&d, most[prng_below(&d, 4)]);
			tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
				.name = names[i],
				.dtype = 1 + (uint32_t)prng_below(&d, CKPT_DTYPE_END - 1),
				.ndim = 1,
				.shape = &shapes[i]};
		}
		struct ckpt_layout *layout =
			layout_of(tensors, count, 1000 + prng_below(&d, 3 * 1000 * 1000));
		check_parts(layout);
		ckpt_layout_free(layout);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_written_down),
		cmocka_unit_test(test_other_chunks),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
