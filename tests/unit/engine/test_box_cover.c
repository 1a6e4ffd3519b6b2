/* SPDX-License-Identifier: Apache-2.0 */
/* What is wanted is covered once, from whatever boxes there are; what nobody holds is found missing. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/reshard/box_cover.h"
#include "lib/prng.h"

#define SIDE      9
#define PARTS_MAX 80
#define CELLS     (SIDE * SIDE * SIDE)

struct scene {
	uint32_t ndim;
	int64_t shape[3];
	struct ckpt_entry entries[PARTS_MAX];
	int64_t boxes[PARTS_MAX][6];
	struct ckpt_part parts[PARTS_MAX];
	size_t count;
};

static void add_part(struct scene *s, const struct ckpt_box *box)
{
	struct ckpt_entry *e = &s->entries[s->count];
	int64_t *dims = s->boxes[s->count];

	memcpy(dims, box->start, sizeof(*dims) * 3);
	memcpy(dims + 3, box->shape, sizeof(*dims) * 3);
	*e = (struct ckpt_entry){
		.ndim = s->ndim, .shape = dims + 3, .global_shape = s->shape, .global_start = dims};
	s->parts[s->count] = (struct ckpt_part){.entry = e, .rank = (uint32_t)s->count};
	s->count++;
}

/* Cuts a box in two, again and again; some pieces come twice, some not at all. */
static void scatter(
	struct scene *s, struct prng *d, const struct ckpt_box *box, unsigned depth, unsigned lost)
{
	uint32_t i = s->ndim ? (uint32_t)prng_below(d, s->ndim) : 0;

	if (depth > 0 && s->ndim > 0) {
		int64_t cut = (int64_t)prng_below(d, (uint64_t)box->shape[i] + 1);
		struct ckpt_box a = *box;
		struct ckpt_box b = *box;
		a.shape[i] = cut;
		b.start[i] += cut;
		b.shape[i] -= cut;
		scatter(s, d, &a, depth - 1, lost);
		scatter(s, d, &b, depth - 1, lost);
		return;
	}
	if (lost && prng_below(d, lost) == 0)
		return;
	add_part(s, box);
	if (prng_below(d, 4) == 0)
		add_part(s, box);
}

static struct ckpt_box random_box(struct prng *d, const struct scene *s)
{
	struct ckpt_box box = {.ndim = s->ndim};

	for (uint32_t i = 0; i < s->ndim; i++) {
		box.start[i] = (int64_t)prng_below(d, (uint64_t)s->shape[i] + 1);
		box.shape[i] = (int64_t)prng_below(d, (uint64_t)(s->shape[i] - box.start[i]) + 1);
	}
	return box;
}

/* Adds one to each of its cells. */
static void paint(const struct ckpt_box *box, unsigned cells[CELLS])
{
	int64_t n[3] = {1, 1, 1};
	int64_t at[3] = {0};

	for (uint32_t i = 0; i < box->ndim; i++)
		n[i] = box->shape[i], at[i] = box->start[i];
	for (int64_t i = 0; i < n[0]; i++)
		for (int64_t j = 0; j < n[1]; j++)
			for (int64_t k = 0; k < n[2]; k++)
				cells[((at[0] + i) * SIDE + at[1] + j) * SIDE + at[2] + k]++;
}

static bool within(const struct ckpt_box *in, const struct ckpt_box *box)
{
	struct ckpt_box both;

	return ckpt_box_meet(in, box, &both) && memcmp(&both, in, sizeof(both)) == 0;
}

static void check(
	struct scene *s, struct ckpt_box_cover *cover, const struct ckpt_box *wanted, bool disjoint)
{
	static unsigned held[CELLS];
	static unsigned want[CELLS];
	static unsigned read[CELLS];
	struct ckpt_box missing = {.ndim = 99};
	bool all = true;

	memset(held, 0, sizeof(held));
	memset(want, 0, sizeof(want));
	memset(read, 0, sizeof(read));
	paint(wanted, want);
	for (size_t i = 0; i < s->count; i++) {
		struct ckpt_box box = ckpt_part_box(&s->parts[i]);
		paint(&box, held);
	}
	for (size_t i = 0; i < CELLS; i++)
		all = all && (!want[i] || held[i]);
	int r = ckpt_box_cover_find(cover, s->parts, s->count, wanted, &missing);
	assert_int_equal(r, all ? 0 : 1);
	if (!all) {
		assert_true(within(&missing, wanted));
		paint(&missing, read);
		for (size_t i = 0; i < CELLS; i++)
			assert_false(read[i] && held[i]);
		return;
	}
	for (size_t i = 0; i < cover->count; i++) {
		struct ckpt_box box = ckpt_part_box(cover->cuts[i].part);
		assert_true(within(&cover->cuts[i].box, &box));
		paint(&cover->cuts[i].box, read);
		/* Parts that share nothing are cut once each. */
		for (size_t k = 0; k < i && disjoint; k++)
			assert_ptr_not_equal(cover->cuts[k].part, cover->cuts[i].part);
	}
	assert_memory_equal(read, want, sizeof(read));
}

static int part_order(const void *a, const void *b)
{
	const struct ckpt_part *x = a;
	const struct ckpt_part *y = b;
	struct ckpt_box one = ckpt_part_box(x);
	struct ckpt_box two = ckpt_part_box(y);
	int r = memcmp(&one, &two, sizeof(one));

	return r ? r : (x->rank > y->rank) - (x->rank < y->rank);
}

static void test_random(void **state)
{
	struct ckpt_box_cover cover = {0};

	(void)state;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		struct prng d = {seed};
		struct scene s = {.ndim = (uint32_t)prng_below(&d, 4)};
		unsigned lost = prng_below(&d, 3) == 0 ? 6 : 0;
		bool disjoint = prng_below(&d, 3) > 0;

		for (uint32_t i = 0; i < s.ndim; i++)
			s.shape[i] = (int64_t)prng_below(&d, SIDE - 1) + 1;
		struct ckpt_box whole = ckpt_box_of(NULL, s.shape, s.ndim);
		scatter(&s, &d, &whole, (unsigned)prng_below(&d, 4), lost);
		for (uint64_t i = disjoint ? 0 : prng_below(&d, 4); i > 0; i--) {
			struct ckpt_box more = random_box(&d, &s);
			add_part(&s, &more);
		}
		qsort(s.parts, s.count, sizeof(s.parts[0]), part_order);
		check(&s, &cover, &whole, disjoint);
		for (unsigned i = 0; i < 4; i++) {
			struct ckpt_box wanted = random_box(&d, &s);
			check(&s, &cover, &wanted, disjoint);
		}
	}
	ckpt_box_cover_clear(&cover);
}

/* Slabs across every dimension leave more boxes than there could be memory for. */
static void test_slabs(void **state)
{
	struct ckpt_entry entries[CKPT_NDIM_MAX * 3];
	struct ckpt_part parts[CKPT_NDIM_MAX * 3];
	int64_t dims[CKPT_NDIM_MAX * 3][2][CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
	struct ckpt_box_cover cover = {0};
	struct ckpt_box missing = {.ndim = 99};
	size_t n = 0;

	(void)state;
	for (uint32_t i = 0; i < CKPT_NDIM_MAX; i++)
		shape[i] = 8;
	for (uint32_t i = 0; i < CKPT_NDIM_MAX; i++)
		for (int64_t at = 1; at < 7; at += 2, n++) {
			for (uint32_t k = 0; k < CKPT_NDIM_MAX; k++) {
				dims[n][0][k] = k == i ? at : 0;
				dims[n][1][k] = k == i ? 1 : 8;
			}
			entries[n] = (struct ckpt_entry){.ndim = CKPT_NDIM_MAX,
				.shape = dims[n][1],
				.global_shape = shape,
				.global_start = dims[n][0]};
			parts[n].entry = &entries[n];
		}
	struct ckpt_box whole = ckpt_box_of(NULL, shape, CKPT_NDIM_MAX);
	assert_int_equal(ckpt_box_cover_find(&cover, parts, n, &whole, &missing), -E2BIG);
	assert_int_equal(missing.ndim, 99);
	ckpt_box_cover_clear(&cover);
}

/* A grid as large as worlds are is done in no time. */
static void test_large_grid(void **state)
{
	const size_t side = 128;
	struct ckpt_entry *entries = calloc(side * side, sizeof(*entries));
	struct ckpt_part *parts = calloc(side * side, sizeof(*parts));
	int64_t(*starts)[2] = calloc(side * side, sizeof(*starts));
	int64_t whole_shape[2] = {(int64_t)side * 3, (int64_t)side * 5};
	int64_t cell[2] = {3, 5};
	struct ckpt_box whole = ckpt_box_of(NULL, whole_shape, 2);
	struct ckpt_box_cover cover = {0};
	struct ckpt_box missing;

	(void)state;
	for (size_t i = 0; i < side * side; i++) {
		starts[i][0] = (int64_t)(i / side) * 3;
		starts[i][1] = (int64_t)(i % side) * 5;
		entries[i] = (struct ckpt_entry){.ndim = 2,
			.shape = cell,
			.global_shape = whole_shape,
			.global_start = starts[i]};
		parts[i].entry = &entries[i];
	}
	assert_int_equal(ckpt_box_cover_find(&cover, parts, side * side, &whole, &missing), 0);
	assert_int_equal(cover.count, side * side);
	assert_true(cover.rest_room < 100);
	ckpt_box_cover_clear(&cover);
	free(entries);
	free(parts);
	free(starts);
}

/* Thousands of gaps, and boxes without end that fill none of them: it is refused before it takes minutes. */
static void test_gaps(void **state)
{
	const size_t gaps = 8000;
	const size_t idle = 60000;
	struct ckpt_entry *entries = calloc(gaps + 2, sizeof(*entries));
	struct ckpt_part *parts = calloc(gaps + idle, sizeof(*parts));
	int64_t *starts = calloc(gaps, sizeof(*starts));
	int64_t shape = (int64_t)gaps * 2 + 1;
	int64_t one = 1;
	struct ckpt_box whole = ckpt_box_of(NULL, &shape, 1);
	struct ckpt_box_cover cover = {0};
	struct ckpt_box missing = {.ndim = 99};

	(void)state;
	for (size_t i = 0; i < gaps; i++) {
		starts[i] = (int64_t)i * 2 + 1;
		entries[i] = (struct ckpt_entry){.ndim = 1,
			.shape = &one,
			.global_shape = &shape,
			.global_start = &starts[i]};
		parts[i].entry = &entries[i];
	}
	for (size_t i = 0; i < idle; i++)
		parts[gaps + i].entry = &entries[i % 2];
	assert_int_equal(ckpt_box_cover_find(&cover, parts, gaps, &whole, &missing), 1);
	assert_int_equal(missing.ndim, 1);
	missing.ndim = 99;
	assert_int_equal(ckpt_box_cover_find(&cover, parts, gaps + idle, &whole, &missing), -E2BIG);
	assert_int_equal(missing.ndim, 99);
	assert_true(cover.work < 2 * CKPT_BOX_COVER_WORK_MAX);
	ckpt_box_cover_clear(&cover);
	free(entries);
	free(parts);
	free(starts);
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
	struct prng d = {3};
	struct scene s = {.ndim = 3, .shape = {8, 8, 8}};
	struct ckpt_box whole = ckpt_box_of(NULL, s.shape, s.ndim);
	struct ckpt_box missing;
	size_t tries = 0;
	int r = -ENOMEM;

	(void)state;
	scatter(&s, &d, &whole, 5, 0);
	for (; r < 0; tries++) {
		struct ckpt_box_cover cover = {0};

		left = tries;
		ckpt_alloc_set_hook(fail_one, NULL);
		r = ckpt_box_cover_find(&cover, s.parts, s.count, &whole, &missing);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		ckpt_box_cover_clear(&cover);
	}
	assert_true(tries > 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_slabs),
		cmocka_unit_test(test_large_grid),
		cmocka_unit_test(test_gaps),
		cmocka_unit_test(test_without_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
