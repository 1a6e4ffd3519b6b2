/* SPDX-License-Identifier: Apache-2.0 */
/* Samples: the same of a view and of its staged bytes, and which changes they notice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "device/device.h"

#define LINE 64

static int64_t shape_of[2];
static int64_t strides_of[2];

/* A segment of `length` staged bytes; the view is the same bytes, contiguous. */
static struct ckpt_segment make(char *memory, uint64_t length)
{
	shape_of[0] = (int64_t)length;
	return (struct ckpt_segment){
		.view = {.data = memory, .item = 1, .ndim = 1, .shape = shape_of},
		.length = length,
		.staged = memory,
		.tensor = 7,
	};
}

static void a_view_and_its_staged_bytes_agree(void **state)
{
	static const uint64_t lengths[] = {1, 63, 64, 65, 127, 128, 190, 192, 256, 500, 4000, 9999};
	char *memory = malloc(40000);
	char *staged = malloc(10000);

	(void)state;
	assert_non_null(memory);
	assert_non_null(staged);
	for (int i = 0; i < 40000; i++)
		memory[i] = (char)(i * 31 + i / 97);
	/* A transpose, sampled from the middle of an element of its first row on. */
	shape_of[0] = 50;
	shape_of[1] = 200;
	strides_of[0] = 1;
	strides_of[1] = 50;
	for (size_t i = 0; i < CKPT_COUNT(lengths); i++) {
		struct ckpt_segment segment = {
			.view = {.data = memory,
				.item = 4,
				.ndim = 2,
				.shape = shape_of,
				.strides = strides_of},
			.offset = 1 + i,
			.length = lengths[i],
			.staged = staged,
			.tensor = (uint32_t)i,
		};

		ckpt_view_gather(&segment.view, segment.offset, segment.length, staged);
		for (uint64_t seed = 0; seed < 50; seed++)
			assert_true(ckpt_segment_sample(&segment, seed, false) ==
				    ckpt_segment_sample(&segment, seed, true));
	}
	free(memory);
	free(staged);
}

/* The lines of the segment in which a change is noticed, found by changing each byte. */
static unsigned lines_noticed(char *memory, uint64_t length, uint64_t seed, bool *ret_edges)
{
	struct ckpt_segment segment = make(memory, length);
	uint64_t before = ckpt_segment_sample(&segment, seed, true);
	unsigned bytes = 0;

	*ret_edges = true;
	for (uint64_t i = 0; i < length; i++) {
		bool noticed;

		memory[i] ^= 1;
		noticed = ckpt_segment_sample(&segment, seed, true) != before;
		memory[i] ^= 1;
		bytes += noticed;
		if ((i < LINE || i >= length - ckpt_min_u64(length, LINE)) && !noticed)
			*ret_edges = false;
	}
	return bytes;
}

static void first_last_and_two_lines_between_are_looked_at(void **state)
{
	static const struct {
		uint64_t length;
		unsigned bytes; /* in which a change must be noticed */
	} cases[] = {{1, 1}, {63, 63}, {64, 64}, {100, 100}, {128, 128}, {192, 192}, {256, 256},
		{1000, 256}, {4096, 256}, {5000, 256}};
	char memory[5000];

	(void)state;
	memset(memory, 3, sizeof(memory));
	for (size_t i = 0; i < CKPT_COUNT(cases); i++) {
		for (uint64_t seed = 0; seed < 20; seed++) {
			bool edges;

			assert_int_equal(lines_noticed(memory, cases[i].length, seed, &edges),
				cases[i].bytes);
			assert_true(edges);
		}
	}
}

/* What one save's seed does not see another's may. */
static void every_line_is_looked_at_by_some_seed(void **state)
{
	char memory[40 * LINE];
	struct ckpt_segment segment = make(memory, sizeof(memory));

	(void)state;
	memset(memory, 3, sizeof(memory));
	for (unsigned line = 0; line < 40; line++) {
		unsigned noticed = 0;

		for (uint64_t seed = 0; seed < 1000; seed++) {
			uint64_t before = ckpt_segment_sample(&segment, seed, true);

			memory[(size_t)line * LINE] ^= 1;
			noticed += ckpt_segment_sample(&segment, seed, true) != before;
			memory[(size_t)line * LINE] ^= 1;
		}
		/* One in nineteen of each half is expected: 53. */
		assert_true(noticed > 20);
	}
}

static void places_depend_on_tensor_and_offset(void **state)
{
	char memory[40 * LINE];
	struct ckpt_segment one = make(memory, sizeof(memory));
	struct ckpt_segment other = one;
	unsigned differs[2] = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(memory); i++)
		memory[i] = (char)(i / LINE);
	for (uint64_t seed = 0; seed < 20; seed++) {
		uint64_t sample = ckpt_segment_sample(&one, seed, true);

		other.tensor = one.tensor + 1;
		other.offset = one.offset;
		differs[0] += ckpt_segment_sample(&other, seed, true) != sample;
		other.tensor = one.tensor;
		other.offset = one.offset + (UINT64_C(8) << 20);
		differs[1] += ckpt_segment_sample(&other, seed, true) != sample;
	}
	assert_true(differs[0] > 10);
	assert_true(differs[1] > 10);
}

/* Words are summed up in any order, so a sum of theirs must not be what is compared. */
static void changes_that_cancel_in_a_sum_are_noticed(void **state)
{
	uint64_t words[4 * LINE / 8];
	struct ckpt_segment segment = make((char *)words, sizeof(words));

	(void)state;
	for (unsigned seed = 0; seed < 10; seed++) {
		for (unsigned i = 0; i < CKPT_COUNT(words); i++)
			words[i] = i / 3;
		uint64_t before = ckpt_segment_sample(&segment, seed, true);
		for (unsigned i = 0; i < CKPT_COUNT(words); i++) {
			for (unsigned j = 0; j < i; j++) {
				uint64_t a = words[i];
				uint64_t b = words[j];

				words[i] = a + 1;
				words[j] = b - 1;
				assert_true(ckpt_segment_sample(&segment, seed, true) != before);
				/* The signs of two numbers. */
				words[i] = a ^ UINT64_C(1) << 63;
				words[j] = b ^ UINT64_C(1) << 63;
				assert_true(ckpt_segment_sample(&segment, seed, true) != before);
				words[i] = b;
				words[j] = a;
				assert_true((ckpt_segment_sample(&segment, seed, true) == before) ==
					    (a == b));
				words[i] = a;
				words[j] = b;
			}
		}
	}
}

static void zeros_behind_a_short_segment_are_not_of_it(void **state)
{
	char memory[LINE] = {0};
	struct ckpt_segment one = make(memory, 10);
	struct ckpt_segment other = one;

	(void)state;
	other.length = 11;
	assert_true(ckpt_segment_sample(&one, 5, true) != ckpt_segment_sample(&other, 5, true));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_view_and_its_staged_bytes_agree),
		cmocka_unit_test(first_last_and_two_lines_between_are_looked_at),
		cmocka_unit_test(every_line_is_looked_at_by_some_seed),
		cmocka_unit_test(places_depend_on_tensor_and_offset),
		cmocka_unit_test(changes_that_cancel_in_a_sum_are_noticed),
		cmocka_unit_test(zeros_behind_a_short_segment_are_not_of_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
