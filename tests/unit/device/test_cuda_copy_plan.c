/* SPDX-License-Identifier: Apache-2.0 */
/* Segments as pieces: they move the bytes that the walk of the CPU moves, or the segment is refused. */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "device/cuda_copy_plan.h"
#include "lib/prng.h"

#define SPACE 65536

static char memory[SPACE];
static char wanted[SPACE];
static char staged[SPACE];

/* Moves the pieces as the runtime would; their number, or an error. */
static int move(const struct ckpt_segment *segment, bool out)
{
	struct ckpt_cuda_piece p;
	struct ckpt_cuda_walk walk;
	int pieces = 0;
	int r = ckpt_cuda_walk_begin(segment, &walk);

	if (r < 0)
		return r;
	for (; ckpt_cuda_walk_next(&walk, &p); pieces++) {
		assert_true(p.width > 0 && p.height > 0);
		assert_true(p.height * p.width <= CKPT_CUDA_PIECE);
		assert_true(
			p.height == 1 || (p.device_pitch >= p.width && p.staged_pitch >= p.width));
		for (uint64_t row = 0; row < p.height; row++) {
			char *device = p.device + row * p.device_pitch;
			char *host = p.staged + row * p.staged_pitch;

			assert_true(host >= segment->staged &&
				    host + p.width <= segment->staged + segment->length);
			memcpy(out ? host : device, out ? device : host, p.width);
		}
	}
	return pieces;
}

/* A view in which the last dimensions are together and the others apart, mostly. */
static struct ckpt_view draw_view(struct prng *d, int64_t *shape, int64_t *strides)
{
	struct ckpt_view view = {.item = (uint32_t)(1 + prng_below(d, 4)),
		.ndim = (uint32_t)prng_below(d, 5),
		.shape = shape,
		.strides = prng_below(d, 4) ? strides : NULL};
	int64_t step = 1;

	for (uint32_t i = view.ndim; i-- > 0;) {
		shape[i] = (int64_t)(1 + prng_below(d, 6));
		strides[i] = step;
		step *= shape[i];
		if (prng_below(d, 3) == 0)
			step += (int64_t)prng_below(d, 5);
	}
	view.data = memory + prng_below(d, 64);
	return view;
}

static void pieces_move_what_the_cpu_would(void **state)
{
	struct prng d = {7};
	unsigned moved = 0;

	(void)state;
	for (size_t i = 0; i < SPACE; i++)
		memory[i] = (char)prng_next(&d);
	for (unsigned i = 0; i < 20000; i++) {
		int64_t shape[CKPT_NDIM_MAX];
		int64_t strides[CKPT_NDIM_MAX];
		struct ckpt_segment s = {.view = draw_view(&d, shape, strides), .staged = staged};
		uint64_t bytes = ckpt_view_bytes(&s.view);

		s.offset = prng_below(&d, bytes + 1);
		s.length = prng_below(&d, bytes - s.offset + 1);
		memset(staged, 0, bytes);
		int r = move(&s, true);
		if (r < 0) {
			assert_int_equal(r, CKPT_EUNSUPPORTED);
			assert_false(ckpt_view_contiguous(&s.view));
			continue;
		}
		ckpt_view_gather(&s.view, s.offset, s.length, wanted);
		assert_memory_equal(staged, wanted, s.length);
		moved++;
	}
	/* Of those with up to one gap none is refused. */
	assert_true(moved > 10000);
}

static void boxes_are_filled_as_the_cpu_would(void **state)
{
	static char other[SPACE];
	struct prng d = {11};
	unsigned moved = 0;

	(void)state;
	for (size_t i = 0; i < SPACE; i++)
		staged[i] = (char)prng_next(&d);
	for (unsigned i = 0; i < 20000; i++) {
		int64_t shape[CKPT_NDIM_MAX];
		int64_t strides[CKPT_NDIM_MAX];
		int64_t around[2 * CKPT_NDIM_MAX];
		struct ckpt_segment s = {
			.view = draw_view(&d, shape, strides), .around = around, .staged = staged};
		uint64_t bytes = s.view.item;
		int r;

		for (uint32_t k = 0; k < s.view.ndim; k++) {
			int64_t room =
				k == 0 || prng_below(&d, 3) == 0 ? (int64_t)prng_below(&d, 4) : 0;
			around[k] = shape[k] + room;
			around[s.view.ndim + k] = (int64_t)prng_below(&d, (uint64_t)room + 1);
			bytes *= (uint64_t)around[k];
		}
		s.offset = prng_below(&d, bytes + 1);
		s.length = prng_below(&d, bytes - s.offset + 1);
		memset(memory, 0, SPACE);
		r = move(&s, false);
		if (r < 0)
			continue;
		memcpy(other, memory, SPACE);
		memset(memory, 0, SPACE);
		ckpt_view_scatter_box(&s.view, around, s.offset, s.length, staged);
		assert_memory_equal(memory, other, SPACE);
		moved++;
	}
	assert_true(moved > 10000);
}

static int begin(const int64_t *shape, const int64_t *strides, uint32_t ndim)
{
	struct ckpt_cuda_walk walk;
	struct ckpt_segment s = {.view = {memory, 4, ndim, shape, strides, 0}, .staged = staged};

	s.length = ckpt_view_bytes(&s.view);
	return ckpt_cuda_walk_begin(&s, &walk);
}

static void what_is_not_rows_apart_is_refused(void **state)
{
	(void)state;
	assert_int_equal(begin((int64_t[]){4, 6}, (int64_t[]){10, 1}, 2), 0);
	/* Every second element: rows of one. */
	assert_int_equal(begin((int64_t[]){6}, (int64_t[]){2}, 1), 0);
	/* Dimensions of one element say nothing. */
	assert_int_equal(begin((int64_t[]){4, 1, 6}, (int64_t[]){10, -3, 1}, 3), 0);
	assert_int_equal(begin((int64_t[]){2, 2, 6}, (int64_t[]){20, 10, 1}, 3), 0);
	assert_int_equal(begin((int64_t[]){0, 6}, (int64_t[]){-1, 0}, 2), 0);
	/* Transposed, broadcast, reversed, overlapping, gaps of two sizes. */
	assert_int_equal(begin((int64_t[]){4, 6}, (int64_t[]){1, 4}, 2), CKPT_EUNSUPPORTED);
	assert_int_equal(begin((int64_t[]){4, 6}, (int64_t[]){0, 1}, 2), CKPT_EUNSUPPORTED);
	assert_int_equal(begin((int64_t[]){6}, (int64_t[]){-1}, 1), CKPT_EUNSUPPORTED);
	assert_int_equal(begin((int64_t[]){4, 6}, (int64_t[]){3, 1}, 2), CKPT_EUNSUPPORTED);
	assert_int_equal(begin((int64_t[]){2, 2, 6}, (int64_t[]){30, 10, 1}, 3), CKPT_EUNSUPPORTED);
}

/* Addresses only: nothing is moved. */
static unsigned count_pieces(int64_t rows, int64_t columns, int64_t pitch, uint64_t *ret_bytes)
{
	int64_t shape[] = {rows, columns};
	int64_t strides[] = {pitch, 1};
	struct ckpt_segment s = {.view = {memory, 1, 2, shape, strides, 0}, .staged = staged};
	struct ckpt_cuda_walk walk;
	struct ckpt_cuda_piece p;
	unsigned pieces = 0;

	s.length = ckpt_view_bytes(&s.view);
	*ret_bytes = 0;
	assert_int_equal(ckpt_cuda_walk_begin(&s, &walk), 0);
	for (; ckpt_cuda_walk_next(&walk, &p); pieces++) {
		assert_true(p.width * p.height <= CKPT_CUDA_PIECE);
		assert_true(p.height <= CKPT_CUDA_PIECE_RUNS);
		assert_true((uintptr_t)p.staged == (uintptr_t)staged + *ret_bytes);
		assert_true(p.height == 1 || p.device_pitch <= INT32_MAX);
		*ret_bytes += p.width * p.height;
	}
	return pieces;
}

static void pieces_are_of_a_bounded_size(void **state)
{
	const int64_t piece = (int64_t)CKPT_CUDA_PIECE;
	const int64_t runs = (int64_t)CKPT_CUDA_PIECE_RUNS;
	uint64_t bytes;

	(void)state;
	assert_int_equal(count_pieces(1, piece, piece, &bytes), 1);
	assert_int_equal(count_pieces(1, 5 * piece + 1, 5 * piece + 1, &bytes), 6);
	assert_int_equal(bytes, 5 * piece + 1);
	assert_int_equal(count_pieces(3, piece + 7, 2 * piece, &bytes), 6);
	assert_int_equal(bytes, 3 * (piece + 7));
	assert_int_equal(count_pieces(3 * piece / 1024, 1023, 1024, &bytes), 3);
	assert_int_equal(bytes, 3 * piece / 1024 * 1023);
	/* Runs so short that their number is what counts. */
	assert_int_equal(count_pieces(piece, 3, 4, &bytes), piece / runs);
	assert_int_equal(bytes, 3 * piece);
	assert_int_equal(count_pieces(runs, 1, 2, &bytes), 1);
	assert_int_equal(count_pieces(runs + 1, 1, 2, &bytes), 2);
	assert_int_equal(bytes, runs + 1);
	/* Rows that are too far apart for one call. */
	assert_int_equal(count_pieces(5, 64, INT32_MAX, &bytes), 1);
	assert_int_equal(count_pieces(5, 64, (int64_t)INT32_MAX + 1, &bytes), 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_move_what_the_cpu_would),
		cmocka_unit_test(boxes_are_filled_as_the_cpu_would),
		cmocka_unit_test(what_is_not_rows_apart_is_refused),
		cmocka_unit_test(pieces_are_of_a_bounded_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
