/* SPDX-License-Identifier: Apache-2.0 */
/* Views of any shape and stride, and any range of their bytes, against a walk element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/memcpy_nt.h"

/* Small and known: a failure is reproduced by its seed. */
static uint64_t random_state;

static uint64_t next_random(void)
{
	uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint64_t below(uint64_t n)
{
	return next_random() % n;
}

/* Memory of just the bytes that the view spans, so that a sanitizer sees a byte too many. */
struct sample_view {
	struct ckpt_view view;
	int64_t shape[CKPT_NDIM_MAX];
	int64_t strides[CKPT_NDIM_MAX];
	char *memory;
	size_t memory_bytes;
	bool overlapping;
};

static void fill(char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (char)next_random();
}

/* Allocates what shape and strides span, and points element [0,0,...] into it. */
static void back(struct sample_view *v)
{
	int64_t low = 0;
	int64_t high = 0;
	bool empty = false;

	v->view.shape = v->shape;
	v->view.strides = v->strides;
	for (uint32_t i = 0; i < v->view.ndim; i++) {
		int64_t reach = (v->shape[i] - 1) * v->strides[i];

		empty = empty || v->shape[i] == 0;
		if (v->shape[i] <= 1)
			continue;
		*(reach < 0 ? &low : &high) += reach;
	}
	v->memory_bytes = empty ? 0 : (size_t)(high - low + 1) * v->view.item;
	v->memory = malloc(v->memory_bytes ? v->memory_bytes : 1);
	assert_non_null(v->memory);
	fill(v->memory, v->memory_bytes);
	v->view.data = empty ? NULL : v->memory - low * (int64_t)v->view.item;
}

/* Dimensions in a random order of memory, with gaps, steps, reversals, repeats and single elements. */
static void make_random(struct sample_view *v, bool may_overlap)
{
	static const uint32_t items[] = {1, 2, 4, 8, 16, 3, 12};
	uint32_t order[CKPT_NDIM_MAX];
	int64_t stride = 1;

	memset(v, 0, sizeof(*v));
	v->view.item = items[below(CKPT_COUNT(items))];
	v->view.ndim = (uint32_t)below(6);
	for (uint32_t i = 0; i < v->view.ndim; i++) {
		uint64_t kind = below(12);

		v->shape[i] = kind == 0 ? 1 : (int64_t)(1 + below(kind < 3 ? 40 : 6));
		order[i] = i;
	}
	if (v->view.ndim > 0 && below(30) == 0)
		v->shape[below(v->view.ndim)] = 0;
	for (uint32_t i = v->view.ndim; i > 1; i--) {
		uint32_t k = (uint32_t)below(i);
		uint32_t swap = order[i - 1];

		order[i - 1] = order[k];
		order[k] = swap;
	}
	if (below(3) == 0)
		for (uint32_t i = 0; i < v->view.ndim; i++)
			order[i] = v->view.ndim - 1 - i;
	for (uint32_t i = 0; i < v->view.ndim; i++) {
		uint32_t d = order[i];
		uint64_t kind = below(16);

		v->strides[d] = stride;
		if (kind == 0)
			v->strides[d] = stride * 2;
		if (kind == 1)
			v->strides[d] = stride + 1;
		if (v->shape[d] > 0)
			stride = v->strides[d] * v->shape[d];
		if (kind == 2)
			v->strides[d] = -v->strides[d];
		if (kind == 3 && may_overlap && v->shape[d] > 1) {
			v->strides[d] = 0;
			v->overlapping = true;
		}
		if (v->shape[d] == 1 && below(2))
			v->strides[d] = INT64_MIN + (int64_t)below(1000);
	}
	back(v);
}

static void drop(struct sample_view *v)
{
	free(v->memory);
}

/* The element of that number, found by division alone. */
static char *element(const struct ckpt_view *view, uint64_t number)
{
	char *at = view->data;

	for (uint32_t d = view->ndim; d-- > 0;) {
		uint64_t index = number % (uint64_t)view->shape[d];

		number /= (uint64_t)view->shape[d];
		if (index > 0)
			at += (int64_t)index * view->strides[d] * (int64_t)view->item;
	}
	return at;
}

static uint64_t naive_bytes(const struct ckpt_view *view)
{
	uint64_t bytes = view->item;

	for (uint32_t d = 0; d < view->ndim; d++)
		bytes *= (uint64_t)view->shape[d];
	return bytes;
}

/* A copy of the whole view, element by element. */
static char *naive_gather(const struct ckpt_view *view)
{
	uint64_t bytes = naive_bytes(view);
	char *flat = malloc(bytes ? bytes : 1);

	assert_non_null(flat);
	for (uint64_t i = 0; i < bytes / view->item; i++)
		memcpy(flat + i * view->item, element(view, i), view->item);
	return flat;
}

static void random_range(uint64_t bytes, uint64_t *ret_offset, uint64_t *ret_length)
{
	*ret_offset = below(bytes + 1);
	*ret_length = below(bytes - *ret_offset + 1);
	if (below(4) == 0) {
		*ret_offset = 0;
		*ret_length = bytes;
	}
}

static void check_gather(const struct sample_view *v, uint64_t seed)
{
	uint64_t bytes = naive_bytes(&v->view);
	char *want = naive_gather(&v->view);

	for (int i = 0; i < 8; i++) {
		uint64_t offset;
		uint64_t length;
		char *got;

		random_range(bytes, &offset, &length);
		got = malloc(length ? length : 1);
		assert_non_null(got);
		ckpt_view_gather(&v->view, offset, length, got);
		if (memcmp(got, want + offset, length) != 0)
			fail_msg("gather differs: seed %llu, %llu bytes from %llu",
				(unsigned long long)seed, (unsigned long long)length,
				(unsigned long long)offset);
		free(got);
	}
	free(want);
}

static void check_scatter(const struct sample_view *v, uint64_t seed)
{
	uint64_t bytes = naive_bytes(&v->view);
	char *want = malloc(v->memory_bytes + 1);
	uint64_t offset;
	uint64_t length;
	char *in;
	char *same;

	assert_non_null(want);
	random_range(bytes, &offset, &length);
	in = malloc(length ? length : 1);
	same = malloc(length ? length : 1);
	assert_non_null(in);
	assert_non_null(same);
	fill(in, length);
	memcpy(same, in, length);
	memcpy(want, v->memory, v->memory_bytes);
	/* The same bytes, put by hand where they belong in the old memory. */
	for (uint64_t i = 0; i < length; i++) {
		uint64_t at = offset + i;
		char *to = element(&v->view, at / v->view.item) + at % v->view.item;

		want[to - v->memory] = in[i];
	}
	ckpt_view_scatter(&v->view, offset, length, in);
	if (memcmp(want, v->memory, v->memory_bytes) != 0)
		fail_msg("scatter differs: seed %llu", (unsigned long long)seed);
	if (memcmp(same, in, length) != 0)
		fail_msg("scatter writes to its input: seed %llu", (unsigned long long)seed);
	free(want);
	free(in);
	free(same);
}

static void random_views_are_gathered(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 1500; seed++) {
		struct sample_view v;

		random_state = seed;
		make_random(&v, true);
		assert_int_equal(ckpt_view_bytes(&v.view), naive_bytes(&v.view));
		check_gather(&v, seed);
		drop(&v);
	}
}

static void random_views_are_scattered_to_and_nothing_else_is(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 1500; seed++) {
		struct sample_view v;

		random_state = seed;
		make_random(&v, false);
		check_scatter(&v, seed);
		drop(&v);
	}
}

/* Said to be contiguous when, and only when, element i lies i elements after the first. */
static void contiguous_is_what_lies_in_order(void **state)
{
	unsigned yes = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 1500; seed++) {
		struct sample_view v;
		bool want = true;

		random_state = seed;
		make_random(&v, true);
		for (uint64_t i = 0; i < naive_bytes(&v.view) / v.view.item; i++)
			want = want && element(&v.view, i) == v.view.data + i * v.view.item;
		assert_int_equal(ckpt_view_contiguous(&v.view), want);
		yes += want;
		drop(&v);
	}
	assert_true(yes > 50 && yes < 1450);
}

static void big_transposes(void **state)
{
	static const uint32_t items[] = {1, 2, 4, 8, 16, 12};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(items); i++) {
		struct sample_view v = {.view = {.item = items[i], .ndim = 3},
			.shape = {3, 150, 131},
			.strides = {150L * 131, 1, 150}};

		random_state = i;
		back(&v);
		check_gather(&v, i);
		check_scatter(&v, i);
		drop(&v);
		/* The same backwards in both directions. */
		v.strides[1] = -1;
		v.strides[2] = -150;
		back(&v);
		check_gather(&v, i);
		check_scatter(&v, i);
		drop(&v);
	}
}

/* Rows long enough to go past the caches, each with a head and a tail that are not aligned. */
static void long_rows(void **state)
{
	struct sample_view v = {
		.view = {.item = 4, .ndim = 2}, .shape = {3, 100003}, .strides = {100110, 1}};

	(void)state;
	random_state = 1;
	back(&v);
	check_gather(&v, 1);
	check_scatter(&v, 1);
	drop(&v);
}

static void a_scalar_and_a_view_without_strides(void **state)
{
	const int64_t shape[2] = {3, 5};
	char memory[60];
	char out[60] = {0};
	struct ckpt_view scalar = {.data = memory, .item = 8};
	struct ckpt_view plain = {.data = memory, .item = 4, .ndim = 2, .shape = shape};

	(void)state;
	random_state = 1;
	fill(memory, sizeof(memory));
	assert_int_equal(ckpt_view_bytes(&scalar), 8);
	assert_true(ckpt_view_contiguous(&scalar));
	ckpt_view_gather(&scalar, 0, 8, out);
	assert_memory_equal(out, memory, 8);
	ckpt_view_gather(&scalar, 3, 4, out);
	assert_memory_equal(out, memory + 3, 4);
	assert_int_equal(ckpt_view_bytes(&plain), 60);
	ckpt_view_gather(&plain, 7, 50, out);
	assert_memory_equal(out, memory + 7, 50);
	memset(memory, 0, sizeof(memory));
	ckpt_view_scatter(&plain, 7, 50, out);
	assert_memory_equal(memory + 7, out, 50);
	assert_int_equal(memory[6], 0);
	assert_int_equal(memory[57], 0);
}

/* No elements: no data, huge other dimensions, and nothing is read or written. */
static void an_empty_view_has_no_bytes(void **state)
{
	const int64_t shape[3] = {INT64_MAX, 0, INT64_MAX};
	const int64_t strides[3] = {1, 1, 1};
	struct ckpt_view view = {.item = 8, .ndim = 3, .shape = shape, .strides = strides};

	(void)state;
	assert_int_equal(ckpt_view_bytes(&view), 0);
	assert_true(ckpt_view_contiguous(&view));
	ckpt_view_gather(&view, 0, 0, NULL);
	ckpt_view_scatter(&view, 0, 0, NULL);
}

static void stream_copy_copies_all_and_no_more(void **state)
{
	const size_t cap = 600000;
	char *from = malloc(cap);
	char *to = malloc(cap);

	(void)state;
	assert_non_null(from);
	assert_non_null(to);
	random_state = 1;
	fill(from, cap);
	for (int i = 0; i < 60; i++) {
		size_t in = below(200);
		size_t out = below(200);
		size_t bytes = i % 3 == 0 ? below(300) : (UINT64_C(256) << 10) + below(300000);
		size_t wrong = 0;

		memset(to, 0, cap);
		ckpt_memcpy_nt(to + out, from + in, bytes);
		assert_memory_equal(to + out, from + in, bytes);
		for (size_t k = 0; k < cap; k++)
			wrong += (k < out || k >= out + bytes) && to[k] != 0;
		assert_int_equal(wrong, 0);
	}
	free(from);
	free(to);
}

static void strides_that_lead_nowhere_are_found(void **state)
{
	static const int64_t shape[3] = {3, 1, 2};
	static const struct {
		int64_t strides[3];
		int stray;
	} cases[] = {
		{{2, 7, 1}, -1},
		{{0, INT64_MIN, -1}, -1},
		{{INT64_MAX, 1, 1}, 0},
		{{INT64_MIN, 1, 1}, 0},
		{{1, 1, INT64_MAX / 8}, 2},
		{{1, 1, INT64_MIN}, 2},
		/* Two that would do, and are too far together. */
		{{INT64_MAX / 32 + 1, 1, -(INT64_MAX / 16)}, 2},
		{{INT64_MAX / 32, 1, -(INT64_MAX / 32)}, -1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ckpt_view view = {
			.item = 8, .ndim = 3, .shape = shape, .strides = cases[i].strides};
		assert_int_equal(ckpt_view_stray(&view), cases[i].stray);
		view.strides = NULL;
		assert_int_equal(ckpt_view_stray(&view), -1);
	}
}

/* By the place of every element. */
static bool two_are_one(const struct ckpt_view *view)
{
	uint64_t count = naive_bytes(view) / view->item;

	for (uint64_t i = 0; i < count; i++)
		for (uint64_t j = i + 1; j < count; j++)
			if (element(view, i) == element(view, j))
				return true;
	return false;
}

static void elements_that_share_memory_are_found(void **state)
{
	unsigned shared = 0;
	char some[1];

	(void)state;
	random_state = 17;
	for (unsigned n = 0; n < 20000; n++) {
		int64_t shape[4];
		int64_t strides[4];
		struct ckpt_view view = {.data = some,
			.item = 1,
			.ndim = (uint32_t)below(5),
			.shape = shape,
			.strides = strides};

		for (uint32_t i = 0; i < view.ndim; i++) {
			shape[i] = (int64_t)below(n % 50 ? 4 : 5) + (n % 100 > 0);
			strides[i] = (int64_t)below(49) - 24;
		}
		bool expected = two_are_one(&view);
		if (ckpt_view_shares(&view) != expected)
			fail_msg("view %u: %s", n, expected ? "not seen" : "is not so");
		shared += expected;
	}
	assert_in_range(shared, 2000, 18000);
}

/* Far more than can be compared one by one. */
static void large_views_are_soon_known_to_share_nothing(void **state)
{
	static const struct {
		int64_t shape[4];
		int64_t strides[4];
		bool shares;
	} cases[] = {
		{{1 << 20, 64, 1 << 10, 1}, {1, 1 << 30, 1 << 20, 7}, false},
		{{1 << 20, 1 << 20, 1, 1}, {1 << 20, 1, 0, 0}, false},
		{{1 << 20, 1 << 20, 1, 1}, {1, (1 << 20) - 1, 0, 0}, true},
		/* Between one another: 2 and 3 are as far apart as 6. */
		{{3, 2, 1 << 20, 1}, {2, 3, 8, 1}, false},
		{{4, 2, 1 << 20, 1}, {2, 3, 16, 1}, false},
		{{4, 3, 1 << 20, 1}, {2, 3, 16, 1}, true},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ckpt_view view = {
			.item = 1, .ndim = 4, .shape = cases[i].shape, .strides = cases[i].strides};
		assert_int_equal(ckpt_view_shares(&view), cases[i].shares);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_views_are_gathered),
		cmocka_unit_test(random_views_are_scattered_to_and_nothing_else_is),
		cmocka_unit_test(contiguous_is_what_lies_in_order),
		cmocka_unit_test(big_transposes),
		cmocka_unit_test(long_rows),
		cmocka_unit_test(a_scalar_and_a_view_without_strides),
		cmocka_unit_test(an_empty_view_has_no_bytes),
		cmocka_unit_test(strides_that_lead_nowhere_are_found),
		cmocka_unit_test(elements_that_share_memory_are_found),
		cmocka_unit_test(large_views_are_soon_known_to_share_nothing),
		cmocka_unit_test(stream_copy_copies_all_and_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
