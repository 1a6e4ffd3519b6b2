/* SPDX-License-Identifier: Apache-2.0 */
/* A catalog says what every rank has said, and finds it again. */
#include "format_kit.h"

#include <ckpt/version.h>
#include <errno.h>
#include <stdlib.h>

#include "format/catalog.h"
#include "format/manifest.h"

#define WORLD_MAX 80
#define TENSORS   6
#define FILE_NAME "x.catalog"

struct held {
	bool there;
	int64_t start[3];
	int64_t shape[3];
};

/* Who holds what: the truth that a catalog is compared with. */
struct truth {
	uint32_t world;
	size_t count;
	char names[TENSORS][16];
	uint32_t ndim[TENSORS];
	int64_t whole[TENSORS][3];
	struct held held[TENSORS][WORLD_MAX];
	struct ckpt_alias aliases[1];
	size_t alias_count;
};

static void fill_rows(struct truth *t, size_t i, uint32_t first, uint32_t step, int64_t rows)
{
	int64_t at = 0;

	for (uint32_t r = first; r < t->world; r += step, at += rows) {
		int64_t left = t->whole[i][0] - at;
		struct held *h = &t->held[i][r];

		h->there = true;
		h->start[0] = left > 0 ? at : t->whole[i][0];
		h->shape[0] = left > rows ? rows : left > 0 ? left : 0;
		h->shape[1] = t->whole[i][1];
		h->shape[2] = t->whole[i][2];
	}
}

/* Rows over groups of `columns` ranks, columns within them; turned round when `mirrored`. */
static void fill_grid(struct truth *t, size_t i, uint32_t columns, bool mirrored)
{
	uint32_t rows = t->world / columns;

	for (uint32_t r = 0; r < rows * columns; r++) {
		struct held *h = &t->held[i][r];
		uint32_t row = mirrored ? rows - 1 - r / columns : r / columns;
		uint32_t column = mirrored ? columns - 1 - r % columns : r % columns;

		h->there = true;
		h->shape[0] = t->whole[i][0] / rows;
		h->shape[1] = t->whole[i][1] / columns;
		h->shape[2] = t->whole[i][2];
		h->start[0] = row * h->shape[0];
		h->start[1] = column * h->shape[1];
	}
}

static void fill_wild(struct kit *kit, struct truth *t, size_t i)
{
	for (uint32_t r = 0; r < t->world; r++) {
		struct held *h = &t->held[i][r];

		h->there = kit_next(kit) % 3 != 0;
		for (uint32_t d = 0; d < t->ndim[i]; d++) {
			h->start[d] = (int64_t)(kit_next(kit) % (uint64_t)(t->whole[i][d] + 1));
			h->shape[d] = (int64_t)(kit_next(kit) %
						(uint64_t)(t->whole[i][d] - h->start[d] + 1));
		}
	}
	t->held[i][kit_next(kit) % t->world].there = true;
}

static void fill_tensor(struct kit *kit, struct truth *t, size_t i)
{
	(void)snprintf(t->names[i], sizeof(t->names[i]), "w%zu", (i * 5 + 3) % 7);
	t->ndim[i] = 3;
	t->whole[i][0] = 1 + (int64_t)(kit_next(kit) % 300);
	t->whole[i][1] = 1 + (int64_t)(kit_next(kit) % 40);
	t->whole[i][2] = (int64_t)(kit_next(kit) % 4);
	switch (kit_next(kit) % 5) {
	case 0:
		fill_rows(t, i, 0, 1, (t->whole[i][0] + t->world - 1) / t->world);
		break;
	case 1:
		fill_rows(t, i, (uint32_t)(kit_next(kit) % t->world),
			1 + (uint32_t)(kit_next(kit) % 4), 1 + t->whole[i][0] / 7);
		break;
	case 2:
		fill_grid(t, i, 1 + (uint32_t)(kit_next(kit) % t->world), kit_next(kit) % 2);
		break;
	case 3:
		t->ndim[i] = 0;
		for (uint32_t r = (uint32_t)(kit_next(kit) % t->world); r < t->world;
			r += 1 + (uint32_t)(kit_next(kit) % 3))
			t->held[i][r].there = true;
		break;
	default:
		fill_wild(kit, t, i);
	}
}

static void draw(struct kit *kit, struct truth *t)
{
	memset(t, 0, sizeof(*t));
	t->world = 1 + (uint32_t)(kit_next(kit) % WORLD_MAX);
	t->count = 1 + kit_next(kit) % TENSORS;
	for (size_t i = 0; i < t->count; i++)
		fill_tensor(kit, t, i);
	t->alias_count = kit_next(kit) % 2;
	t->aliases[0] = (struct ckpt_alias){.name = "v", .target = t->names[0]};
}

/* What rank `rank` says, in the order in which they were drawn: a builder takes any. */
static int add_rank(struct ckpt_catalog_builder *builder, struct truth *t, uint32_t rank,
	struct ckpt_error *err)
{
	struct ckpt_entry entries[TENSORS];
	struct ckpt_layout layout = {.entries = entries,
		.aliases = t->aliases,
		.alias_count = t->held[0][rank].there ? t->alias_count : 0};

	for (size_t i = 0; i < t->count; i++) {
		if (!t->held[i][rank].there)
			continue;
		entries[layout.entry_count++] = (struct ckpt_entry){.name = t->names[i],
			.dtype = CKPT_BF16,
			.ndim = t->ndim[i],
			.shape = t->held[i][rank].shape,
			.global_shape = t->whole[i],
			.global_start = t->held[i][rank].start};
	}
	return ckpt_catalog_builder_add(builder, rank, &layout, err);
}

static int build(
	struct truth *t, struct ckpt_buf *out, struct ckpt_error *err, struct ckpt_digest *digest)
{
	struct ckpt_catalog_builder *builder = NULL;
	int r = ckpt_catalog_builder_new(t->world, NULL, &builder);

	for (uint32_t rank = 0; r == 0 && rank < t->world; rank++)
		r = add_rank(builder, t, rank, err);
	if (r == 0)
		r = ckpt_catalog_builder_finish(builder, out, err, digest);
	ckpt_catalog_builder_free(builder);
	return r;
}

/* From memory of exactly that size, so that a sanitizer sees a byte too many. */
static int decode(const void *data, size_t length, const struct ckpt_digest *named,
	struct ckpt_error *err, struct ckpt_layout_catalog **ret_catalog)
{
	char *copy = malloc(length ? length : 1);
	int r;

	assert_non_null(copy);
	if (length)
		memcpy(copy, data, length);
	r = ckpt_layout_catalog_decode(copy, length, named, FILE_NAME, err, ret_catalog);
	free(copy);
	return r;
}

static struct ckpt_layout_catalog *read_root(
	const struct ckpt_buf *file, const struct ckpt_digest *digest)
{
	struct ckpt_layout_catalog *catalog = NULL;
	struct ckpt_error err = {0};
	uint64_t root = 0;
	uint64_t bytes = 0;

	assert_int_equal(
		ckpt_layout_catalog_measure(file->data, file->len, FILE_NAME, &err, &root, &bytes),
		0);
	assert_int_equal(bytes, file->len);
	if (decode(file->data, root, digest, &err, &catalog) != 0)
		fail_msg("%s", err.message);
	assert_int_equal(catalog->bytes, file->len);
	return catalog;
}

static bool same_dims(const int64_t *a, const int64_t *b, uint32_t ndim)
{
	return ndim == 0 || memcmp(a, b, ndim * sizeof(*a)) == 0;
}

static bool meet(const struct held *h, const int64_t *start, const int64_t *shape, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++) {
		int64_t low = h->start[d] > start[d] ? h->start[d] : start[d];
		int64_t high = h->start[d] + h->shape[d] < start[d] + shape[d]
				       ? h->start[d] + h->shape[d]
				       : start[d] + shape[d];
		if (low >= high)
			return false;
	}
	return h->there;
}

/* A walk finds those that it must, each once. `shape` NULL: all. */
static void check_walk(const struct truth *t, size_t i, const struct ckpt_catalog_list *list,
	const int64_t *start, const int64_t *shape)
{
	bool seen[WORLD_MAX] = {false};
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;

	ckpt_catalog_walk_begin(&walk, list, start, shape);
	while (ckpt_catalog_walk_next(&walk, &box)) {
		const struct held *h = &t->held[i][box.rank];

		assert_true(box.rank < t->world);
		assert_true(h->there && !seen[box.rank]);
		seen[box.rank] = true;
		assert_true(same_dims(box.start, h->start, t->ndim[i]));
		assert_true(same_dims(box.shape, h->shape, t->ndim[i]));
	}
	for (uint32_t r = 0; r < t->world; r++)
		assert_int_equal(seen[r], shape ? meet(&t->held[i][r], start, shape, t->ndim[i])
						: t->held[i][r].there);
}

static void check_ranks(const struct truth *t, size_t i, const struct ckpt_catalog_list *list)
{
	uint64_t ranks = 0;

	for (uint32_t r = 0; r < t->world; r++) {
		int64_t start[CKPT_NDIM_MAX];
		int64_t shape[CKPT_NDIM_MAX];
		const struct held *h = &t->held[i][r];

		assert_int_equal(ckpt_catalog_box_of(list, r, start, shape), h->there);
		if (!h->there)
			continue;
		ranks++;
		assert_true(same_dims(start, h->start, t->ndim[i]));
		assert_true(same_dims(shape, h->shape, t->ndim[i]));
	}
	assert_int_equal(list->ranks, ranks);
	assert_false(ckpt_catalog_box_of(list, CKPT_WORLD_MAX, NULL, NULL));
}

static void check_tensor(struct kit *kit, const struct truth *t, size_t i,
	const struct ckpt_layout_catalog *catalog, const struct ckpt_buf *file)
{
	const struct ckpt_catalog_tensor *tensor = ckpt_layout_catalog_find(catalog, t->names[i]);
	struct ckpt_catalog_list list;

	assert_non_null(tensor);
	assert_int_equal(tensor->dtype, CKPT_BF16);
	assert_int_equal(tensor->ndim, t->ndim[i]);
	assert_true(same_dims(tensor->shape, t->whole[i], t->ndim[i]));
	assert_int_equal(ckpt_catalog_open_list(catalog, tensor, file->data + tensor->offset,
				 FILE_NAME, NULL, &list),
		0);
	check_walk(t, i, &list, NULL, NULL);
	check_ranks(t, i, &list);
	for (int round = 0; round < 20; round++) {
		int64_t start[3] = {0};
		int64_t shape[3] = {0};

		for (uint32_t d = 0; d < t->ndim[i]; d++) {
			start[d] = (int64_t)(kit_next(kit) % (uint64_t)(t->whole[i][d] + 1));
			shape[d] = (int64_t)(kit_next(kit) %
					     (uint64_t)(t->whole[i][d] - start[d] + 1));
		}
		check_walk(t, i, &list, start, shape);
	}
	check_walk(t, i, &list, (int64_t[3]){0}, t->whole[i]);
}

static void test_random(void **state)
{
	static struct truth t;
	struct kit kit = {.seed = 11};

	(void)state;
	for (int round = 0; round < 2000; round++) {
		struct ckpt_digest digest;
		struct ckpt_error err = {0};
		struct ckpt_buf file = {0};
		size_t there = 0;

		draw(&kit, &t);
		for (size_t i = 0; i < t.count; i++)
			for (uint32_t r = 0; r < t.world; r++)
				there += t.held[i][r].there;
		assert_int_equal(build(&t, &file, &err, &digest), 0);
		struct ckpt_layout_catalog *catalog = read_root(&file, &digest);
		assert_int_equal(catalog->world, t.world);
		for (size_t i = 0; i < t.count; i++)
			check_tensor(&kit, &t, i, catalog, &file);
		assert_null(ckpt_layout_catalog_find(catalog, "w"));
		if (catalog->alias_count > 0)
			assert_ptr_equal(ckpt_layout_catalog_find(catalog, "v"),
				ckpt_layout_catalog_find(catalog, t.names[0]));
		assert_true(there > 0);
		ckpt_layout_catalog_free(catalog);
		ckpt_buf_free(&file);
	}
}

/* What is regular is a record, however many ranks there are. */
static void test_regular(void **state)
{
	static struct truth t;
	struct ckpt_digest digest;
	struct ckpt_buf file = {0};

	(void)state;
	memset(&t, 0, sizeof(t));
	t.world = 80;
	t.count = 3;
	for (size_t i = 0; i < t.count; i++) {
		(void)snprintf(t.names[i], sizeof(t.names[i]), "w%zu", i);
		t.ndim[i] = 2;
		t.whole[i][0] = 1600;
		t.whole[i][1] = 160;
	}
	fill_rows(&t, 0, 0, 1, 20);
	fill_grid(&t, 1, 8, false);
	fill_rows(&t, 2, 0, 1, 21);
	assert_int_equal(build(&t, &file, NULL, &digest), 0);
	struct ckpt_layout_catalog *catalog = read_root(&file, &digest);
	assert_true(catalog->tensors[0].bytes <= 16);
	assert_true(catalog->tensors[1].bytes <= 20);
	/* Full ones, the last one that is not, and those that are empty. */
	assert_true(catalog->tensors[2].bytes <= 40);
	ckpt_layout_catalog_free(catalog);
	ckpt_buf_free(&file);
}

static void test_of_many(void **state)
{
	struct ckpt_catalog_builder *builder = NULL;
	int64_t shape[1] = {4};
	int64_t whole[1] = {4000000};
	int64_t start[1];
	struct ckpt_entry entry = {.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = shape,
		.global_shape = whole,
		.global_start = start};
	struct ckpt_layout layout = {.entries = &entry, .entry_count = 1};
	struct ckpt_catalog_list list;
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;
	struct ckpt_digest digest;
	struct ckpt_buf file = {0};

	(void)state;
	assert_int_equal(ckpt_catalog_builder_new(CKPT_WORLD_MAX, NULL, &builder), 0);
	for (uint32_t r = 0; r < CKPT_WORLD_MAX; r++) {
		start[0] = 4 * (int64_t)r;
		assert_int_equal(ckpt_catalog_builder_add(builder, r, &layout, NULL), 0);
	}
	assert_int_equal(ckpt_catalog_builder_finish(builder, &file, NULL, &digest), 0);
	ckpt_catalog_builder_free(builder);
	struct ckpt_layout_catalog *catalog = read_root(&file, &digest);
	assert_int_equal(ckpt_catalog_open_list(catalog, &catalog->tensors[0],
				 file.data + catalog->tensors[0].offset, FILE_NAME, NULL, &list),
		0);
	assert_int_equal(list.ranks, CKPT_WORLD_MAX);
	start[0] = 3999990;
	shape[0] = 10;
	ckpt_catalog_walk_begin(&walk, &list, start, shape);
	for (uint32_t r = CKPT_WORLD_MAX - 3; r < CKPT_WORLD_MAX; r++) {
		assert_true(ckpt_catalog_walk_next(&walk, &box));
		assert_int_equal(box.rank, r);
	}
	assert_false(ckpt_catalog_walk_next(&walk, &box));
	ckpt_layout_catalog_free(catalog);
	ckpt_buf_free(&file);
}

static bool is_reading(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EFORMAT || code == CKPT_EVERSION;
}

/* Reads all of it, as who verifies does. */
static int read_all(const struct ckpt_buf *file, uint64_t root, struct ckpt_error *err)
{
	struct ckpt_layout_catalog *catalog = NULL;
	struct ckpt_catalog_list list;
	int r = decode(file->data, root, NULL, err, &catalog);

	for (size_t i = 0; r == 0 && i < catalog->tensor_count; i++)
		r = ckpt_catalog_open_list(catalog, &catalog->tensors[i],
			file->data + catalog->tensors[i].offset, FILE_NAME, err, &list);
	ckpt_layout_catalog_free(catalog);
	return r;
}

static void draw_small(struct truth *t)
{
	struct kit kit = {.seed = 5};

	do
		draw(&kit, t);
	while (t->count != 3 || t->alias_count != 1);
}

static void test_every_bit(void **state)
{
	static struct truth t;
	struct ckpt_digest digest;
	struct ckpt_buf file = {0};
	uint64_t root;
	uint64_t bytes;

	(void)state;
	draw_small(&t);
	assert_int_equal(build(&t, &file, NULL, &digest), 0);
	assert_int_equal(
		ckpt_layout_catalog_measure(file.data, file.len, FILE_NAME, NULL, &root, &bytes),
		0);
	assert_int_equal(read_all(&file, root, NULL), 0);
	for (size_t at = 0; at < file.len; at++) {
		for (int bit = 0; bit < 8; bit++) {
			struct ckpt_error err = {0};

			file.data[at] ^= (char)(1 << bit);
			assert_true(is_reading(read_all(&file, root, &err)));
			assert_true(err.code < 0 && err.message[0]);
			file.data[at] ^= (char)(1 << bit);
		}
	}
	for (size_t length = 0; length < root; length++) {
		struct ckpt_layout_catalog *catalog = NULL;

		assert_true(is_reading(decode(file.data, length, NULL, NULL, &catalog)));
		assert_null(catalog);
	}
	digest.bytes[0] ^= 1;
	assert_int_equal(
		decode(file.data, root, &digest, NULL, &(struct ckpt_layout_catalog *){NULL}),
		CKPT_EINTEGRITY);
	ckpt_buf_free(&file);
}

static bool fail_one(void *user, size_t size)
{
	size_t *left = user;

	(void)size;
	return (*left)-- == 0;
}

static void test_no_memory(void **state)
{
	static struct truth t;
	struct ckpt_digest digest;
	int r = -ENOMEM;

	(void)state;
	draw_small(&t);
	for (size_t n = 0; r != 0; n++) {
		struct ckpt_buf file = {0};
		struct ckpt_error err = {0};
		size_t left = n;

		ckpt_alloc_set_hook(fail_one, &left);
		r = build(&t, &file, &err, &digest);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		for (size_t k = 0; r == 0 && k < 6; k++) {
			struct ckpt_layout_catalog *catalog = NULL;
			uint64_t root;
			uint64_t bytes;

			left = k;
			(void)ckpt_layout_catalog_measure(
				file.data, file.len, FILE_NAME, NULL, &root, &bytes);
			ckpt_alloc_set_hook(fail_one, &left);
			int read = ckpt_layout_catalog_decode(
				file.data, root, NULL, FILE_NAME, &err, &catalog);
			ckpt_alloc_set_hook(NULL, NULL);
			assert_int_equal(read, k < 5 ? -ENOMEM : 0);
			ckpt_layout_catalog_free(catalog);
		}
		ckpt_buf_free(&file);
	}
}

static void test_apart(void **state)
{
	int64_t four[1] = {4};
	int64_t five[1] = {5};
	struct ckpt_entry all[] = {
		{.name = "a", .dtype = CKPT_F32, .ndim = 1, .shape = four},
		{.name = "a", .dtype = CKPT_F16, .ndim = 1, .shape = four},
		{.name = "a", .dtype = CKPT_F32, .ndim = 1, .shape = five},
		{.name = "a", .dtype = CKPT_F32, .ndim = 0, .shape = four},
		{.name = "b", .dtype = CKPT_F32, .ndim = 1, .shape = four},
	};
	struct ckpt_alias alias = {.name = "a", .target = "b"};
	struct ckpt_layout first = {.entries = all, .entry_count = 1};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(all); i++) {
		struct ckpt_catalog_builder *builder = NULL;
		struct ckpt_error err = {0};
		struct ckpt_layout other = {.entries = &all[i],
			.entry_count = 1,
			.aliases = &alias,
			.alias_count = i == 4};

		assert_int_equal(ckpt_catalog_builder_new(2, NULL, &builder), 0);
		assert_int_equal(ckpt_catalog_builder_add(builder, 0, &first, &err), 0);
		assert_int_equal(ckpt_catalog_builder_add(builder, 1, &other, &err),
			i == 0 ? 0 : CKPT_EFORMAT);
		if (i == 1)
			assert_non_null(strstr(err.message,
				"the ranks do not agree about 'a': F32 [4] says rank 0, F16 [4] "
				"says rank 1; one name is one tensor"));
		if (i == 4)
			assert_non_null(strstr(err.message, "another name of 'b' says rank 1"));
		ckpt_catalog_builder_free(builder);
	}
}

/* A root of world 10 and one tensor U8 [100] with this list, all digests right. */
static int read_list(const char *list, size_t length, struct ckpt_error *err)
{
	struct ckpt_buf file = {0};
	struct ckpt_digest digest = ckpt_digest_of(list, length);

	ckpt_buf_put(&file, "CKPTCAT", 8);
	ckpt_buf_put_le32(&file, CKPT_FORMAT_MAJOR);
	ckpt_buf_put_le32(&file, CKPT_FORMAT_MINOR);
	ckpt_buf_put_le32(&file, CKPT_CATALOG_HEAD_BYTES);
	ckpt_buf_put_le32(&file, 10);
	ckpt_buf_put_le64(&file, 1);
	ckpt_buf_put_le64(&file, 0);
	ckpt_buf_put_le64(&file, 4 + 1 + 8 + 8 + 16);
	ckpt_buf_put_le64(&file, length);
	ckpt_buf_put(&file, "\x01\x00\x02\x01w", 5);
	ckpt_buf_put_le64(&file, 100);
	ckpt_buf_put_le64(&file, length);
	ckpt_buf_put(&file, digest.bytes, sizeof(digest.bytes));
	digest = ckpt_digest_of(file.data, file.len);
	ckpt_buf_put(&file, digest.bytes, sizeof(digest.bytes));
	uint64_t root = file.len;
	ckpt_buf_put(&file, list, length);
	int r = read_all(&file, root, err);
	ckpt_buf_free(&file);
	return r;
}

static void test_hostile_lists(void **state)
{
	static const struct {
		const char *list;
		size_t length;
		const char *why; /* NULL: good */
	} cases[] = {
#define LIST(text) text, sizeof(text) - 1
		{LIST("\x00\x00\x64"), NULL},
		{LIST("\x24\x63\x01"), NULL},
		{LIST("\x01\x00\x0a\x0a\x01\x14"), NULL},
		{LIST("\x01\x5a\x0a\x0a\x01\x13"), NULL},
		{LIST(""), "a list that is empty"},
		{LIST("\x28\x00\x64"), "a rank outside its world"},
		{LIST("\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x64"),
			"a rank outside its world"},
		{LIST("\x00\x00\x64\x24\x00\x64"), "a rank outside its world"},
		{LIST("\x00\x00"), "a truncated box"},
		{LIST("\x00\x00\xe4"), "a truncated box"},
		{LIST("\x00\x00\xe4\x00"), "a truncated box"},
		{LIST("\x00\x00\x65"), "a box that exceeds its tensor"},
		{LIST("\x00\x64\x01"), "a box that exceeds its tensor"},
		{LIST("\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\xff"
		      "\x7f"),
			"a box that exceeds its tensor"},
		{LIST("\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"), "a truncated box"},
		{LIST("\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00"), "a truncated box"},
		{LIST("\x01\x00\x0a\x0a\x01"), "a truncated loop"},
		{LIST("\x01\x00\x0a\x01\x01\x00"), "a loop whose ranks do not ascend"},
		{LIST("\x01\x00\x0a\x02\x00\x00"), "a loop whose ranks do not ascend"},
		{LIST("\x01\x00\x0a\x0b\x01\x00"), "a loop whose ranks do not ascend"},
		{LIST("\x02\x00\x0a\x03\x01\x00\x02\x02\x00"), "a loop whose ranks do not ascend"},
		{LIST("\x01\x00\x0a\x06\x02\x00"), "a rank outside its world"},
		{LIST("\x05\x00\x0a\x0a\x01\x00"), "a rank outside its world"},
		{LIST("\x01\x00\x0b\x0a\x01\x14"), "a box that exceeds its tensor"},
		{LIST("\x01\x59\x0a\x0a\x01\x13"), "a box that exceeds its tensor"},
		{LIST("\x01\x00\x0a\x0a\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
			"a box that exceeds its tensor"},
		{LIST("\x01\x00\x0a\x0a\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
			"a box that exceeds its tensor"},
#undef LIST
	};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(cases); i++) {
		struct ckpt_error err = {0};
		int r = read_list(cases[i].list, cases[i].length, &err);

		if (r != (cases[i].why ? CKPT_EFORMAT : 0) ||
			(cases[i].why && !strstr(err.message, cases[i].why)))
			fail_msg("case %zu: %d, %s", i, r, err.message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_regular),
		cmocka_unit_test(test_of_many),
		cmocka_unit_test(test_every_bit),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_hostile_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
