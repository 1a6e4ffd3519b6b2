/* SPDX-License-Identifier: Apache-2.0 */
/* Grids: item by item, in any order, they move the bytes that the walk of the CPU moves, and give its samples. */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "device/cuda_grids.h"
#include "device/kernels/span_bodies.h"
#include "lib/prng.h"

/* What a view and an array may span; views begin in the middle, so that they can go both ways. */
#define SPACE  ((size_t)1 << 16)
#define MIDDLE (SPACE / 2)
#define BYTE   0x5a

static _Alignas(64) char memory[SPACE];
static _Alignas(64) char wanted[SPACE];
static _Alignas(64) char staged[SPACE];

/* A segment with all that it points to. */
struct drawn {
	struct ckpt_segment s;
	int64_t shape[CKPT_NDIM_MAX];
	int64_t strides[CKPT_NDIM_MAX];
	int64_t around[2 * CKPT_NDIM_MAX];
};

/* `apart`: elements that share no memory, in any order of dimensions and any direction. Else anything. */
static void draw_view(struct prng *d, struct drawn *v, bool apart)
{
	static const uint32_t items[] = {1, 2, 3, 4, 6, 8, 16, 32};
	uint32_t order[8];
	uint32_t ndim = (uint32_t)prng_below(d, 7);
	int64_t step = prng_below(d, 6) ? 1 : 2;
	uint32_t item = items[prng_below(d, COUNT(items))];

	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t j = (uint32_t)prng_below(d, i + 1);

		order[i] = order[j];
		order[j] = i;
		v->shape[i] = (int64_t)(1 + prng_below(d, ndim < 4 ? 9 : 4));
	}
	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t k = order[i];

		v->strides[k] = prng_below(d, 5) ? step : -step;
		step *= v->shape[k];
		if (prng_below(d, 4) == 0)
			step += (int64_t)prng_below(d, 3);
		if (!apart && prng_below(d, 2))
			v->strides[k] = (int64_t)prng_below(d, 7) - 3;
		/* It means nothing. */
		if (v->shape[k] == 1 && prng_below(d, 2))
			v->strides[k] = INT64_MAX;
	}
	v->s = (struct ckpt_segment){.view = {.data = memory + MIDDLE + prng_below(d, 2) * 16,
					     .item = item,
					     .ndim = ndim,
					     .shape = v->shape,
					     .strides = prng_below(d, 8) ? v->strides : NULL}};
	if (prng_below(d, 8) == 0)
		v->s.view.data += prng_below(d, 16);
}

/* Some part of so many bytes, staged anywhere. */
static void draw_part(struct prng *d, struct drawn *v, uint64_t bytes)
{
	struct ckpt_segment *s = &v->s;
	uint64_t grain = prng_below(d, 4) ? s->view.item : 1;

	s->offset = prng_below(d, 2) ? 0 : prng_below(d, bytes) / grain * grain;
	s->length = bytes - s->offset;
	if (prng_below(d, 2))
		s->length = ckpt_min_u64(s->length, grain * (1 + prng_below(d, s->length)));
	s->staged = staged + 64 + (prng_below(d, 3) ? prng_below(d, 4) * 16 : prng_below(d, 64));
	s->tensor = (uint32_t)prng_below(d, 100);
}

/* All that the elements of the view span lies in the memory. */
static bool fits(const struct drawn *v)
{
	const struct ckpt_view *view = &v->s.view;
	uint64_t span = view->item;

	for (uint32_t i = 0; i < view->ndim; i++)
		if (view->strides && v->shape[i] > 1)
			span += (uint64_t)llabs(v->strides[i]) * view->item *
				(uint64_t)(v->shape[i] - 1);
	return span < MIDDLE - 64 && ckpt_view_bytes(view) < MIDDLE - 64;
}

static void fill(struct prng *d, char *bytes)
{
	for (size_t i = 0; i < SPACE; i += sizeof(uint64_t)) {
		uint64_t word = prng_next(d);

		memcpy(bytes + i, &word, sizeof(word));
	}
}

/* All items and some beside them, which are empty, each once and in no order. */
static void move(struct prng *d, const struct ckpt_cuda_grid *g, bool scatter)
{
	uint64_t first;
	uint64_t items = ckpt_cuda_grid_items(g, &first);
	uint64_t step = 1 + 2 * prng_below(d, 50);
	uint64_t room = 1;

	while (room < items)
		room *= 2;
	/* Odd steps come to all of a power of two. */
	for (uint64_t i = 0, at = prng_below(d, room); i < room; i++, at = (at + step) % room)
		if (at < items)
			ckpt_grid_copy(g, scatter, first + at);
	if (items > 0 && g->inner == g->ndim)
		ckpt_grid_copy(g, scatter, first + items);
}

static void items_gather_what_the_cpu_would(void **state)
{
	struct prng d = {21};
	unsigned moved = 0;
	unsigned units[17] = {0};

	(void)state;
	fill(&d, memory);
	for (unsigned i = 0; i < 60000; i++) {
		struct ckpt_cuda_grid g;
		struct drawn v;

		draw_view(&d, &v, prng_below(&d, 2));
		if (!fits(&v))
			continue;
		draw_part(&d, &v, ckpt_view_bytes(&v.s.view));
		ckpt_cuda_grid_of(&v.s, (uintptr_t)v.s.staged, &g);
		size_t used = 64 + 128 + v.s.length;
		memset(staged, BYTE, used);
		memset(wanted, BYTE, used);
		ckpt_view_gather(&v.s.view, v.s.offset, v.s.length, wanted + (v.s.staged - staged));
		move(&d, &g, false);
		assert_memory_equal(staged, wanted, used);
		units[g.unit]++;
		moved++;
	}
	assert_true(moved > 30000);
	for (unsigned unit = 1; unit <= 16; unit *= 2)
		assert_true(units[unit] > 1000);
}

static void items_scatter_what_the_cpu_would(void **state)
{
	struct prng d = {22};
	unsigned moved = 0;

	(void)state;
	fill(&d, staged);
	for (unsigned i = 0; i < 15000; i++) {
		struct ckpt_cuda_grid g;
		struct drawn v;

		draw_view(&d, &v, true);
		if (!fits(&v))
			continue;
		draw_part(&d, &v, ckpt_view_bytes(&v.s.view));
		ckpt_cuda_grid_of(&v.s, (uintptr_t)v.s.staged, &g);
		assert_true(ckpt_cuda_grid_apart(&g));
		memset(memory, BYTE, SPACE);
		ckpt_view_scatter(&v.s.view, v.s.offset, v.s.length, v.s.staged);
		memcpy(wanted, memory, SPACE);
		memset(memory, BYTE, SPACE);
		move(&d, &g, true);
		assert_memory_equal(memory, wanted, SPACE);
		moved++;
	}
	assert_true(moved > 5000);
}

static void boxes_are_filled_as_the_cpu_would(void **state)
{
	struct prng d = {23};
	unsigned moved = 0;
	unsigned rows = 0;

	(void)state;
	fill(&d, staged);
	for (unsigned i = 0; i < 20000; i++) {
		struct ckpt_cuda_grid g;
		struct drawn v;
		uint64_t bytes;

		draw_view(&d, &v, true);
		bytes = v.s.view.item;
		for (uint32_t k = 0; k < v.s.view.ndim; k++) {
			int64_t room = prng_below(&d, 2) ? (int64_t)prng_below(&d, 4) : 0;

			v.around[k] = v.shape[k] + room;
			v.around[v.s.view.ndim + k] = (int64_t)prng_below(&d, (uint64_t)room + 1);
			bytes *= (uint64_t)v.around[k];
		}
		if (!fits(&v) || bytes > SPACE - 256)
			continue;
		draw_part(&d, &v, bytes);
		v.s.around = v.around;
		ckpt_cuda_grid_of(&v.s, (uintptr_t)v.s.staged, &g);
		memset(memory, BYTE, SPACE);
		ckpt_view_scatter_box(&v.s.view, v.around, v.s.offset, v.s.length, v.s.staged);
		memcpy(wanted, memory, SPACE);
		memset(memory, BYTE, SPACE);
		move(&d, &g, true);
		assert_memory_equal(memory, wanted, SPACE);
		rows += g.inner < g.ndim;
		moved++;
	}
	assert_true(moved > 5000 && rows > 2000);
}

static void grids_are_sampled_as_segments_are(void **state)
{
	struct prng d = {24};
	unsigned sampled = 0;

	(void)state;
	fill(&d, memory);
	for (unsigned i = 0; i < 30000; i++) {
		uint64_t seed = prng_next(&d);
		struct ckpt_cuda_grid g;
		struct drawn v;

		draw_view(&d, &v, prng_below(&d, 2));
		if (!fits(&v))
			continue;
		draw_part(&d, &v, ckpt_view_bytes(&v.s.view));
		v.s.staged = NULL;
		ckpt_cuda_grid_of(&v.s, 0, &g);
		struct ckpt_cuda_span span = {.run = 1,
			.offset = v.s.offset,
			.length = v.s.length,
			.key = ckpt_sample_key(seed, v.s.offset, v.s.tensor, v.s.length),
			.grid = (uintptr_t)&g};
		assert_true(ckpt_span_sample(&span, 0) == ckpt_segment_sample(&v.s, seed, false));
		sampled++;
	}
	assert_true(sampled > 15000);
}

/* In a table, with the lanes of a span. */
static void lanes_share_the_items(void **state)
{
	const int64_t shape[] = {40, 30};
	const int64_t strides[] = {1, 41};
	struct ckpt_segment s = {
		.view = {.data = memory, .item = 2, .ndim = 2, .shape = shape, .strides = strides},
		.offset = 38,
		.length = 2000,
		.staged = staged + 6};
	struct prng d = {25};
	struct ckpt_cuda_grid g;
	struct ckpt_cuda_span span = {.run = 1, .grid = (uintptr_t)&g};

	(void)state;
	fill(&d, memory);
	memset(staged, BYTE, SPACE);
	memset(wanted, BYTE, SPACE);
	ckpt_cuda_grid_of(&s, (uintptr_t)s.staged, &g);
	span.length = ckpt_cuda_grid_items(&g, &span.offset);
	ckpt_view_gather(&s.view, s.offset, s.length, wanted + 6);
	for (uint32_t lane = 0; lane < CKPT_CUDA_LANES; lane++)
		ckpt_span_copy(&span, 0, false, lane, CKPT_CUDA_LANES);
	assert_memory_equal(staged, wanted, SPACE);
}

static struct ckpt_cuda_grid grid_of(
	const int64_t *shape, const int64_t *strides, uint32_t ndim, uint32_t item)
{
	struct ckpt_segment s = {.view = {.data = memory + MIDDLE,
					 .item = item,
					 .ndim = ndim,
					 .shape = shape,
					 .strides = strides}};
	struct ckpt_cuda_grid g;

	s.length = ckpt_view_bytes(&s.view);
	ckpt_cuda_grid_of(&s, (uintptr_t)staged, &g);
	return g;
}

#define APART(...) ckpt_cuda_grid_apart(&(struct ckpt_cuda_grid[]){grid_of(__VA_ARGS__)}[0])

static void elements_that_share_memory_are_told_from_others(void **state)
{
	(void)state;
	assert_true(APART((int64_t[]){4, 6}, (int64_t[]){1, 4}, 2, 4));
	assert_true(APART((int64_t[]){2, 3, 4, 4}, (int64_t[]){48, 1, 12, 3}, 4, 2));
	assert_true(APART((int64_t[]){6}, (int64_t[]){-1}, 1, 4));
	assert_true(APART((int64_t[]){4, 6}, (int64_t[]){-7, 1}, 2, 4));
	assert_true(APART((int64_t[]){1, 6}, (int64_t[]){0, 1}, 2, 4));
	assert_true(APART(NULL, NULL, 0, 16));
	assert_false(APART((int64_t[]){4, 6}, (int64_t[]){0, 1}, 2, 4));
	assert_false(APART((int64_t[]){4, 6}, (int64_t[]){5, 1}, 2, 4));
	assert_false(APART((int64_t[]){4, 6}, (int64_t[]){1, -3}, 2, 4));
	assert_false(APART((int64_t[]){3, 3, 3}, (int64_t[]){9, 4, 2}, 3, 1));
	/* Not seen: 0 2 4 and 3 5 7. */
	assert_false(APART((int64_t[]){3, 2}, (int64_t[]){2, 3}, 2, 4));
}

/* What each thread does for each element, and how much one launch has to say. */
static void dimensions_that_go_on_are_joined(void **state)
{
	struct ckpt_cuda_grid g;

	(void)state;
	/* channels_last of [8, 32, 3, 3]: 9 places of 32 channels. */
	g = grid_of((int64_t[]){8, 32, 3, 3}, (int64_t[]){288, 1, 96, 32}, 4, 4);
	assert_int_equal(g.ndim, 3);
	assert_int_equal(g.unit, 4);
	assert_int_equal(g.dims[0].count, 9);
	assert_int_equal(g.dims[1].count, 32);
	assert_int_equal(g.windows, 8 * 288 * 4 / 16 + 1);
	/* Long runs are moved by as much as one load takes. */
	g = grid_of((int64_t[]){3, 5, 64}, (int64_t[]){64, 640, 1}, 3, 2);
	assert_int_equal(g.ndim, 3);
	assert_int_equal(g.unit, 16);
	assert_int_equal(g.dims[0].count, 8);
	/* In order, but for ones. */
	g = grid_of((int64_t[]){1, 7, 1, 4}, (int64_t[]){-9, 4, 77, 1}, 4, 4);
	assert_int_equal(g.ndim, 1);
	/* As many as there may be. */
	int64_t shape[CKPT_NDIM_MAX];
	int64_t strides[CKPT_NDIM_MAX];
	for (uint32_t i = 0; i < CKPT_NDIM_MAX; i++) {
		shape[i] = i < 12 ? 2 : 1;
		strides[i] = (int64_t)1 << i;
	}
	g = grid_of(shape, strides, CKPT_NDIM_MAX, 4);
	assert_int_equal(g.ndim, 12);
}

/* Places of memory that nobody has: nothing of it is 32 bits. */
static void what_is_beyond_32_bits_is_found(void **state)
{
	const int64_t rows = (int64_t)3 << 20;
	const int64_t columns = (int64_t)5 << 20;
	const int64_t shape[] = {rows, columns};
	const int64_t strides[] = {1, rows};
	const uint64_t at = (uint64_t)columns * 8 * 1234567 + 8 * 7654;
	struct ckpt_segment s = {.view = {.data = (char *)((uintptr_t)1 << 50),
					 .item = 8,
					 .ndim = 2,
					 .shape = shape,
					 .strides = strides},
		.offset = at,
		.length = (uint64_t)40 << 30};
	struct ckpt_cuda_grid g;
	struct ckpt_grid_place p;
	uint64_t first;

	(void)state;
	ckpt_cuda_grid_of(&s, (uint64_t)1 << 40, &g);
	assert_true(ckpt_cuda_grid_items(&g, &first) == s.length / 16);
	assert_true(first == at / 16);
	p = ckpt_grid_seek(&g, g.data, first * 2 + 1);
	assert_true(p.address == g.data + 8 * (1234567 + 7655 * (uint64_t)rows));
	assert_true(p.left == (uint64_t)columns - 7655);
	assert_true(g.staged + at == (uint64_t)1 << 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_gather_what_the_cpu_would),
		cmocka_unit_test(items_scatter_what_the_cpu_would),
		cmocka_unit_test(boxes_are_filled_as_the_cpu_would),
		cmocka_unit_test(grids_are_sampled_as_segments_are),
		cmocka_unit_test(lanes_share_the_items),
		cmocka_unit_test(elements_that_share_memory_are_told_from_others),
		cmocka_unit_test(dimensions_that_go_on_are_joined),
		cmocka_unit_test(what_is_beyond_32_bits_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
