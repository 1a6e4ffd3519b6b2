/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels do, thread by thread, on the CPU: the bytes that its own walk moves, and the samples it takes. */
#include "lib/test.h"

#include <string.h>

#include <ckpt/error.h>
#include "device/cuda_spans.h"
#include "device/kernels/span_bodies.h"
#include "lib/prng.h"

#define SPACE 32768
#define BYTE  0x5a

static char memory[SPACE];
static char wanted[SPACE];
static char staged[SPACE];

/* Dimensions that are together or apart, mostly in order; the elements of any size. */
static struct ckpt_view draw_view(struct prng *d, int64_t *shape, int64_t *strides)
{
	static const uint32_t items[] = {1, 2, 3, 4, 8, 16};
	struct ckpt_view view = {.item = items[prng_below(d, COUNT(items))],
		.ndim = (uint32_t)prng_below(d, 4),
		.shape = shape,
		.strides = prng_below(d, 4) ? strides : NULL};
	int64_t step = prng_below(d, 8) ? 1 : 3;

	for (uint32_t i = view.ndim; i-- > 0;) {
		shape[i] = (int64_t)(1 + prng_below(d, i == 0 ? 8 : 6));
		strides[i] = step;
		step *= shape[i];
		if (prng_below(d, 3) == 0)
			step += (int64_t)prng_below(d, 5);
	}
	view.data = memory + prng_below(d, 64);
	return view;
}

/* A part of such a view; its staged bytes begin anywhere. */
static struct ckpt_segment draw_segment(struct prng *d, int64_t *shape, int64_t *strides)
{
	struct ckpt_segment s = {.view = draw_view(d, shape, strides)};
	uint64_t bytes = ckpt_view_bytes(&s.view);

	s.offset = prng_below(d, 2) ? 0 : prng_below(d, bytes);
	s.length = bytes - s.offset;
	if (prng_below(d, 2))
		s.length = 1 + prng_below(d, s.length);
	s.staged = staged + prng_below(d, 64);
	s.tensor = (uint32_t)prng_below(d, 100);
	return s;
}

static void shuffle(struct prng *d, uint32_t *order, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t j = (uint32_t)prng_below(d, i + 1);

		order[i] = order[j];
		order[j] = i;
	}
}

/* Every lane once, in any order. */
static void copy(struct prng *d, const struct ckpt_cuda_span *span, bool scatter, uint32_t lanes)
{
	uint32_t order[64];

	shuffle(d, order, lanes);
	for (uint32_t i = 0; i < lanes; i++)
		ckpt_span_copy(span, 0, scatter, order[i], lanes);
}

static void lanes_move_what_the_cpu_would(void **state)
{
	static const uint32_t lanes[] = {CKPT_CUDA_LANES, 1, 64, 7};
	struct prng d = {11};
	unsigned moved = 0;

	(void)state;
	for (unsigned i = 0; i < 30000; i++) {
		int64_t shape[CKPT_NDIM_MAX];
		int64_t strides[CKPT_NDIM_MAX];
		struct ckpt_segment s = draw_segment(&d, shape, strides);
		struct ckpt_cuda_span span;

		if (ckpt_cuda_span_of(&s, &span) < 0)
			continue;
		moved++;
		span.staged = (uintptr_t)s.staged;
		for (size_t j = 0; j < SPACE / 8; j++)
			((uint64_t *)(void *)memory)[j] = prng_next(&d);
		memset(staged, BYTE, SPACE);
		memset(wanted, BYTE, SPACE);
		ckpt_view_gather(&s.view, s.offset, s.length, wanted + (s.staged - staged));
		copy(&d, &span, false, lanes[i % COUNT(lanes)]);
		assert_memory_equal(staged, wanted, SPACE);

		/* Back, to memory of other bytes. */
		for (size_t j = 0; j < SPACE; j++)
			memory[j] = (char)~memory[j];
		memcpy(wanted, memory, SPACE);
		struct ckpt_view other = s.view;
		other.data = wanted + (s.view.data - memory);
		ckpt_view_scatter(&other, s.offset, s.length, s.staged);
		copy(&d, &span, true, lanes[i % COUNT(lanes)]);
		assert_memory_equal(memory, wanted, SPACE);
	}
	assert_true(moved > 10000);
}

/* Neither side at the alignment of the other: all of them, and every short length. */
static void runs_of_any_alignment_are_moved(void **state)
{
	struct prng d = {12};

	(void)state;
	for (size_t i = 0; i < SPACE; i++)
		memory[i] = (char)prng_next(&d);
	for (uint64_t from = 0; from < 16; from++) {
		for (uint64_t to = 0; to < 16; to++) {
			for (uint64_t length = 1; length < 3000; length += length < 70 ? 1 : 211) {
				struct ckpt_cuda_span span = {.data = (uintptr_t)memory + from,
					.run = length,
					.length = length,
					.staged = (uintptr_t)staged + 64 + to};

				memset(staged, BYTE, 4096);
				copy(&d, &span, false, CKPT_CUDA_LANES);
				assert_memory_equal(staged + 64 + to, memory + from, length);
				assert_int_equal(staged[64 + to - 1], BYTE);
				assert_int_equal(staged[64 + to + length], BYTE);
			}
		}
	}
}

static void spans_are_sampled_as_segments_are(void **state)
{
	struct prng d = {13};
	unsigned sampled = 0;

	(void)state;
	for (size_t i = 0; i < SPACE; i++)
		memory[i] = (char)prng_next(&d);
	for (unsigned i = 0; i < 50000; i++) {
		int64_t shape[CKPT_NDIM_MAX];
		int64_t strides[CKPT_NDIM_MAX];
		struct ckpt_segment s = draw_segment(&d, shape, strides);
		uint64_t seed = prng_next(&d);
		struct ckpt_cuda_span span;

		s.staged = NULL;
		if (ckpt_cuda_span_of(&s, &span) < 0)
			continue;
		sampled++;
		span.key = ckpt_sample_key(seed, s.offset, s.tensor, s.length);
		assert_true(ckpt_span_sample(&span, 0) == ckpt_segment_sample(&s, seed, false));
	}
	assert_true(sampled > 10000);
}

static void what_the_kernels_cannot_take_is_refused(void **state)
{
	const int64_t shape[] = {4, 4};
	const int64_t transposed[] = {1, 4};
	const int64_t backwards[] = {-4, 1};
	const int64_t same[] = {0, 1};
	const int64_t around[] = {8, 8, 2, 2};
	struct ckpt_segment s = {
		.view = {.data = memory, .item = 4, .ndim = 2, .shape = shape}, .length = 64};
	struct ckpt_cuda_span span;

	(void)state;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), 0);
	s.around = around;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), CKPT_EUNSUPPORTED);
	s.around = NULL;
	s.view.strides = transposed;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), CKPT_EUNSUPPORTED);
	s.view.strides = backwards;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), CKPT_EUNSUPPORTED);
	s.view.strides = same;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), CKPT_EUNSUPPORTED);
}

static void nothing_is_a_span_of_nothing(void **state)
{
	const int64_t shape[] = {0};
	struct ckpt_segment s = {.view = {.item = 4, .ndim = 1, .shape = shape}};
	struct ckpt_cuda_span span;

	(void)state;
	assert_int_equal(ckpt_cuda_span_of(&s, &span), 0);
	assert_int_equal(span.length, 0);
	ckpt_span_copy(&span, 0, false, 0, CKPT_CUDA_LANES);
	ckpt_span_copy(&span, 0, true, 0, CKPT_CUDA_LANES);
	assert_true(ckpt_span_sample(&span, 0) == 0);
	assert_true(ckpt_segment_sample(&s, 3, true) == 0);
}

/* Where a byte lies, of memory that nobody has. */
static void runs_beyond_32_bits_are_found(void **state)
{
	const uint64_t run = UINT64_C(5) << 30;
	struct ckpt_cuda_span span = {.data = UINT64_C(1) << 40,
		.run = run,
		.pitch = UINT64_C(6) << 30,
		.offset = run - 10,
		.length = 2 * run};
	uint64_t left;

	(void)state;
	assert_true(ckpt_span_find(&span, 9, &left) == span.data + run - 1);
	assert_true(left == 1);
	assert_true(ckpt_span_find(&span, 10, &left) == span.data + span.pitch);
	assert_true(left == run);
	assert_true(ckpt_span_find(&span, run + 12, &left) == span.data + 2 * span.pitch + 2);
	assert_true(left == run - 2);
	span.run = 16;
	span.offset = 3;
	assert_true(ckpt_span_find(&span, UINT64_C(1) << 33, &left) ==
		    span.data + (UINT64_C(1) << 29) * span.pitch + 3);
	assert_true(left == 13);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes_move_what_the_cpu_would),
		cmocka_unit_test(runs_of_any_alignment_are_moved),
		cmocka_unit_test(spans_are_sampled_as_segments_are),
		cmocka_unit_test(what_the_kernels_cannot_take_is_refused),
		cmocka_unit_test(nothing_is_a_span_of_nothing),
		cmocka_unit_test(runs_beyond_32_bits_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
