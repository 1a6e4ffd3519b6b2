/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors and chunks lie: against a slow and simple oracle, and by hand. */
#include "format_kit.h"

#include <errno.h>
#include <stdlib.h>

/* Whether tensor `a` comes before `b`, by FORMAT.md. */
static bool before(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
	uint32_t size_a = ckpt_dtype_bytes(a->dtype);
	uint32_t size_b = ckpt_dtype_bytes(b->dtype);

	return size_a != size_b ? size_a > size_b : strcmp(a->name, b->name) < 0;
}

static uint64_t bytes_of(const struct ckpt_tensor *t)
{
	uint64_t bytes = ckpt_dtype_bytes(t->dtype);

	for (uint32_t i = 0; i < t->ndim; i++)
		bytes *= (uint64_t)t->shape[i];
	return bytes;
}

/* The chunks as the rule says it, byte range by byte range. */
static void check_chunks(const struct ckpt_layout *layout)
{
	uint64_t end = layout->header_bytes; /* of what may not be joined with what follows */
	uint64_t start = 0;
	size_t next_entry = 0;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		const struct ckpt_chunk *chunk = &layout->chunks[i];
		uint64_t length = 0;

		assert_int_equal(chunk->offset, start);
		if (start < end) {
			length = ckpt_min_u64(end - start, layout->chunk_bytes);
		} else {
			for (; next_entry < layout->entry_count; next_entry++) {
				const struct ckpt_entry *e = &layout->entries[next_entry];

				if (e->nbytes >= layout->chunk_bytes && length > 0)
					break;
				if (e->nbytes >= layout->chunk_bytes) {
					end = start + e->nbytes;
					length = layout->chunk_bytes;
					next_entry++;
					break;
				}
				if (length + e->nbytes > layout->chunk_bytes)
					break;
				length += e->nbytes;
			}
		}
		assert_int_equal(chunk->length, length);
		assert_true(length > 0 && length <= layout->chunk_bytes);
		start += length;
	}
	assert_int_equal(start, layout->bytes);
}

static void check_layout(const struct kit *kit, const struct ckpt_layout *layout)
{
	uint64_t offset = layout->header_bytes;

	assert_int_equal(layout->header_bytes % CKPT_HEADER_ALIGN, 0);
	assert_int_equal(layout->entry_count, kit->count);
	assert_int_equal(layout->alias_count, kit->alias_count);
	for (size_t i = 0; i < kit->count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		const struct ckpt_tensor *t = &kit->tensors[e->source];
		size_t earlier = 0;

		for (size_t k = 0; k < kit->count; k++)
			earlier += before(&kit->tensors[k], t);
		assert_int_equal(earlier, i);
		assert_string_equal(e->name, t->name);
		assert_ptr_not_equal(e->name, t->name);
		assert_int_equal(e->dtype, t->dtype);
		assert_int_equal(e->ndim, t->ndim);
		if (t->ndim)
			assert_memory_equal(e->shape, t->shape, t->ndim * sizeof(*t->shape));
		assert_null(e->global_shape);
		assert_null(e->global_start);
		assert_int_equal(e->nbytes, bytes_of(t));
		assert_int_equal(e->offset, offset);
		/* What lets a reader map a tensor: it is aligned to its element. */
		if (e->nbytes)
			assert_int_equal(e->offset % ckpt_dtype_bytes(e->dtype), 0);
		offset += e->nbytes;
	}
	assert_int_equal(layout->bytes, offset);
	check_chunks(layout);
	assert_int_equal(ckpt_layout_cuts(layout), layout->chunk_count);
}

static void check_found(const struct kit *kit, const struct ckpt_layout *layout)
{
	for (size_t i = 0; i < kit->count; i++) {
		const struct ckpt_entry *e = ckpt_layout_find(layout, kit->tensors[i].name);

		assert_non_null(e);
		assert_int_equal(e->source, i);
	}
	for (size_t i = 0; i < kit->alias_count; i++) {
		const struct ckpt_entry *e = ckpt_layout_find(layout, kit->aliases[i].name);

		assert_non_null(e);
		assert_string_equal(e->name, kit->aliases[i].target);
	}
	assert_null(ckpt_layout_find(layout, ""));
	assert_null(ckpt_layout_find(layout, "no such name"));
	assert_null(ckpt_layout_find(layout, "\xff"));
}

static void shuffle(struct kit *kit)
{
	for (size_t i = kit->count; i > 1; i--) {
		size_t k = kit_next(kit) % i;
		struct ckpt_tensor t = kit->tensors[i - 1];

		kit->tensors[i - 1] = kit->tensors[k];
		kit->tensors[k] = t;
	}
}

static void test_random_layouts(void **state)
{
	struct kit kit = {.seed = 1};

	(void)state;
	for (int round = 0; round < 400; round++) {
		struct ckpt_layout *layout;
		struct ckpt_layout *again;

		kit_draw(&kit, KIT_TENSORS);
		layout = kit_build(&kit);
		check_layout(&kit, layout);
		check_found(&kit, layout);
		/* The order in which the tensors came leaves no trace. */
		shuffle(&kit);
		again = kit_build(&kit);
		check_layout(&kit, again);
		assert_int_equal(again->header_bytes, layout->header_bytes);
		assert_memory_equal(again->header, layout->header, layout->header_bytes);
		ckpt_layout_free(again);
		ckpt_layout_free(layout);
	}
}

static void test_every_offset(void **state)
{
	struct kit kit = {.seed = 2};

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct ckpt_layout *layout;
		const struct ckpt_entry *e = NULL;
		size_t chunk = 0;
		size_t next = 0;

		kit_draw(&kit, 12);
		layout = kit_build(&kit);
		for (uint64_t offset = 0; offset < layout->bytes; offset++) {
			for (; next < kit.count && layout->entries[next].offset <= offset; next++) {
				if (layout->entries[next].nbytes)
					e = &layout->entries[next];
			}
			if (offset == layout->chunks[chunk].offset + layout->chunks[chunk].length)
				chunk++;
			if (ckpt_layout_at(layout, offset) != e)
				fail_msg("byte %llu", (unsigned long long)offset);
			if (ckpt_layout_chunk_at(layout, offset) != chunk)
				fail_msg("chunk of byte %llu", (unsigned long long)offset);
		}
		assert_int_equal(chunk, layout->chunk_count - 1);
		ckpt_layout_free(layout);
	}
}

/* The examples of FORMAT.md. U8, so that elements are bytes. */
static void test_chunks_by_hand(void **state)
{
	static const struct {
		int64_t sizes[6];
		uint32_t chunks[8]; /* behind the header's */
	} cases[] = {
		{{0}, {0}},
		{{1}, {1}},
		{{4096}, {4096}},
		{{4097}, {4096, 1}},
		{{8192}, {4096, 4096}},
		{{1000, 1000, 1000}, {3000}},
		{{4000, 96}, {4096}},
		{{4000, 97}, {4000, 97}},
		{{4000, 97, 4000}, {4000, 97, 4000}},
		{{4000, 97, 3999}, {4000, 4096}},
		{{100, 4096, 100}, {100, 4096, 100}},
		/* The last piece of a large tensor is not shared. */
		{{5000, 100, 100}, {4096, 904, 200}},
		{{4095, 1, 1}, {4096, 1}},
		{{4000, 97, 3999, 5000, 100, 100}, {4000, 4096, 4096, 904, 200}},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
		struct ckpt_tensor tensors[6];
		struct ckpt_layout *layout;
		size_t count = 0;
		size_t chunk = 1;

		for (; count < 6 && cases[i].sizes[count]; count++)
			tensors[count] = (struct ckpt_tensor){.name = names[count],
				.dtype = CKPT_U8,
				.ndim = 1,
				.shape = &cases[i].sizes[count]};
		assert_int_equal(
			ckpt_layout_build(tensors, count, NULL, 0, 4096, NULL, &layout), 0);
		assert_int_equal(layout->chunks[0].length, 4096);
		for (; cases[i].chunks[chunk - 1]; chunk++) {
			assert_true(chunk < layout->chunk_count);
			assert_int_equal(layout->chunks[chunk].length, cases[i].chunks[chunk - 1]);
		}
		assert_int_equal(layout->chunk_count, chunk);
		ckpt_layout_free(layout);
	}
}

/* Empty tensors part nothing, and no chunk is longer than chunk_bytes, the header's neither. */
static void test_empty_and_long_header(void **state)
{
	int64_t some = 10;
	int64_t none = 0;
	struct ckpt_tensor tensors[100];
	char names[100][16];
	struct ckpt_layout *layout;

	(void)state;
	for (int i = 0; i < 100; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%d", i);
		tensors[i] = (struct ckpt_tensor){.name = names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = i % 2 ? &some : &none};
	}
	assert_int_equal(ckpt_layout_build(tensors, 100, NULL, 0, 4096, NULL, &layout), 0);
	assert_int_equal(layout->header_bytes, 8192);
	assert_int_equal(layout->chunk_count, 3);
	assert_int_equal(layout->chunks[1].offset, 4096);
	assert_int_equal(layout->chunks[2].offset, 8192);
	assert_int_equal(layout->chunks[2].length, 500);
	ckpt_layout_free(layout);
}

static void test_refused_tensors(void **state)
{
	static char long_name[CKPT_NAME_MAX + 1];
	static const int64_t shape[17] = {-1, INT64_MAX, INT64_MAX, 1, 1, 1, 1, 1};
	static const struct {
		struct ckpt_tensor tensor;
		int code;
		const char *says;
	} cases[] = {
		{{.name = NULL, .dtype = CKPT_U8}, -EINVAL, "number 1 has no name"},
		{{.name = "", .dtype = CKPT_U8}, -EINVAL, "number 1 is empty"},
		{{.name = long_name, .dtype = CKPT_U8}, -EINVAL, "longer than 1023 bytes"},
		{{.name = "a\xff", .dtype = CKPT_U8}, -EINVAL, "is not UTF-8"},
		{{.name = "__metadata__", .dtype = CKPT_U8}, -EINVAL, "reserved by safetensors"},
		{{.name = "x", .dtype = 0}, -EINVAL, "'x' has a dtype"},
		{{.name = "x", .dtype = CKPT_DTYPE_END}, -EINVAL, "'x' has a dtype"},
		{{.name = "x", .dtype = CKPT_U8, .ndim = 17, .shape = shape}, -EINVAL,
			"'x' has more than 16 dimensions"},
		{{.name = "x", .dtype = CKPT_U8, .ndim = UINT32_MAX, .shape = shape}, -EINVAL,
			"'x' has more than 16 dimensions"},
		{{.name = "x", .dtype = CKPT_U8, .ndim = 1}, -EINVAL, "'x' has dimensions but no"},
		{{.name = "x", .dtype = CKPT_U8, .ndim = 1, .shape = shape}, -EINVAL,
			"'x' has a shape with a negative size"},
		{{.name = "x", .dtype = CKPT_U8, .ndim = 2, .shape = shape + 1}, -EINVAL,
			"'x' has a shape of more bytes"},
		{{.name = "x", .dtype = CKPT_F64, .ndim = 2, .shape = shape + 2}, -EINVAL,
			"'x' has a shape of more bytes"},
		{{.name = "first", .dtype = CKPT_U8}, -EEXIST, "'first' is given to two"},
		{{.name = "first", .dtype = CKPT_F64}, -EEXIST, "'first' is given to two"},
		{{.name = "alias", .dtype = CKPT_F64}, -EEXIST, "'alias' is given to two"},
	};

	(void)state;
	memset(long_name, 'n', CKPT_NAME_MAX);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_tensor tensors[] = {
			{.name = "first", .dtype = CKPT_U8}, cases[i].tensor};
		struct ckpt_alias alias = {.name = (char *)"alias", .target = (char *)"first"};
		struct ckpt_layout *layout = (struct ckpt_layout *)8;
		struct ckpt_error err = {0};
		int r = ckpt_layout_build(tensors, 2, &alias, 1, 4096, &err, &layout);

		assert_int_equal(r, cases[i].code);
		assert_int_equal(err.code, r);
		if (!strstr(err.message, cases[i].says))
			fail_msg("%s", err.message);
		assert_ptr_equal(layout, (struct ckpt_layout *)8);
	}
	/* The longest name that there may be. */
	long_name[CKPT_NAME_MAX - 1] = 0;
	struct ckpt_tensor longest = {.name = long_name, .dtype = CKPT_U8};
	struct ckpt_layout *layout;
	assert_int_equal(ckpt_layout_build(&longest, 1, NULL, 0, 4096, NULL, &layout), 0);
	ckpt_layout_free(layout);
}

/* Boxes are kept as given, but for what says nothing. */
static void test_boxes(void **state)
{
	static const int64_t shape[2] = {2, 3};
	static const int64_t whole[2] = {4, 3};
	static const int64_t start[2] = {2, 0};
	static const int64_t zero[2] = {0, 0};
	static const struct ckpt_tensor tensors[] = {
		{.name = "a", .dtype = CKPT_F32, .ndim = 2, .shape = shape, .global_shape = whole},
		{.name = "b",
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = shape,
			.global_shape = whole,
			.global_start = start},
		{.name = "c",
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = shape,
			.global_shape = whole,
			.global_start = zero},
		{.name = "d",
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = shape,
			.global_shape = shape,
			.global_start = zero},
		{.name = "e", .dtype = CKPT_F32, .global_shape = whole, .global_start = zero},
		{.name = "f",
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = zero,
			.global_shape = whole,
			.global_start = whole},
	};
	struct ckpt_layout *layout = NULL;

	(void)state;
	assert_int_equal(
		ckpt_layout_build(tensors, COUNT(tensors), NULL, 0, 4096, NULL, &layout), 0);
	for (size_t i = 0; i < COUNT(tensors); i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		bool boxed = strchr("abcf", *e->name) != NULL;
		bool starts = strchr("bf", *e->name) != NULL;

		assert_int_equal(e->global_shape != NULL, boxed);
		assert_int_equal(e->global_start != NULL, starts);
		if (boxed)
			assert_memory_equal(e->global_shape, whole, sizeof(whole));
		if (starts)
			assert_memory_equal(
				e->global_start, tensors[i].global_start, sizeof(start));
		assert_memory_equal(e->shape, tensors[i].shape, e->ndim * sizeof(*shape));
	}
	ckpt_layout_free(layout);
}

static void test_refused_boxes(void **state)
{
	static const int64_t shape[2] = {2, 3};
	static const int64_t wholes[][2] = {{2, 2}, {-1, 3}, {INT64_MAX, 4}, {4, 3}};
	static const int64_t starts[][2] = {{3, 0}, {5, 0}, {-1, 0}, {INT64_MAX, 0}, {0, 1}};
	struct ckpt_tensor t = {.name = "x",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = shape,
		.global_start = starts[0]};
	struct ckpt_layout *layout = NULL;
	struct ckpt_error err = {0};

	(void)state;
	assert_int_equal(ckpt_layout_build(&t, 1, NULL, 0, 4096, &err, &layout), -EINVAL);
	assert_non_null(strstr(err.message, "'x' has a global_start and no global_shape"));
	for (size_t i = 0; i < 8; i++) {
		err = (struct ckpt_error){0};
		t.global_shape = wholes[i < 3 ? i : 3];
		t.global_start = i < 3 ? NULL : starts[i - 3];
		assert_int_equal(ckpt_layout_build(&t, 1, NULL, 0, 4096, &err, &layout), -EINVAL);
		if (!strstr(err.message, i == 2 ? "of more than 2^63-1" : "exceeds its"))
			fail_msg("%zu: %s", i, err.message);
	}
}

static void test_refused_aliases(void **state)
{
	static const struct {
		const char *pairs[2][2];
		int code;
		const char *says;
	} cases[] = {
		{{{"x", "b"}, {"y", "nothing"}}, -EINVAL, "'y' stands for 'nothing', which is no"},
		{{{"x", "b"}, {"y", "x"}}, -EINVAL, "'y' stands for 'x', which is no"},
		{{{"x", "x"}, {"y", "a"}}, -EINVAL, "'x' stands for 'x', which is no"},
		{{{"x", "b"}, {"x", "b"}}, -EEXIST, "'x' is given to two"},
		{{{"x", "b"}, {"b", "b"}}, -EEXIST, "'b' is given to two"},
		{{{"x", "b"}, {"", "b"}}, -EINVAL, "empty"},
		{{{"x", "b"}, {"\xff", "b"}}, -EINVAL, "not UTF-8"},
		{{{"x", "b"}, {NULL, "b"}}, -EINVAL, "has no name"},
		{{{"x", "b"}, {"y", NULL}}, -EINVAL, "has no name"},
	};
	struct ckpt_tensor tensors[] = {
		{.name = "a", .dtype = CKPT_U8}, {.name = "b", .dtype = CKPT_F32}};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_layout *layout = NULL;
		struct ckpt_alias pair[2];
		struct ckpt_error err = {0};
		int r;

		for (int k = 0; k < 2; k++)
			pair[k] =
				(struct ckpt_alias){.name = (char *)(uintptr_t)cases[i].pairs[k][0],
					.target = (char *)(uintptr_t)cases[i].pairs[k][1]};
		r = ckpt_layout_build(tensors, 2, pair, 2, 4096, &err, &layout);

		assert_int_equal(r, cases[i].code);
		if (!strstr(err.message, cases[i].says))
			fail_msg("%s", err.message);
		assert_null(layout);
	}
}

static void test_limits(void **state)
{
	int64_t half = INT64_C(1) << 45;
	int64_t most = INT64_C(1) << 46;
	struct ckpt_tensor tensors[] = {{.name = "a", .dtype = CKPT_U8, .ndim = 1, .shape = &half},
		{.name = "b", .dtype = CKPT_U8, .ndim = 1, .shape = &half}};
	struct ckpt_layout *layout = NULL;
	struct ckpt_error err = {0};

	(void)state;
	assert_int_equal(
		ckpt_layout_build(tensors, 2, NULL, 0, CKPT_CHUNK_BYTES_MAX, &err, &layout),
		-E2BIG);
	assert_non_null(strstr(err.message, "2^46"));
	tensors[0].shape = &most;
	assert_int_equal(
		ckpt_layout_build(tensors, 1, NULL, 0, CKPT_CHUNK_BYTES_MAX, NULL, &layout),
		-E2BIG);
	/* Far too many chunks take no memory. */
	tensors[0].shape = &half;
	err = (struct ckpt_error){0};
	assert_int_equal(ckpt_layout_build(tensors, 1, NULL, 0, 1, &err, &layout), -E2BIG);
	assert_non_null(strstr(err.message, "chunks"));
	assert_int_equal(
		ckpt_layout_build(tensors, 1, NULL, 0, CKPT_CHUNK_BYTES_MAX, NULL, &layout), 0);
	assert_int_equal(layout->chunk_count, 1 + (1 << 15));
	ckpt_layout_free(layout);
	/* Counted before they are looked at. */
	assert_int_equal(
		ckpt_layout_build(NULL, CKPT_TENSORS_MAX + 1, NULL, 0, 1, NULL, &layout), -E2BIG);
	assert_int_equal(
		ckpt_layout_build(NULL, 1, NULL, CKPT_TENSORS_MAX, 1, NULL, &layout), -E2BIG);
	assert_int_equal(
		ckpt_layout_build(NULL, SIZE_MAX, NULL, SIZE_MAX, 1, NULL, &layout), -E2BIG);
}

/* Nothing is quadratic: 50,000 names of one prefix would take half a minute. */
static void test_many(void **state)
{
	enum { MANY = 50000 };
	struct ckpt_tensor *tensors = calloc(MANY, sizeof(*tensors));
	char(*names)[64] = calloc(MANY, sizeof(*names));
	struct ckpt_layout *layout = NULL;
	double start;

	(void)state;
	assert_non_null(tensors);
	assert_non_null(names);
	for (size_t i = 0; i < MANY; i++) {
		(void)snprintf(
			names[i], sizeof(names[i]), "module.layers.self_attn.%zu", i * 7919 % MANY);
		tensors[i] = (struct ckpt_tensor){
			.name = names[i], .dtype = i % 2 ? CKPT_F32 : CKPT_BF16};
	}
	start = kit_cpu_seconds();
	assert_int_equal(
		ckpt_layout_build(tensors, MANY, NULL, 0, CKPT_CHUNK_BYTES, NULL, &layout), 0);
	for (size_t i = 0; i < MANY; i++)
		assert_non_null(ckpt_layout_find(layout, names[i]));
	assert_true(kit_cpu_seconds() - start < 5.0);
	ckpt_layout_free(layout);
	free(names);
	free(tensors);
}

static void test_without_memory(void **state)
{
	struct kit kit = {.seed = 3};
	struct kit_alloc alloc = {0};
	struct ckpt_layout *layout = NULL;
	size_t failures = 0;
	int r;

	(void)state;
	do
		kit_draw(&kit, KIT_TENSORS);
	while (kit.count < 40 || kit.alias_count == 0);
	do {
		struct ckpt_error err = {0};

		alloc = (struct kit_alloc){.fail_at = ++failures};
		ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
		r = ckpt_layout_build(kit.tensors, kit.count, kit.aliases, kit.alias_count,
			kit.chunk_bytes, &err, &layout);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || (r == -ENOMEM && !layout && err.code == -ENOMEM));
	} while (r < 0);
	assert_true(failures > 5);
	check_layout(&kit, layout);
	ckpt_layout_free(layout);
	ckpt_layout_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_layouts),
		cmocka_unit_test(test_every_offset),
		cmocka_unit_test(test_chunks_by_hand),
		cmocka_unit_test(test_empty_and_long_header),
		cmocka_unit_test(test_refused_tensors),
		cmocka_unit_test(test_boxes),
		cmocka_unit_test(test_refused_boxes),
		cmocka_unit_test(test_refused_aliases),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
