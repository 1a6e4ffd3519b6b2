/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of an array, filled from any range of its bytes, against a walk byte by byte. */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/memcpy_nt.h"
#include "lib/prng.h"

#define NDIM 5

struct scene {
	struct ckpt_view view;
	int64_t around[2 * NDIM]; /* shape of the array, start of the view in it */
	int64_t shape[NDIM];
	int64_t strides[NDIM];
	uint64_t array_bytes;
	char *array;
	char *memory;
	char *expected;
	size_t room;
};

/* Strides for the dimensions in a random order, with gaps and some backwards; [0,0,...]'s element. */
static int64_t make_strides(struct scene *s, struct prng *d, uint32_t ndim)
{
	uint32_t order[NDIM];
	int64_t step = 1;
	int64_t first = 0;
	bool rows = prng_below(d, 3) > 0;

	for (uint32_t i = 0; i < ndim; i++)
		order[i] = ndim - 1 - i;
	for (uint32_t i = ndim; i > 1 && !rows; i--) {
		uint32_t k = (uint32_t)prng_below(d, i);
		uint32_t t = order[i - 1];
		order[i - 1] = order[k];
		order[k] = t;
	}
	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t k = order[i];
		int64_t extent = step * (s->shape[k] > 0 ? s->shape[k] - 1 : 0);
		bool back = prng_below(d, 5) == 0;

		s->strides[k] = back ? -step : step;
		first += back ? extent : 0;
		s->room += (size_t)extent;
		step += extent + (prng_below(d, 3) == 0 ? 1 + (int64_t)prng_below(d, 3) : 0);
		/* It means nothing where there is one element. */
		if (s->shape[k] == 1 && prng_below(d, 2))
			s->strides[k] = INT64_MIN;
	}
	return first;
}

static void make(struct scene *s, struct prng *d)
{
	static const uint32_t items[] = {1, 2, 4, 8, 16};
	uint32_t ndim = (uint32_t)prng_below(d, NDIM + 1);
	int64_t first = 0;

	*s = (struct scene){.room = 1};
	s->view = (struct ckpt_view){.item = items[prng_below(d, 5)],
		.ndim = ndim,
		.shape = s->shape,
		.strides = s->strides};
	s->array_bytes = s->view.item;
	for (uint32_t i = 0; i < ndim; i++) {
		int64_t n = 1 + (int64_t)prng_below(d, 6);
		int64_t start = (int64_t)prng_below(d, (uint64_t)n);
		int64_t most = n - start;

		s->around[i] = n;
		s->shape[i] = (int64_t)prng_below(d, (uint64_t)most) + (prng_below(d, 9) > 0);
		if (prng_below(d, 2))
			start = 0, s->shape[i] = n;
		s->around[ndim + i] = start;
		s->array_bytes *= (uint64_t)n;
	}
	if (prng_below(d, 3) > 0) {
		first = make_strides(s, d, ndim);
	} else {
		s->view.strides = NULL;
		for (uint32_t i = 0; i < ndim; i++)
			s->room *= (size_t)s->shape[i];
	}
	s->room *= s->view.item;
	s->array = malloc(s->array_bytes);
	s->memory = malloc(s->room + 1);
	s->expected = malloc(s->room + 1);
	for (uint64_t i = 0; i < s->array_bytes; i++)
		s->array[i] = (char)prng_next(d);
	memset(s->memory, 0x33, s->room);
	memset(s->expected, 0x33, s->room);
	s->view.data = s->memory + first * (int64_t)s->view.item;
}

static void end(struct scene *s)
{
	free(s->array);
	free(s->memory);
	free(s->expected);
}

/* Where byte `at` of the array goes in the view's memory, or -1. */
static int64_t goes_to(const struct scene *s, uint64_t at)
{
	uint32_t ndim = s->view.ndim;
	uint64_t element = at / s->view.item;
	int64_t flat = 1;
	int64_t to = 0;

	for (uint32_t i = ndim; i-- > 0;) {
		int64_t index = (int64_t)(element % (uint64_t)s->around[i]) - s->around[ndim + i];

		element /= (uint64_t)s->around[i];
		if (index < 0 || index >= s->shape[i])
			return -1;
		if (index > 0)
			to += index * (s->view.strides ? s->view.strides[i] : flat);
		flat *= s->shape[i];
	}
	return (s->view.data - s->memory) + to * (int64_t)s->view.item +
	       (int64_t)(at % s->view.item);
}

/* In ranges that follow each other, or one range alone. */
static void test_ranges(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		struct prng d = {seed};
		struct scene s;
		uint64_t offset = 0;

		make(&s, &d);
		if (prng_below(&d, 2))
			offset = prng_below(&d, s.array_bytes + 1);
		while (offset < s.array_bytes) {
			uint64_t length = 1 + prng_below(&d, s.array_bytes - offset);

			if (prng_below(&d, 2))
				length = 1 + prng_below(&d, length);
			/* A copy of its own, so that a sanitizer sees a byte too many. */
			char *in = malloc(length);
			memcpy(in, s.array + offset, length);
			ckpt_view_scatter_box(&s.view, s.around, offset, length, in);
			free(in);
			for (uint64_t at = offset; at < offset + length; at++)
				if (goes_to(&s, at) >= 0)
					s.expected[goes_to(&s, at)] = s.array[at];
			assert_memory_equal(s.memory, s.expected, s.room);
			offset += length + (prng_below(&d, 3) ? 0 : prng_below(&d, 50));
		}
		ckpt_view_scatter_box(&s.view, s.around, 0, 0, NULL);
		assert_memory_equal(s.memory, s.expected, s.room);
		end(&s);
	}
}

/* Runs of any length and place, with steps to either side. */
static void test_runs(void **state)
{
	const size_t cap = 40000;
	char *from = malloc(cap);
	char *to = malloc(cap);
	char *expected = malloc(cap);

	(void)state;
	for (uint64_t seed = 1; seed <= 500; seed++) {
		struct prng d = {seed};
		size_t run = 1 + prng_below(&d, prng_below(&d, 2) ? 100 : 1500);
		int64_t to_step = (int64_t)(run + prng_below(&d, 300));
		int64_t from_step = (int64_t)(run + prng_below(&d, 100));
		uint64_t count = 1 + prng_below(&d, 20);
		bool back = prng_below(&d, 3) == 0;

		for (size_t i = 0; i < cap; i++)
			from[i] = (char)prng_next(&d);
		memset(to, 0x44, cap);
		memset(expected, 0x44, cap);
		int64_t at = (int64_t)prng_below(&d, 64);
		if (back)
			at += to_step * (int64_t)(count - 1), to_step = -to_step;
		for (int64_t i = 0; i < (int64_t)count; i++)
			memcpy(expected + at + i * to_step, from + i * from_step, run);
		ckpt_stream_runs(to + at, to_step, from, from_step, count, run);
		assert_memory_equal(to, expected, cap);
	}
	free(from);
	free(to);
	free(expected);
}

/* As a device gets it: a segment that says what is around its view. */
static void test_copy(void **state)
{
	static const int64_t around[] = {3, 4, 1, 2};
	static const int64_t shape[] = {2, 2};
	char array[12];
	char out[4] = {0};
	struct ckpt_segment segment = {.view = {.data = out, .item = 1, .ndim = 2, .shape = shape},
		.length = sizeof(array),
		.staged = array,
		.around = around};
	struct ckpt_copy copy = {
		.direction = CKPT_COPY_FROM_STAGING, .segments = &segment, .count = 1};

	(void)state;
	for (size_t i = 0; i < sizeof(array); i++)
		array[i] = (char)i;
	ckpt_host_copy_work(&copy.job);
	assert_memory_equal(out, "\6\7\12\13", 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_copy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
