/* SPDX-License-Identifier: Apache-2.0 */
/* The union of the indexes of many ranks, by hand and at random; and what they cannot agree about. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/reshard/tensor_map.h"
#include "lib/prng.h"

#define RANKS_MAX   8
#define TENSORS_MAX 12

/* Indexes as they are decoded: only names, types, shapes and boxes are asked for. */
struct ranks {
	struct ckpt_index indexes[RANKS_MAX];
	const struct ckpt_index *list[RANKS_MAX];
	uint32_t world;
};

static void add_rank(struct ranks *ranks, const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count)
{
	struct ckpt_index *index = &ranks->indexes[ranks->world];

	index->rank = ranks->world;
	assert_int_equal(
		ckpt_layout_build(tensors, count, aliases, alias_count, 4096, NULL, &index->layout),
		0);
	ranks->list[ranks->world++] = index;
}

static void clear(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->world; i++)
		ckpt_layout_free(ranks->indexes[i].layout);
	*ranks = (struct ranks){0};
}

static const int64_t zero[4] = {0};
static const int64_t two_three[] = {2, 3};
static const int64_t four_three[] = {4, 3};
static const int64_t at_two[] = {2, 0};

/* One rank's wholes are those of its index, and nothing is made. */
static void test_plain(void **state)
{
	struct ckpt_tensor tensors[] = {{.name = "b", .dtype = CKPT_U8},
		{.name = "a", .dtype = CKPT_F32, .ndim = 2, .shape = two_three}};
	struct ckpt_alias alias = {(char *)"tied", (char *)"a"};
	struct ranks ranks = {0};
	struct ckpt_tensor_map *w = NULL;
	size_t count = 0;

	(void)state;
	add_rank(&ranks, tensors, 2, &alias, 1);
	assert_int_equal(ckpt_tensor_map_build(ranks.list, 1, NULL, &w), 0);
	assert_ptr_equal(w->names, ranks.indexes[0].layout);
	for (size_t i = 0; i < 2; i++) {
		const struct ckpt_entry *e = &w->names->entries[i];
		const struct ckpt_part *part = ckpt_tensor_map_parts(w, e, &count);
		assert_int_equal(count, 1);
		assert_int_equal(part->rank, 0);
		assert_ptr_equal(part->entry, e);
	}
	ckpt_tensor_map_free(w);
	ckpt_tensor_map_free(NULL);
	clear(&ranks);
}

/* One rank with a box is not plain: what it holds is a part of something larger. */
static void test_one_boxed(void **state)
{
	struct ckpt_tensor tensor = {.name = "a",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = two_three,
		.global_shape = four_three,
		.global_start = at_two};
	struct ranks ranks = {0};
	struct ckpt_tensor_map *w = NULL;
	size_t count = 0;

	(void)state;
	add_rank(&ranks, &tensor, 1, NULL, 0);
	assert_int_equal(ckpt_tensor_map_build(ranks.list, 1, NULL, &w), 0);
	const struct ckpt_entry *e = ckpt_layout_find(w->names, "a");
	assert_memory_equal(e->shape, four_three, sizeof(four_three));
	assert_int_equal(e->nbytes, 48);
	struct ckpt_box box = ckpt_part_box(ckpt_tensor_map_parts(w, e, &count));
	assert_int_equal(count, 1);
	assert_memory_equal(box.start, at_two, sizeof(at_two));
	assert_memory_equal(box.shape, two_three, sizeof(two_three));
	ckpt_tensor_map_free(w);
	clear(&ranks);
}

/* What a seed makes of tensors: every rank has some boxes of some of them, some many times over. */
struct truth {
	char names[TENSORS_MAX][16];
	uint32_t dtypes[TENSORS_MAX];
	uint32_t ndim[TENSORS_MAX];
	int64_t shapes[TENSORS_MAX][4];
	size_t parts[TENSORS_MAX];
};

static void make_truth(struct truth *t, struct prng *d)
{
	static const uint32_t dtypes[] = {CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_C128};

	*t = (struct truth){0};
	for (size_t i = 0; i < TENSORS_MAX; i++) {
		(void)snprintf(t->names[i], sizeof(t->names[i]), "t.%llu",
			(unsigned long long)(i * 7919 % 100));
		t->dtypes[i] = dtypes[prng_below(d, 5)];
		t->ndim[i] = (uint32_t)prng_below(d, 5);
		for (uint32_t k = 0; k < t->ndim[i]; k++)
			t->shapes[i][k] = (int64_t)prng_below(d, 5);
	}
}

static void make_rank(struct ranks *ranks, struct truth *t, struct prng *d)
{
	struct ckpt_tensor tensors[TENSORS_MAX];
	int64_t starts[TENSORS_MAX][4];
	int64_t shapes[TENSORS_MAX][4];
	struct ckpt_alias aliases[TENSORS_MAX];
	size_t alias_count = 0;
	size_t n = 0;

	for (size_t i = 0; i < TENSORS_MAX; i++) {
		if (prng_below(d, 3) == 0)
			continue;
		for (uint32_t k = 0; k < t->ndim[i]; k++) {
			starts[n][k] = (int64_t)prng_below(d, (uint64_t)t->shapes[i][k] + 1);
			shapes[n][k] = (int64_t)prng_below(
				d, (uint64_t)(t->shapes[i][k] - starts[n][k]) + 1);
		}
		bool all = prng_below(d, 4) == 0;
		tensors[n] = (struct ckpt_tensor){.name = t->names[i],
			.dtype = t->dtypes[i],
			.ndim = t->ndim[i],
			.shape = all ? t->shapes[i] : shapes[n],
			.global_shape = all ? NULL : t->shapes[i],
			.global_start = all ? NULL : starts[n]};
		t->parts[i]++;
		n++;
		/* Every other rank calls it by a second name, too. */
		if (i == 3 && prng_below(d, 2))
			aliases[alias_count++] = (struct ckpt_alias){(char *)"tied", t->names[i]};
	}
	add_rank(ranks, tensors, n, aliases, alias_count);
}

static void check_parts(const struct ckpt_tensor_map *w, const struct ranks *ranks,
	const struct ckpt_entry *e, size_t expected)
{
	size_t count = 0;
	const struct ckpt_part *parts = ckpt_tensor_map_parts(w, e, &count);
	size_t same = 0;
	size_t pairs = 0;

	assert_int_equal(count, expected);
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_entry *own =
			ckpt_layout_find(ranks->indexes[parts[i].rank].layout, e->name);
		assert_ptr_equal(parts[i].entry, own);
		struct ckpt_box box = ckpt_part_box(&parts[i]);
		assert_int_equal(box.ndim, own->ndim);
		for (uint32_t k = 0; k < own->ndim; k++) {
			assert_int_equal(box.shape[k], own->shape[k]);
			assert_int_equal(
				box.start[k], own->global_start ? own->global_start[k] : 0);
		}
		/* Equal boxes follow each other, and no rank comes twice. */
		same += i > 0 && ckpt_part_same(&parts[i - 1], &parts[i]);
		for (size_t k = 0; k < i; k++) {
			struct ckpt_box other = ckpt_part_box(&parts[k]);
			pairs += k + 1 == i && memcmp(&box, &other, sizeof(box)) == 0;
			assert_int_not_equal(parts[i].rank, parts[k].rank);
			if (memcmp(&box, &other, sizeof(box)) == 0)
				assert_true(ckpt_part_same(&parts[k], &parts[i - 1]));
		}
	}
	assert_int_equal(same, pairs);
}

static void test_random(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 600; seed++) {
		struct prng d = {seed};
		struct ranks ranks = {0};
		struct ckpt_tensor_map *w = NULL;
		struct truth t;
		size_t names = 0;
		bool tied = false;

		make_truth(&t, &d);
		for (uint64_t i = 1 + prng_below(&d, RANKS_MAX); i > 0; i--)
			make_rank(&ranks, &t, &d);
		assert_int_equal(ckpt_tensor_map_build(ranks.list, ranks.world, NULL, &w), 0);
		for (size_t i = 0; i < TENSORS_MAX; i++) {
			const struct ckpt_entry *e = ckpt_layout_find(w->names, t.names[i]);
			assert_int_equal(e != NULL, t.parts[i] > 0);
			if (!e)
				continue;
			names++;
			assert_int_equal(e->dtype, t.dtypes[i]);
			assert_int_equal(e->ndim, t.ndim[i]);
			assert_memory_equal(e->shape, t.shapes[i], t.ndim[i] * sizeof(int64_t));
			check_parts(w, &ranks, e, t.parts[i]);
		}
		assert_int_equal(w->names->entry_count, names);
		for (size_t i = 1; i < names; i++)
			assert_true(ckpt_layout_order(
					    &w->names->entries[i - 1], &w->names->entries[i]) < 0);
		for (uint32_t i = 0; i < ranks.world; i++)
			tied = tied || ranks.indexes[i].layout->alias_count > 0;
		assert_int_equal(w->names->alias_count, tied);
		if (tied)
			assert_ptr_equal(ckpt_layout_find(w->names, "tied"),
				ckpt_layout_find(w->names, t.names[3]));
		ckpt_tensor_map_free(w);
		clear(&ranks);
	}
}

/* Rank 0 and 1 say one thing about "w", rank 2 another. */
static void apart(const struct ckpt_tensor *tensors, const char *alias, const char *says)
{
	struct ckpt_tensor first[] = {
		{.name = "v", .dtype = CKPT_F32, .ndim = 2, .shape = two_three},
		{.name = "w", .dtype = CKPT_F32, .ndim = 2, .shape = four_three}};
	struct ckpt_tensor second[] = {first[0], {.name = "w",
							 .dtype = CKPT_F32,
							 .ndim = 2,
							 .shape = two_three,
							 .global_shape = four_three,
							 .global_start = zero}};
	struct ckpt_alias aliases[] = {{(char *)"tied", (char *)"v"}};
	struct ckpt_alias others[] = {{(char *)alias, (char *)tensors[0].name}};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ranks ranks = {0};
	struct ckpt_tensor_map *w = (struct ckpt_tensor_map *)8;

	add_rank(&ranks, first, 2, aliases, 1);
	add_rank(&ranks, second, 2, NULL, 0);
	add_rank(&ranks, tensors, 1, others, alias != NULL);
	assert_int_equal(ckpt_tensor_map_build(ranks.list, 3, &err, &w), CKPT_EFORMAT);
	assert_ptr_equal(w, (struct ckpt_tensor_map *)8);
	assert_int_equal(err.code, CKPT_EFORMAT);
	if (!strstr(err.message, says))
		fail_msg("\"%s\" does not say \"%s\"", err.message, says);
	clear(&ranks);
}

static void test_disagreements(void **state)
{
	static const int64_t other[] = {4, 4};
	struct ckpt_tensor t = {.name = "w", .dtype = CKPT_BF16, .ndim = 2, .shape = four_three};

	(void)state;
	apart(&t, NULL, "'w': F32 [4, 3] says rank 0, BF16 [4, 3] says rank 2");
	t.dtype = CKPT_F32;
	t.shape = two_three;
	apart(&t, NULL, "F32 [2, 3] says rank 2");
	t.global_shape = other;
	apart(&t, NULL, "F32 [4, 4] says rank 2");
	t.ndim = 1;
	apart(&t, NULL, "F32 [4] says rank 2");
	t.ndim = 0;
	apart(&t, NULL, "F32 [] says rank 2");
	t = (struct ckpt_tensor){.name = "tied", .dtype = CKPT_U8};
	apart(&t, NULL, "'tied': U8 [] says rank 2, another name of 'v' says rank 0");
	t.name = "x";
	apart(&t, "tied",
		"'tied': another name of 'v' says rank 0, another name of 'x' says rank 2");
	apart(&t, "w", "another name of 'x' says rank 2");
}

static size_t left;

static bool fail_one(void *user, size_t size)
{
	(void)user;
	(void)size;
	return left-- == 0;
}

static void test_without_memory(void **state)
{
	struct ckpt_tensor t = {.name = "w", .dtype = CKPT_BF16, .ndim = 2, .shape = four_three};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_tensor_map *w = NULL;
	struct ranks ranks = {0};

	(void)state;
	add_rank(&ranks, &t, 1, NULL, 0);
	add_rank(&ranks, &t, 1, NULL, 0);
	for (uint32_t world = 1; world <= 2; world++) {
		size_t failed = 0;
		int r = -ENOMEM;

		for (; r < 0; failed++) {
			left = failed;
			ckpt_alloc_set_hook(fail_one, NULL);
			r = ckpt_tensor_map_build(ranks.list, world, &err, &w);
			ckpt_alloc_set_hook(NULL, NULL);
			assert_true(r == 0 || (r == -ENOMEM && err.code == -ENOMEM));
			err = (struct ckpt_error){.size = sizeof(err)};
		}
		assert_true(failed > world);
		ckpt_tensor_map_free(w);
	}
	clear(&ranks);
}

/* Two halves do not overlap; the same half once more does, and so does a part of a half. */
static void test_overlap(void **state)
{
	static const int64_t one_three[] = {1, 3};
	const struct ckpt_tensor halves[] = {{.name = "a",
						     .dtype = CKPT_F32,
						     .ndim = 2,
						     .shape = two_three,
						     .global_shape = four_three,
						     .global_start = zero},
		{.name = "a",
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = two_three,
			.global_shape = four_three,
			.global_start = at_two}};
	struct ckpt_tensor more[] = {halves[1], halves[1]};

	(void)state;
	more[1].shape = one_three;
	for (size_t i = 0; i < 3; i++) {
		struct ranks ranks = {0};
		struct ckpt_tensor_map *w = NULL;

		add_rank(&ranks, &halves[0], 1, NULL, 0);
		add_rank(&ranks, &halves[1], 1, NULL, 0);
		if (i > 0)
			add_rank(&ranks, &more[i - 1], 1, NULL, 0);
		assert_int_equal(ckpt_tensor_map_build(ranks.list, ranks.world, NULL, &w), 0);
		assert_int_equal(ckpt_tensor_map_overlap(w), i > 0);
		ckpt_tensor_map_free(w);
		clear(&ranks);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_overlap),
		cmocka_unit_test(test_one_boxed),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_disagreements),
		cmocka_unit_test(test_without_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
