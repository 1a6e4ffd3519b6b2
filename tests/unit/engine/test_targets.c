/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets: what is refused and in which words; and that every byte asked for arrives once, from the
 * right place, whatever the targets and the blocks.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/reshard/target_binder.h"
#include "format/dtype.h"
#include "lib/prng.h"

#define TENSORS 12
#define TARGETS 24

static const uint32_t dtypes[] = {CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_C128};

struct world {
	struct ckpt_layout *layout;
	struct ckpt_index index;
	struct ckpt_tensor_map *tensor_map;
	char names[TENSORS][16];
	int64_t shapes[TENSORS][3];
	char *shard;
};

/* One rank's step, of what w->layout says. */
static void unite(struct world *w)
{
	const struct ckpt_index *list = &w->index;

	w->index.layout = w->layout;
	assert_int_equal(ckpt_tensor_map_build(&list, 1, NULL, &w->tensor_map), 0);
}

static void make_world(struct world *w, struct prng *d, uint64_t chunk_bytes)
{
	struct ckpt_tensor tensors[TENSORS];
	char alias[] = "tied";
	struct ckpt_alias aliases[] = {{alias, w->names[3]}};

	for (size_t i = 0; i < TENSORS; i++) {
		(void)snprintf(w->names[i], sizeof(w->names[i]), "layer.%zu", i);
		for (size_t k = 0; k < 3; k++)
			w->shapes[i][k] = (int64_t)prng_below(d, i == 5 ? 1 : 14);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = w->names[i],
			.dtype = dtypes[prng_below(d, 5)],
			.ndim = 3,
			.shape = w->shapes[i]};
	}
	assert_int_equal(
		ckpt_layout_build(tensors, TENSORS, aliases, 1, chunk_bytes, NULL, &w->layout), 0);
	w->shard = malloc(w->layout->bytes);
	for (uint64_t i = 0; i < w->layout->bytes; i++)
		w->shard[i] = (char)prng_next(d);
	unite(w);
}

static void end_world(struct world *w)
{
	free(w->shard);
	ckpt_tensor_map_free(w->tensor_map);
	ckpt_layout_free(w->layout);
}

/* Bytes of a segment that its view holds. */
static uint64_t held(const struct ckpt_segment *g)
{
	const int64_t *n = g->around;
	const int64_t *shape = g->view.shape;
	uint64_t end = g->offset + g->length;
	uint64_t bytes = 0;

	if (!g->around)
		return g->length;
	for (int64_t i = 0; i < shape[0]; i++)
		for (int64_t j = 0; j < shape[1]; j++)
			for (int64_t k = 0; k < shape[2]; k++) {
				uint64_t lo = (uint64_t)(((n[3] + i) * n[1] + n[4] + j) * n[2] +
							 n[5] + k) *
					      g->view.item;
				uint64_t hi = lo + g->view.item;
				lo = lo > g->offset ? lo : g->offset;
				hi = hi < end ? hi : end;
				bytes += hi > lo ? hi - lo : 0;
			}
	return bytes;
}

/* Cuts the whole shard block by block, and scatters every segment, as a device does. */
static uint64_t deliver(struct world *w, struct ckpt_targets *targets, uint32_t block_bytes)
{
	struct ckpt_segment_list list = {0};
	char *memory = malloc(2 * (size_t)block_bytes);
	uint64_t bytes = 0;

	for (size_t i = 0; i < ckpt_blocks_count(w->layout, block_bytes); i++) {
		struct ckpt_span s = ckpt_blocks_span(w->layout, block_bytes, i);
		if (s.chunk_count == 0)
			continue;
		const struct ckpt_chunk *last =
			&w->layout->chunks[s.first_chunk + s.chunk_count - 1];
		struct ckpt_cut cut = {.lo = w->layout->chunks[s.first_chunk].offset,
			.hi = last->offset + last->length,
			.block_offset = s.offset,
			.block_bytes = block_bytes,
			.before = i ? memory : NULL,
			.here = memory + block_bytes};
		memset(memory, 0x5a, 2 * (size_t)block_bytes);
		if (i)
			memcpy(memory, w->shard + s.offset - block_bytes, block_bytes);
		memcpy(memory + block_bytes, w->shard + s.offset, s.length);
		list.count = 0;
		assert_int_equal(ckpt_targets_cut(targets, &cut, &list), 0);
		for (size_t k = 0; k < list.count; k++) {
			const struct ckpt_segment *g = &list.items[k];
			assert_true(g->length > 0);
			if (g->around)
				ckpt_view_scatter_box(
					&g->view, g->around, g->offset, g->length, g->staged);
			else
				ckpt_view_scatter(&g->view, g->offset, g->length, g->staged);
			bytes += held(g);
		}
	}
	free(memory);
	ckpt_free(list.items);
	return bytes;
}

/* A target and what it must hold in the end. */
struct goal {
	const struct ckpt_entry *entry;
	int64_t start[3];
	int64_t shape[3];
	int64_t strides[3];
	uint64_t bytes; /* that it wants */
	size_t room;
	char *data;
	char *expected;
};

/* Strides of a permutation of the dimensions, with gaps; some negative. Returns element [0,0,0]'s place. */
static size_t random_strides(
	struct prng *d, const int64_t *shape, int64_t *strides, size_t *ret_room)
{
	size_t order[3] = {0, 1, 2};
	int64_t step = 1 + (int64_t)prng_below(d, 2);
	size_t start = 0;

	for (size_t i = 2; i > 0; i--) {
		size_t k = prng_below(d, i + 1);
		size_t t = order[i];
		order[i] = order[k];
		order[k] = t;
	}
	*ret_room = 1;
	for (size_t i = 0; i < 3; i++) {
		int64_t n = shape[order[i]];
		bool back = prng_below(d, 4) == 0;
		strides[order[i]] = back ? -step : step;
		if (n > 0) {
			*ret_room += (size_t)(step * (n - 1));
			start += back ? (size_t)(step * (n - 1)) : 0;
		}
		step = step * (n > 0 ? n : 1) + (int64_t)prng_below(d, 3);
	}
	return start;
}

/* Where element [i, j, k] of the goal's box lies in the tensor. */
static uint64_t place_in(const struct goal *g, int64_t i, int64_t j, int64_t k)
{
	const int64_t *n = g->entry->shape;

	return (uint64_t)(((g->start[0] + i) * n[1] + g->start[1] + j) * n[2] + g->start[2] + k) *
	       ckpt_dtype_bytes(g->entry->dtype);
}

static void expect_box(struct goal *g, size_t start, const char *tensor)
{
	uint32_t item = ckpt_dtype_bytes(g->entry->dtype);

	for (int64_t i = 0; i < g->shape[0]; i++)
		for (int64_t j = 0; j < g->shape[1]; j++)
			for (int64_t k = 0; k < g->shape[2]; k++, g->bytes += item)
				memcpy(g->expected +
						((int64_t)start + i * g->strides[0] +
							j * g->strides[1] + k * g->strides[2]) *
							item,
					tensor + place_in(g, i, j, k), item);
}

/* A box of the tensor, or all of it. */
static void choose_box(struct prng *d, struct goal *g, struct ckpt_target *t)
{
	memcpy(g->shape, g->entry->shape, sizeof(g->shape));
	memset(g->start, 0, sizeof(g->start));
	t->dtype = g->entry->dtype;
	t->ndim = 3;
	t->shape = g->shape;
	if (prng_below(d, 3) == 0)
		return;
	for (size_t i = 0; i < 3; i++) {
		if (prng_below(d, 3) == 0)
			continue;
		g->start[i] = (int64_t)prng_below(d, (uint64_t)g->shape[i] + 1);
		g->shape[i] = (int64_t)prng_below(d, (uint64_t)(g->shape[i] - g->start[i]) + 1);
	}
	t->start = g->start;
}

/* A length by which a range ends about where a chunk does. */
static uint64_t near_cut(struct world *w, struct prng *d, uint64_t from, uint64_t length)
{
	const struct ckpt_chunk *c =
		&w->layout->chunks[ckpt_layout_chunk_at(w->layout, from + length - 1)];
	uint64_t end = c->offset + prng_below(d, 3) - 1;

	return end > from && end - from < length ? end - from : length;
}

static void make_goal(struct world *w, struct prng *d, struct goal *g, struct ckpt_target *t)
{
	size_t pick = prng_below(d, TENSORS + 1);
	const char *name = pick == TENSORS ? "tied" : w->names[pick];
	size_t start = 0;

	g->entry = ckpt_layout_find(w->layout, name);
	g->bytes = 0;
	*t = (struct ckpt_target){.size = sizeof(*t), .name = name};
	uint32_t item = ckpt_dtype_bytes(g->entry->dtype);
	bool box = prng_below(d, 2);
	if (box && prng_below(d, 2)) {
		choose_box(d, g, t);
		start = random_strides(d, g->shape, g->strides, &g->room);
		t->strides = g->strides;
	} else if (box) {
		choose_box(d, g, t);
		g->room = (size_t)(g->shape[0] * g->shape[1] * g->shape[2]);
		g->strides[0] = g->shape[1] * g->shape[2];
		g->strides[1] = g->shape[2];
		g->strides[2] = 1;
	} else {
		t->offset = prng_below(d, g->entry->nbytes + 1);
		t->length = prng_below(d, g->entry->nbytes - t->offset + 1);
		if (t->length > 2 && prng_below(d, 2))
			t->length = near_cut(w, d, g->entry->offset + t->offset, t->length);
		g->bytes = t->length ? t->length : g->entry->nbytes - t->offset;
		g->room = g->bytes;
	}
	g->room *= box ? item : 1;
	g->data = malloc(g->room + 1);
	g->expected = malloc(g->room + 1);
	memset(g->data, 0x33, g->room);
	memset(g->expected, 0x33, g->room);
	t->data = g->data + start * item;
	if (box)
		expect_box(g, start, w->shard + g->entry->offset);
	else
		memcpy(g->expected, w->shard + g->entry->offset + t->offset, g->room);
}

/* Marks the bytes of the shard that a goal wants. */
static void mark(const struct goal *g, const struct ckpt_target *t, char *marks)
{
	uint32_t item = ckpt_dtype_bytes(g->entry->dtype);

	marks += g->entry->offset;
	if (!t->shape) {
		memset(marks + t->offset, 1, g->bytes);
		return;
	}
	for (int64_t i = 0; i < g->shape[0]; i++)
		for (int64_t j = 0; j < g->shape[1]; j++)
			for (int64_t k = 0; k < g->shape[2]; k++)
				memset(marks + place_in(g, i, j, k), 1, item);
}

static bool is_in(const uint64_t *bits, size_t chunk)
{
	return bits[chunk / 64] >> (chunk % 64) & 1;
}

/*
 * The chunks that are wanted are those that hold a byte of a target, no more and no less. Others may want
 * those of which some bytes are left.
 */
static void check_want(struct world *w, struct ckpt_targets *targets, const struct goal *goals,
	const struct ckpt_target *asked, size_t count)
{
	uint64_t said = UINT64_MAX;
	uint64_t bytes = 0;
	char *marks = calloc(1, w->layout->bytes);

	for (size_t i = 0; i < count; i++)
		mark(&goals[i], &asked[i], marks);
	assert_int_equal(ckpt_targets_seal(targets, w->layout, &said), 0);
	for (size_t c = 0; c < w->layout->chunk_count; c++) {
		const struct ckpt_chunk *chunk = &w->layout->chunks[c];
		bool want = memchr(marks + chunk->offset, 1, chunk->length) != NULL;
		bool all = !memchr(marks + chunk->offset, 0, chunk->length);
		assert_int_equal(is_in(targets->wanted, c), want);
		if (want && !all)
			assert_true(is_in(targets->shared, c));
		if (!want)
			assert_false(is_in(targets->shared, c));
		bytes += want ? chunk->length : 0;
	}
	assert_int_equal(said, bytes);
	free(marks);
}

static void test_delivery(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct prng d = {seed};
		struct world w;
		struct goal goals[TARGETS];
		struct ckpt_target asked[TARGETS];
		struct ckpt_target_binder binder;
		uint64_t chunk_bytes = 1 + prng_below(&d, 3000);
		uint64_t expected = 0;

		make_world(&w, &d, chunk_bytes);
		for (size_t i = 0; i < TARGETS; i++) {
			make_goal(&w, &d, &goals[i], &asked[i]);
			expected += goals[i].bytes;
		}
		assert_int_equal(ckpt_target_binder_init(&binder, w.tensor_map, 1), 0);
		assert_int_equal(ckpt_target_binder_add(&binder, asked, TARGETS / 2, NULL), 0);
		assert_int_equal(ckpt_target_binder_add(
					 &binder, asked + TARGETS / 2, TARGETS - TARGETS / 2, NULL),
			0);
		check_want(&w, &binder.ranks[0], goals, asked, TARGETS);
		uint32_t block_bytes = (uint32_t)(chunk_bytes + prng_below(&d, 6000));
		assert_int_equal(deliver(&w, &binder.ranks[0], block_bytes), expected);
		for (size_t i = 0; i < TARGETS; i++) {
			assert_memory_equal(goals[i].data, goals[i].expected, goals[i].room);
			free(goals[i].data);
			free(goals[i].expected);
		}
		ckpt_target_binder_clear(&binder);
		end_world(&w);
	}
}

static struct world plain;
static char memory[1 << 16];

static int setup(void **state)
{
	struct prng d = {7};

	(void)state;
	make_world(&plain, &d, 1024);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	end_world(&plain);
	return 0;
}

/* Adds one good target and `bad`: the second is refused in words that hold `says`, and neither is in. */
static void refused(struct ckpt_target bad, int code, const char *says)
{
	struct ckpt_target_binder binder;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_target both[2] = {{.name = "layer.1", .data = memory}, bad};

	assert_int_equal(ckpt_target_binder_init(&binder, plain.tensor_map, 1), 0);
	assert_int_equal(ckpt_target_binder_add(&binder, both, 2, &err), code);
	assert_int_equal(err.code, code);
	if (!strstr(err.message, says))
		fail_msg("\"%s\" does not say \"%s\"", err.message, says);
	if (bad.name)
		assert_string_equal(err.tensor, bad.name);
	assert_int_equal(binder.ranks[0].count, 0);
	ckpt_target_binder_clear(&binder);
}

static void test_refusals(void **state)
{
	const struct ckpt_entry *e = ckpt_layout_find(plain.layout, "layer.2");
	int64_t other[3] = {e->shape[0], e->shape[1] + 1, e->shape[2]};
	int64_t huge[3] = {INT64_MAX / 2, 1, 1};
	int64_t zero[3] = {1, 0, 1};
	int64_t same[3] = {1, 1, 1};
	int64_t dims[CKPT_NDIM_MAX + 1] = {0};
	int64_t one[3] = {1, 0, 0};
	int64_t less[3] = {0, -1, 0};
	int64_t most[3] = {1, INT64_MAX, 1};
	struct ckpt_target good = {.name = "layer.2", .data = memory};
	struct ckpt_target t;

	(void)state;
	assert_true(e->shape[0] > 1 && e->shape[1] > 1);
	t = good, t.name = NULL;
	refused(t, -EINVAL, "no tensor name");
	t = good, t.name = "layer.77";
	refused(t, CKPT_EMISMATCH, "has no tensor");
	t = good, t.dtype = e->dtype == CKPT_F32 ? CKPT_F64 : CKPT_F32;
	refused(t, CKPT_EMISMATCH, ckpt_dtype_name(e->dtype));
	t = good, t.dtype = CKPT_DTYPE_END;
	refused(t, -EINVAL, "element type");
	t = good, t.ndim = 3, t.shape = other;
	refused(t, CKPT_EMISMATCH, "shape [");
	t = good, t.ndim = 2, t.shape = e->shape;
	refused(t, CKPT_EMISMATCH, "shape [");
	t = good, t.ndim = 1;
	refused(t, -EINVAL, "no shape");
	t = good, t.ndim = CKPT_NDIM_MAX + 1, t.shape = dims;
	refused(t, -EINVAL, "dimensions");
	t = good, t.offset = e->nbytes + 1;
	refused(t, CKPT_EMISMATCH, "asks for");
	t = good, t.offset = 1, t.length = e->nbytes;
	refused(t, CKPT_EMISMATCH, "asks for");
	t = good, t.offset = 8, t.length = UINT64_MAX - 3;
	refused(t, CKPT_EMISMATCH, "asks for");
	t = good, t.strides = zero;
	refused(t, -EINVAL, "strides need a shape");
	t = good, t.strides = huge, t.shape = e->shape, t.ndim = 3, t.offset = 1;
	refused(t, -EINVAL, "whole tensor");
	t = good, t.strides = huge, t.shape = e->shape, t.ndim = 3, t.length = 1;
	refused(t, -EINVAL, "whole tensor");
	t = good, t.strides = huge, t.shape = e->shape, t.ndim = 3;
	refused(t, -EINVAL, "address space");
	t = good, t.strides = zero, t.shape = e->shape, t.ndim = 3;
	refused(t, -EINVAL, "share memory");
	t = good, t.strides = same, t.shape = e->shape, t.ndim = 3;
	refused(t, -EINVAL, "share memory");
	t = good, t.data = NULL;
	refused(t, -EINVAL, "no memory");
	t = good, t.start = one, t.shape = e->shape, t.ndim = 3, t.length = 4;
	refused(t, -EINVAL, "use one of them");
	t = good, t.start = one, t.shape = e->shape, t.ndim = 3, t.offset = 4;
	refused(t, -EINVAL, "use one of them");
	t = good, t.start = one, t.shape = e->shape, t.ndim = 3;
	refused(t, CKPT_EMISMATCH, "from [1, 0, 0] on");
	t = good, t.start = one, t.shape = e->shape, t.ndim = 2;
	refused(t, CKPT_EMISMATCH, "asks for a box");
	t = good, t.start = one;
	refused(t, CKPT_EMISMATCH, "asks for a box");
	t = good, t.start = less, t.shape = zero, t.ndim = 3;
	refused(t, CKPT_EMISMATCH, "asks for a box");
	t = good, t.start = zero, t.shape = less, t.ndim = 3;
	refused(t, CKPT_EMISMATCH, "asks for a box");
	t = good, t.start = most, t.shape = most, t.ndim = 3;
	refused(t, CKPT_EMISMATCH, "asks for a box");
	t = good, t.start = one, t.ndim = 3;
	refused(t, -EINVAL, "no shape");
}

static void test_devices_refused(void **state)
{
	struct ckpt_target t = {.name = "layer.3", .data = memory, .device = CKPT_DEVICE_CUDA + 1};

	(void)state;
	refused(t, -EINVAL, "device kind 2");
	t.device = CKPT_DEVICE_CUDA, t.device_index = -1;
	refused(t, -EINVAL, "index -1");
	t.device_index = CKPT_GPUS_MAX;
	refused(t, -EINVAL, "index 63");
}

/* Nothing to copy: checked all the same, and then left out. */
static void test_empty(void **state)
{
	static const int64_t no_size[3] = {1, 0, 0};
	const struct ckpt_entry *e = ckpt_layout_find(plain.layout, "layer.5");
	struct ckpt_target_binder binder;
	struct ckpt_target none[3] = {{.name = "layer.5"},
		{.name = "layer.2", .offset = 0, .length = 0},
		{.name = "layer.2", .ndim = 3, .shape = no_size, .start = no_size}};
	struct ckpt_targets *targets;
	uint64_t bytes = UINT64_MAX;

	(void)state;
	assert_int_equal(ckpt_target_binder_init(&binder, plain.tensor_map, 1), 0);
	targets = &binder.ranks[0];
	assert_int_equal(e->nbytes, 0);
	none[1].offset = ckpt_layout_find(plain.layout, "layer.2")->nbytes;
	assert_int_equal(ckpt_target_binder_add(&binder, none, 3, NULL), 0);
	assert_int_equal(targets->count, 0);
	assert_int_equal(ckpt_targets_seal(targets, plain.layout, &bytes), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(deliver(&plain, targets, 4096), 0);
	ckpt_target_binder_clear(&binder);
}

/* One target over everything and thousands within it cost no more than their number and overlaps. */
static void test_many(void **state)
{
	int64_t shape = 1 << 22;
	struct ckpt_tensor tensor = {
		.size = sizeof(tensor), .name = "w", .dtype = CKPT_U8, .ndim = 1, .shape = &shape};
	size_t count = 200000;
	struct ckpt_target *asked = calloc(count, sizeof(*asked));
	struct ckpt_target_binder binder;
	struct world w = {0};
	uint64_t bytes = 0;
	char *to = malloc((size_t)shape);

	(void)state;
	assert_int_equal(ckpt_layout_build(&tensor, 1, NULL, 0, 4096, NULL, &w.layout), 0);
	w.shard = calloc(1, w.layout->bytes);
	for (size_t i = 0; i < count; i++)
		asked[i] = (struct ckpt_target){.name = "w",
			.offset = i ? i * 20 : 0,
			.length = i ? 20 : (uint64_t)shape,
			.data = to + i * 20};
	unite(&w);
	assert_int_equal(ckpt_target_binder_init(&binder, w.tensor_map, 1), 0);
	assert_int_equal(ckpt_target_binder_add(&binder, asked, count, NULL), 0);
	assert_int_equal(ckpt_targets_seal(&binder.ranks[0], w.layout, &bytes), 0);
	clock_t start = clock();
	assert_int_equal(deliver(&w, &binder.ranks[0], 4096), (uint64_t)shape + (count - 1) * 20);
	/* Looking at every target for every block would take minutes. */
	assert_true(clock() - start < 20 * CLOCKS_PER_SEC);
	ckpt_target_binder_clear(&binder);
	free(asked);
	free(to);
	end_world(&w);
}

/* Many boxes that go through all of a tensor: each chunk is marked once, and not looked for by every box. */
static void test_many_boxes(void **state)
{
	const int64_t shape[2] = {4096, 4096};
	int64_t column[2] = {4096, 1};
	struct ckpt_tensor tensor = {
		.size = sizeof(tensor), .name = "w", .dtype = CKPT_U8, .ndim = 2, .shape = shape};
	size_t count = 100000;
	int64_t(*starts)[2] = calloc(count, sizeof(*starts));
	struct ckpt_target *asked = calloc(count, sizeof(*asked));
	struct ckpt_target_binder binder;
	struct world w = {0};
	uint64_t bytes = 0;
	char to[4096];

	(void)state;
	assert_int_equal(ckpt_layout_build(&tensor, 1, NULL, 0, 4096, NULL, &w.layout), 0);
	for (size_t i = 0; i < count; i++) {
		starts[i][1] = (int64_t)(i % 4096);
		asked[i] = (struct ckpt_target){
			.name = "w", .ndim = 2, .shape = column, .start = starts[i], .data = to};
	}
	unite(&w);
	assert_int_equal(ckpt_target_binder_init(&binder, w.tensor_map, 1), 0);
	assert_int_equal(ckpt_target_binder_add(&binder, asked, count, NULL), 0);
	clock_t start = clock();
	assert_int_equal(ckpt_targets_seal(&binder.ranks[0], w.layout, &bytes), 0);
	/* Each box by itself would look at every chunk: half a thousand million times. */
	assert_true(clock() - start < 2 * CLOCKS_PER_SEC);
	assert_int_equal(bytes, 4096 * 4096);
	ckpt_target_binder_clear(&binder);
	free(asked);
	free(starts);
	end_world(&w);
}

/* Chunks of 4 KiB: `pages` of the tensor, as letters: wanted alone (w), by others, too (s), not at all (.) */
static void check_shared(struct ckpt_target *asked, size_t count, const char *pages)
{
	int64_t shape[2] = {8, 4096};
	struct ckpt_tensor tensor = {
		.size = sizeof(tensor), .name = "w", .dtype = CKPT_U8, .ndim = 2, .shape = shape};
	struct ckpt_target_binder binder;
	struct world w = {0};
	char seen[9] = "";
	uint64_t bytes;

	assert_int_equal(ckpt_layout_build(&tensor, 1, NULL, 0, 4096, NULL, &w.layout), 0);
	unite(&w);
	assert_int_equal(ckpt_target_binder_init(&binder, w.tensor_map, 1), 0);
	assert_int_equal(ckpt_target_binder_add(&binder, asked, count, NULL), 0);
	const struct ckpt_targets *targets = &binder.ranks[0];
	assert_int_equal(ckpt_targets_seal(&binder.ranks[0], w.layout, &bytes), 0);
	size_t first = ckpt_layout_chunk_at(w.layout, w.layout->header_bytes);
	for (size_t i = 0; i < 8; i++)
		seen[i] = (char)(is_in(targets->shared, first + i)   ? 's'
				 : is_in(targets->wanted, first + i) ? 'w'
								     : '.');
	assert_string_equal(seen, pages);
	ckpt_target_binder_clear(&binder);
	end_world(&w);
}

/* What one rank alone wants is told from what others on its node want, or may want. */
static void test_shared(void **state)
{
	int64_t column[2] = {3, 100};
	int64_t rows[2] = {3, 4096};
	int64_t start[2] = {2, 5};
	int64_t below[2] = {2, 0};
	char to[1];
	struct ckpt_target whole = {.name = "w", .data = to};
	struct ckpt_target all = {.name = "w", .data = to, .flags = CKPT_TARGET_SHARED};
	struct ckpt_target range = {.name = "w", .data = to, .offset = 4097, .length = 3 * 4096};
	struct ckpt_target halves[2] = {{.name = "w", .data = to, .length = 6000},
		{.name = "w", .data = to, .offset = 6000, .length = 10384}};
	struct ckpt_target box = {
		.name = "w", .data = to, .ndim = 2, .shape = column, .start = start};
	struct ckpt_target band = {
		.name = "w", .data = to, .ndim = 2, .shape = rows, .start = below};
	struct ckpt_target mixed[2] = {whole, band};
	struct ckpt_target odd = {.name = "layer.2", .data = memory, .flags = 2};

	(void)state;
	check_shared(&whole, 1, "wwwwwwww");
	check_shared(&all, 1, "ssssssss");
	check_shared(&range, 1, ".swws...");
	check_shared(halves, 2, "wwww....");
	check_shared(&box, 1, "..sss...");
	check_shared(&band, 1, "..www...");
	band.flags = CKPT_TARGET_SHARED;
	check_shared(&band, 1, "..sss...");
	mixed[1].flags = CKPT_TARGET_SHARED;
	check_shared(mixed, 2, "wwssswww");
	refused(odd, -EINVAL, "flags are 0x2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_delivery),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_devices_refused),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_many_boxes),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
