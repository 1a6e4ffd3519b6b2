/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes, against a walk element by element. */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "engine/reshard/box.h"
#include "lib/prng.h"

#define SIDE 6

/* An array of up to four dimensions and a box within it, each of either maybe empty. */
static void random_array(struct prng *d, uint32_t ndim, int64_t *shape)
{
	for (uint32_t i = 0; i < ndim; i++)
		shape[i] = (int64_t)prng_below(d, SIDE) + (prng_below(d, 8) > 0);
}

static struct ckpt_box random_box(struct prng *d, uint32_t ndim, const int64_t *shape)
{
	struct ckpt_box box = {.ndim = ndim};

	for (uint32_t i = 0; i < ndim; i++) {
		box.start[i] = (int64_t)prng_below(d, (uint64_t)shape[i] + 1);
		box.shape[i] = (int64_t)prng_below(d, (uint64_t)(shape[i] - box.start[i]) + 1);
		if (prng_below(d, 3) == 0)
			box.start[i] = 0, box.shape[i] = shape[i];
	}
	return box;
}

static bool holds(const struct ckpt_box *box, const int64_t *at)
{
	for (uint32_t i = 0; i < box->ndim; i++)
		if (at[i] < box->start[i] || at[i] >= box->start[i] + box->shape[i])
			return false;
	return true;
}

/* Sets `at` to element number `n` of the array; false past the last. */
static bool element(const int64_t *shape, uint32_t ndim, uint64_t n, int64_t *at)
{
	for (uint32_t i = ndim; i-- > 0;) {
		if (shape[i] == 0)
			return false;
		at[i] = (int64_t)(n % (uint64_t)shape[i]);
		n /= (uint64_t)shape[i];
	}
	return n == 0;
}

static uint64_t count(const struct ckpt_box *box, const int64_t *shape)
{
	int64_t at[CKPT_NDIM_MAX];
	uint64_t found = 0;

	for (uint64_t n = 0; element(shape, box->ndim, n, at); n++)
		found += holds(box, at);
	return found;
}

static void test_volume_and_meeting(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		struct prng d = {seed};
		uint32_t ndim = (uint32_t)prng_below(&d, 5);
		int64_t shape[CKPT_NDIM_MAX];
		int64_t at[CKPT_NDIM_MAX];

		random_array(&d, ndim, shape);
		struct ckpt_box a = random_box(&d, ndim, shape);
		struct ckpt_box b = random_box(&d, ndim, shape);
		struct ckpt_box both = {.ndim = 77};
		uint64_t common = 0;
		assert_int_equal(ckpt_box_volume(&a), count(&a, shape));
		for (uint64_t n = 0; element(shape, ndim, n, at); n++)
			common += holds(&a, at) && holds(&b, at);
		assert_int_equal(ckpt_box_meet(&a, &b, &both), common > 0);
		if (common == 0) {
			assert_int_equal(both.ndim, 77);
			continue;
		}
		assert_int_equal(ckpt_box_volume(&both), common);
		for (uint64_t n = 0; element(shape, ndim, n, at); n++)
			assert_int_equal(holds(&both, at), holds(&a, at) && holds(&b, at));
	}
}

/* Every element of the box is in the hole or in one of the rest, and in one only. */
static void test_without(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		struct prng d = {seed};
		uint32_t ndim = (uint32_t)prng_below(&d, 5);
		int64_t shape[CKPT_NDIM_MAX];
		int64_t at[CKPT_NDIM_MAX];
		struct ckpt_box rest[CKPT_BOX_REST_MAX];
		struct ckpt_box hole;

		random_array(&d, ndim, shape);
		struct ckpt_box box = random_box(&d, ndim, shape);
		struct ckpt_box other = random_box(&d, ndim, shape);
		if (!ckpt_box_meet(&box, &other, &hole))
			continue;
		size_t n_rest = ckpt_box_without(&box, &hole, rest);
		assert_true(n_rest <= (size_t)2 * ndim);
		for (uint64_t n = 0; element(shape, ndim, n, at); n++) {
			unsigned in = holds(&hole, at);
			for (size_t i = 0; i < n_rest; i++)
				in += holds(&rest[i], at);
			assert_int_equal(in, holds(&box, at));
		}
	}
}

static void test_seek(void **state)
{
	static const uint32_t items[] = {1, 2, 4, 8, 16};

	(void)state;
	for (uint64_t seed = 1; seed <= 2000; seed++) {
		struct prng d = {seed};
		uint32_t ndim = (uint32_t)prng_below(&d, 5);
		uint32_t item = items[prng_below(&d, 5)];
		int64_t shape[CKPT_NDIM_MAX];
		int64_t at[CKPT_NDIM_MAX];
		uint64_t first = UINT64_MAX;
		uint64_t last = 0;
		uint64_t next = UINT64_MAX;
		uint64_t total = 0;

		random_array(&d, ndim, shape);
		struct ckpt_box box = random_box(&d, ndim, shape);
		while (element(shape, ndim, total, at)) {
			if (holds(&box, at)) {
				first = first < total ? first : total;
				last = total;
			}
			total++;
		}
		assert_int_equal(ckpt_box_seek(&box, shape, item, total * item), UINT64_MAX);
		assert_int_equal(ckpt_box_seek(&box, shape, item, total * item + 5), UINT64_MAX);
		for (uint64_t n = total; n-- > 0;) {
			bool in = element(shape, ndim, n, at) && holds(&box, at);
			for (uint32_t byte = item; byte-- > 0;) {
				next = in ? n * item + byte : next;
				assert_int_equal(
					ckpt_box_seek(&box, shape, item, n * item + byte), next);
			}
		}
		if (first == UINT64_MAX)
			continue;
		assert_int_equal(ckpt_box_end(&box, shape, item), (last + 1) * item);
		assert_int_equal(ckpt_box_together(&box, shape, item),
			last - first + 1 == ckpt_box_volume(&box));
	}
}

static void test_text(void **state)
{
	int64_t start[2] = {0, 4};
	int64_t shape[2] = {2, 4};
	struct ckpt_box wide = {.ndim = CKPT_NDIM_MAX};
	char text[CKPT_BOX_CHARS];

	(void)state;
	struct ckpt_box box = ckpt_box_of(start, shape, 2);
	assert_string_equal(ckpt_box_text(&box, text), "[0:2, 4:8]");
	box = ckpt_box_of(NULL, shape, 1);
	assert_string_equal(ckpt_box_text(&box, text), "[0:2]");
	box = ckpt_box_of(NULL, NULL, 0);
	assert_string_equal(ckpt_box_text(&box, text), "[]");
	assert_int_equal(ckpt_box_volume(&box), 1);
	for (uint32_t i = 0; i < CKPT_NDIM_MAX; i++)
		wide.start[i] = INT64_MAX - 1, wide.shape[i] = 1;
	assert_int_equal(strlen(ckpt_box_text(&wide, text)), CKPT_NDIM_MAX * 39 + 15 * 2 + 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_volume_and_meeting),
		cmocka_unit_test(test_without),
		cmocka_unit_test(test_seek),
		cmocka_unit_test(test_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
