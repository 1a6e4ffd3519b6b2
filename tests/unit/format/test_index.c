/* SPDX-License-Identifier: Apache-2.0 */
/* An index gives back what it was given, and nothing else passes for one. */
#include "index_kit.h"

#include <errno.h>

static const char meta[] = " {\"step\" : 1e400, \"\xf0\x9f\x98\x80\":[1,2,{\"$int\":\"0x1\"}]}\n";

static void check_entry(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
	size_t bytes = a->ndim * sizeof(*a->shape);

	assert_string_equal(a->name, b->name);
	assert_int_equal(a->dtype, b->dtype);
	assert_int_equal(a->ndim, b->ndim);
	assert_int_equal(a->offset, b->offset);
	assert_int_equal(a->nbytes, b->nbytes);
	assert_memory_equal(a->shape, b->shape, bytes);
	assert_int_equal(!a->global_shape, !b->global_shape);
	assert_int_equal(!a->global_start, !b->global_start);
	if (a->global_shape)
		assert_memory_equal(a->global_shape, b->global_shape, bytes);
	if (a->global_start)
		assert_memory_equal(a->global_start, b->global_start, bytes);
}

static void check_layout(const struct ckpt_layout *a, const struct ckpt_layout *b)
{
	assert_int_equal(a->bytes, b->bytes);
	assert_int_equal(a->header_bytes, b->header_bytes);
	assert_int_equal(a->chunk_bytes, b->chunk_bytes);
	assert_int_equal(a->entry_count, b->entry_count);
	assert_int_equal(a->alias_count, b->alias_count);
	assert_int_equal(a->chunk_count, b->chunk_count);
	for (size_t i = 0; i < a->entry_count; i++)
		check_entry(&a->entries[i], &b->entries[i]);
	for (size_t i = 0; i < a->alias_count; i++) {
		assert_string_equal(a->aliases[i].name, b->aliases[i].name);
		assert_string_equal(a->aliases[i].target, b->aliases[i].target);
	}
	for (size_t i = 0; i < a->chunk_count; i++) {
		assert_int_equal(a->chunks[i].offset, b->chunks[i].offset);
		assert_int_equal(a->chunks[i].length, b->chunks[i].length);
		assert_true(ckpt_digest_equal(&a->chunks[i].digest, &b->chunks[i].digest));
	}
	assert_int_equal(a->digest_count, b->digest_count);
	for (size_t i = 0; i < a->entry_count; i++) {
		assert_int_equal(a->entries[i].own, b->entries[i].own);
		assert_int_equal(a->entries[i].varies, b->entries[i].varies);
	}
	for (size_t i = 0; i < a->digest_count; i++)
		assert_true(ckpt_digest_equal(&a->digests[i], &b->digests[i]));
}

/* Encodes, decodes, compares, encodes again: the same bytes. */
static void check_round(const struct ckpt_layout *layout, uint32_t rank, const char *json)
{
	size_t length = json ? strlen(json) : 0;
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes = {0};
	struct ckpt_buf again = {0};

	assert_int_equal(ckpt_index_encode(layout, rank, json, length, &bytes, &err), 0);
	if (kit_decode(bytes.data, bytes.len, &err, &index) != 0)
		fail_msg("%s", err.message);
	assert_int_equal(index->rank, rank);
	assert_null(index->layout->header);
	assert_int_equal(index->meta_bytes, length);
	if (length)
		assert_string_equal(index->meta, json);
	else
		assert_null(index->meta);
	check_layout(index->layout, layout);
	assert_int_equal(ckpt_index_encode(index->layout, index->rank, index->meta,
				 index->meta_bytes, &again, &err),
		0);
	assert_int_equal(again.len, bytes.len);
	assert_memory_equal(again.data, bytes.data, bytes.len);
	if (layout->header)
		assert_int_equal(ckpt_index_check_header(
					 index, layout->header, layout->header_bytes, "f", NULL),
			0);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
	ckpt_buf_free(&again);
}

static void test_random(void **state)
{
	struct kit kit = {.seed = 7};

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct ckpt_layout *layout;

		kit_draw(&kit, KIT_TENSORS);
		layout = kit_build(&kit);
		check_round(layout, (uint32_t)(kit_next(&kit) % 1000000), round % 3 ? meta : NULL);
		ckpt_layout_free(layout);
	}
}

/* Numbers stay exact up to 2^63-1, where a double would round. */
static void test_boxes(void **state)
{
	int64_t shape[] = {3, 2};
	int64_t whole[] = {INT64_C(9007199254740993), 4};
	int64_t start[] = {INT64_C(9007199254740990), 2};
	int64_t zero = 0;
	int64_t most = INT64_MAX;
	struct ckpt_tensor tensors[] = {
		{.name = "a", .dtype = CKPT_U8, .ndim = 2, .shape = shape},
		{.name = "b", .dtype = CKPT_U8, .ndim = 2, .shape = shape},
		{.name = "c", .dtype = CKPT_U8, .ndim = 1, .shape = &zero},
	};
	struct ckpt_layout *layout;

	(void)state;
	assert_int_equal(ckpt_layout_build(tensors, 3, NULL, 0, 64, NULL, &layout), 0);
	layout->entries[0].global_shape = whole;
	layout->entries[0].global_start = start;
	layout->entries[1].global_shape = whole;
	layout->entries[2].global_shape = &most;
	layout->entries[2].global_start = &most;
	check_round(layout, 0, "1");
	ckpt_layout_free(layout);
}

static void test_every_bit(void **state)
{
	struct kit kit = {.seed = 8};
	struct ckpt_layout *layout;
	struct ckpt_buf bytes = {0};

	(void)state;
	do
		kit_draw(&kit, 8);
	while (kit.count < 6 || kit.alias_count < 1);
	layout = kit_build(&kit);
	assert_int_equal(ckpt_index_encode(layout, 3, meta, sizeof(meta) - 1, &bytes, NULL), 0);
	for (size_t at = 0; at < bytes.len; at++) {
		for (int bit = 0; bit < 8; bit++) {
			struct ckpt_index *index = NULL;
			struct ckpt_error err = {0};
			int r;

			bytes.data[at] ^= (char)(1 << bit);
			r = ckpt_index_decode(bytes.data, bytes.len, "x.index", &err, &index);
			bytes.data[at] ^= (char)(1 << bit);
			/* Damage is called damage, but for that of the magic. */
			if (r != (at < 8 ? CKPT_EFORMAT : CKPT_EINTEGRITY) || index)
				fail_msg("byte %zu bit %d: %d", at, bit, r);
			assert_string_equal(err.file, "x.index");
		}
	}
	ckpt_buf_free(&bytes);
	ckpt_layout_free(layout);
}

/* Without the digest: whatever byte is changed, the decoder stays within its bounds and finishes. */
static void test_every_byte_resealed(void **state)
{
	static const unsigned char others[] = {
		0, 1, 7, ' ', '"', '0', '9', ',', ']', '}', '[', '{', 0x7f, 0x80, 0xff};
	struct kit kit = {.seed = 9};
	struct ckpt_layout *layout;
	struct ckpt_buf bytes = {0};
	size_t refused = 0;

	(void)state;
	do
		kit_draw(&kit, 8);
	while (kit.count < 6 || kit.alias_count < 1);
	layout = kit_build(&kit);
	assert_int_equal(ckpt_index_encode(layout, 3, "[1]", 3, &bytes, NULL), 0);
	for (size_t at = 8; at < bytes.len - CKPT_DIGEST_SIZE; at++) {
		char was = bytes.data[at];

		for (size_t i = 0; i < COUNT(others); i++) {
			struct ckpt_index *index = NULL;
			int r;

			bytes.data[at] = (char)others[i];
			bytes.len -= CKPT_DIGEST_SIZE;
			kit_seal_index(&bytes);
			r = kit_decode(bytes.data, bytes.len, NULL, &index);
			assert_true(r == 0 || r == CKPT_EFORMAT || r == CKPT_EVERSION);
			refused += r < 0;
			ckpt_index_free(index);
		}
		bytes.data[at] = was;
	}
	assert_true(refused > bytes.len);
	ckpt_buf_free(&bytes);
	ckpt_layout_free(layout);
}

static void test_every_length(void **state)
{
	struct kit kit = {.seed = 10};
	struct ckpt_layout *layout;
	struct ckpt_index *index = NULL;
	struct ckpt_buf bytes = {0};

	(void)state;
	do
		kit_draw(&kit, 8);
	while (kit.count < 6);
	layout = kit_build(&kit);
	assert_int_equal(ckpt_index_encode(layout, 3, meta, sizeof(meta) - 1, &bytes, NULL), 0);
	for (size_t length = 0; length < bytes.len; length++) {
		struct ckpt_buf cut = {0};

		assert_true(kit_decode(bytes.data, length, NULL, &index) < 0);
		/* Cut and sealed again. */
		ckpt_buf_put(&cut, bytes.data, length);
		kit_seal_index(&cut);
		if (length < bytes.len - CKPT_DIGEST_SIZE)
			assert_int_equal(kit_decode(cut.data, cut.len, NULL, &index), CKPT_EFORMAT);
		ckpt_buf_free(&cut);
	}
	/* One byte too many, sealed or not. */
	ckpt_buf_put(&bytes, "x", 1);
	assert_int_equal(kit_decode(bytes.data, bytes.len, NULL, &index), CKPT_EINTEGRITY);
	bytes.len -= CKPT_DIGEST_SIZE;
	kit_seal_index(&bytes);
	assert_int_equal(kit_decode(bytes.data, bytes.len, NULL, &index), CKPT_EFORMAT);
	assert_null(index);
	ckpt_buf_free(&bytes);
	ckpt_layout_free(layout);
}

static void test_appends(void **state)
{
	struct ckpt_buf bytes = {0};
	struct ckpt_index *index;
	struct ckpt_layout *layout;

	(void)state;
	assert_int_equal(ckpt_layout_build(NULL, 0, NULL, 0, 4096, NULL, &layout), 0);
	ckpt_buf_puts(&bytes, "before");
	assert_int_equal(ckpt_index_encode(layout, 0, NULL, 0, &bytes, NULL), 0);
	assert_memory_equal(bytes.data, "before", 6);
	assert_int_equal(kit_decode(bytes.data + 6, bytes.len - 6, NULL, &index), 0);
	assert_int_equal(index->layout->entry_count, 0);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
	ckpt_layout_free(layout);
}

static void test_newer_minor(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes;

	(void)state;
	f.minor = CKPT_FORMAT_MINOR + 1;
	f.head_bytes = 100;
	f.tail = "something new";
	f.tensors =
		"{\"new\":[{}],\"tensors\":[{\"box\":{\"a\":[1]},\"name\":\"a\",\"dtype\":\"U8\","
		"\"shape\":[10],\"offset\":4096}]}";
	bytes = kit_forge(&f);
	if (kit_decode(bytes.data, bytes.len, &err, &index) != 0)
		fail_msg("%s", err.message);
	assert_int_equal(index->layout->entry_count, 1);
	assert_string_equal(index->layout->entries[0].name, "a");
	assert_int_equal(index->layout->chunks[1].digest.bytes[15], 1);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
}

static void test_newer_major(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes;

	(void)state;
	f.major = CKPT_FORMAT_MAJOR + 1;
	f.minor = 3;
	f.head_bytes = 7;
	f.tensors = "what a newer version would write";
	bytes = kit_forge(&f);
	assert_int_equal(kit_decode(bytes.data, bytes.len, &err, &index), CKPT_EVERSION);
	assert_non_null(strstr(err.message, "x.index is of format 2.3"));
	assert_non_null(strstr(err.message, "install libckpt 2.0 or newer"));
	bytes.data[bytes.len - 1] ^= 1;
	assert_int_equal(kit_decode(bytes.data, bytes.len, NULL, &index), CKPT_EINTEGRITY);
	ckpt_buf_free(&bytes);
	f.major = 0;
	bytes = kit_forge(&f);
	assert_int_equal(kit_decode(bytes.data, bytes.len, NULL, &index), CKPT_EFORMAT);
	ckpt_buf_free(&bytes);
}

static void test_too_much_meta(void **state)
{
	struct ckpt_layout *layout;
	struct ckpt_buf bytes = {0};

	(void)state;
	assert_int_equal(ckpt_layout_build(NULL, 0, NULL, 0, 4096, NULL, &layout), 0);
	assert_int_equal(
		ckpt_index_encode(layout, 0, "1", CKPT_META_MAX + 1, &bytes, NULL), -E2BIG);
	ckpt_buf_free(&bytes);
	ckpt_layout_free(layout);
}

static void test_without_memory(void **state)
{
	struct kit kit = {.seed = 11};
	struct ckpt_layout *layout;
	struct ckpt_index *index = NULL;
	struct ckpt_buf good = {0};
	struct kit_alloc alloc;
	size_t failures = 0;
	int r;

	(void)state;
	do
		kit_draw(&kit, KIT_TENSORS);
	while (kit.count < 40);
	layout = kit_build(&kit);
	do {
		struct ckpt_error err = {0};
		struct ckpt_buf bytes = {0};

		alloc = (struct kit_alloc){.fail_at = ++failures};
		ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
		r = ckpt_index_encode(layout, 0, meta, sizeof(meta) - 1, &bytes, &err);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || (r == -ENOMEM && err.code == -ENOMEM));
		ckpt_buf_free(&bytes);
	} while (r < 0);
	assert_true(failures > 5);
	assert_int_equal(ckpt_index_encode(layout, 0, meta, sizeof(meta) - 1, &good, NULL), 0);
	failures = 0;
	do {
		struct ckpt_error err = {0};

		alloc = (struct kit_alloc){.fail_at = ++failures};
		ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
		r = ckpt_index_decode(good.data, good.len, "x.index", &err, &index);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || (r == -ENOMEM && err.code == -ENOMEM && !index));
	} while (r < 0);
	assert_int_equal(failures, 10);
	ckpt_index_free(index);
	ckpt_index_free(NULL);
	ckpt_buf_free(&good);
	ckpt_layout_free(layout);
}

/* Nothing is quadratic: 50,000 tensors would take half a minute. */
static void test_many(void **state)
{
	enum { MANY = 50000 };
	struct ckpt_tensor *tensors = calloc(MANY, sizeof(*tensors));
	char(*names)[64] = calloc(MANY, sizeof(*names));
	struct ckpt_alias *aliases = calloc(MANY, sizeof(*aliases));
	char(*others)[64] = calloc(MANY, sizeof(*others));
	struct ckpt_layout *layout;
	double start;

	(void)state;
	assert_true(tensors && names && aliases && others);
	for (size_t i = 0; i < MANY; i++) {
		(void)snprintf(names[i], 64, "module.layers.%zu.weight", i);
		(void)snprintf(others[i], 64, "module.tied.%zu.weight", i);
		tensors[i] =
			(struct ckpt_tensor){.name = names[i], .dtype = i % 2 ? CKPT_F32 : CKPT_U8};
		aliases[i] = (struct ckpt_alias){.name = others[i], .target = names[i]};
	}
	assert_int_equal(
		ckpt_layout_build(tensors, MANY, aliases, MANY, CKPT_CHUNK_BYTES, NULL, &layout),
		0);
	start = kit_cpu_seconds();
	check_round(layout, 0, NULL);
	assert_true(kit_cpu_seconds() - start < 5.0);
	ckpt_layout_free(layout);
	free(tensors);
	free(names);
	free(aliases);
	free(others);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_boxes),
		cmocka_unit_test(test_every_bit),
		cmocka_unit_test(test_every_byte_resealed),
		cmocka_unit_test(test_every_length),
		cmocka_unit_test(test_appends),
		cmocka_unit_test(test_newer_minor),
		cmocka_unit_test(test_newer_major),
		cmocka_unit_test(test_too_much_meta),
		cmocka_unit_test(test_without_memory),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
