/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/sharded_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "format/dtype.h"

static const uint32_t dtypes[] = {CKPT_U8, CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_C128};

/* Row-major strides of a shape. */
static void row_major(const int64_t *shape, uint32_t ndim, int64_t *strides)
{
	int64_t stride = 1;

	for (uint32_t i = ndim; i-- > 0; stride *= shape[i])
		strides[i] = stride;
}

/* The bytes of a box of a tensor, together. */
static char *take_box(const struct sharded_tensor *t, const struct ckpt_box *box)
{
	uint32_t item = ckpt_dtype_bytes(t->dtype);
	int64_t strides[SHARDED_NDIM];
	struct ckpt_view view = {.data = t->data,
		.item = item,
		.ndim = t->ndim,
		.shape = box->shape,
		.strides = strides};
	uint64_t bytes = ckpt_box_volume(box) * item;
	char *data = malloc(bytes + 1);

	row_major(t->shape, t->ndim, strides);
	for (uint32_t i = 0; i < t->ndim; i++)
		view.data += box->start[i] * strides[i] * item;
	if (bytes > 0)
		ckpt_view_gather(&view, 0, bytes, data);
	return data;
}

static void give(struct sharded *s, uint32_t rank, size_t tensor, const struct ckpt_box *box)
{
	s->pieces[rank][tensor].box = *box;
}

/* A dimension cut into `n` parts at random; some may be empty. cuts[0] = 0, cuts[n] = size. */
static void cut(struct prng *d, int64_t size, uint32_t n, int64_t *cuts)
{
	bool even = prng_below(d, 2);

	cuts[0] = 0;
	cuts[n] = size;
	for (uint32_t i = 1; i < n; i++) {
		int64_t each = (size + n - 1) / n;
		cuts[i] = even ? each * i : (int64_t)prng_below(d, (uint64_t)size + 1);
		if (cuts[i] > size)
			cuts[i] = size;
	}
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 1 && cuts[k - 1] > cuts[k]; k--) {
			int64_t t = cuts[k];
			cuts[k] = cuts[k - 1];
			cuts[k - 1] = t;
		}
}

/* A grid of rows by columns, over two dimensions or one of them, given to ranks from `first` on. */
static void grid(struct sharded *s, struct prng *d, size_t tensor, uint32_t rows, uint32_t columns,
	uint32_t copies)
{
	struct sharded_tensor *t = &s->tensors[tensor];
	struct ckpt_box box = ckpt_box_of(NULL, t->shape, t->ndim);
	uint32_t a = (uint32_t)prng_below(d, t->ndim);
	uint32_t b = (a + 1) % t->ndim;
	int64_t down[SHARDED_WORLD_MAX + 1];
	int64_t across[SHARDED_WORLD_MAX + 1];
	uint32_t rank = (uint32_t)prng_below(d, s->world);

	if (a == b)
		rows *= columns, columns = 1;
	cut(d, t->shape[a], rows, down);
	cut(d, t->shape[b], columns, across);
	for (uint32_t n = 0; n < copies; n++)
		for (uint32_t i = 0; i < rows; i++)
			for (uint32_t k = 0; k < columns; k++, rank = (rank + 1) % s->world) {
				box.start[a] = down[i];
				box.shape[a] = down[i + 1] - down[i];
				if (a != b) {
					box.start[b] = across[k];
					box.shape[b] = across[k + 1] - across[k];
				}
				give(s, rank, tensor, &box);
			}
}

/* Every box that is there reaches into its neighbours. */
static void widen(struct sharded *s, struct prng *d, size_t tensor)
{
	const struct sharded_tensor *t = &s->tensors[tensor];

	for (uint32_t r = 0; r < s->world; r++) {
		struct ckpt_box *box = &s->pieces[r][tensor].box;
		for (uint32_t i = 0; i < t->ndim && box->ndim != SHARDED_NONE; i++) {
			int64_t less = (int64_t)prng_below(d, (uint64_t)box->start[i] + 1);
			int64_t room = t->shape[i] - box->start[i] - box->shape[i];
			int64_t more = (int64_t)prng_below(d, (uint64_t)room + 1);
			box->start[i] -= less;
			box->shape[i] += less + more;
		}
	}
}

static void distribute(struct sharded *s, struct prng *d, size_t tensor)
{
	struct sharded_tensor *t = &s->tensors[tensor];
	struct ckpt_box whole = ckpt_box_of(NULL, t->shape, t->ndim);
	uint64_t kind = t->ndim > 0 ? prng_below(d, 7) : prng_below(d, 2);
	uint32_t some = 1 + (uint32_t)prng_below(d, s->world);

	t->once = true;
	if (kind == 0) {
		give(s, (uint32_t)prng_below(d, s->world), tensor, &whole);
	} else if (kind == 1) {
		for (uint32_t r = 0; r < some; r++)
			give(s, (r + 1) % s->world, tensor, &whole);
		t->once = some == 1;
	} else if (kind == 2) {
		grid(s, d, tensor, s->world, 1, 1);
	} else if (kind == 3) {
		grid(s, d, tensor, some, 1, 1);
	} else if (kind == 4 || s->world < 4) {
		grid(s, d, tensor, s->world / 2, s->world < 2 ? 1 : 2, 1);
		if (s->world == 1)
			give(s, 0, tensor, &whole);
	} else if (kind == 5) {
		grid(s, d, tensor, s->world / 2, 1, 2);
		t->once = false;
	} else {
		grid(s, d, tensor, s->world / 2, 2, 1);
		widen(s, d, tensor);
		t->once = false;
	}
}

/* The greatest size of a dimension and one. */
static uint64_t most_of(
	const struct sharded_tensor *t, uint32_t dimension, uint64_t side, bool wide)
{
	if (wide && dimension + 1 == t->ndim)
		return side / ckpt_dtype_bytes(t->dtype);
	if (wide)
		return 6;
	return t->ndim > 2 ? 2 + side / 8 : side;
}

static void make_tensor(
	struct sharded_tensor *t, struct prng *d, size_t number, uint64_t side, bool wide)
{
	(void)snprintf(t->name, sizeof(t->name), "layer.%zu", number);
	t->dtype = dtypes[prng_below(d, 5)];
	t->ndim = (uint32_t)prng_below(d, wide ? 4 : SHARDED_NDIM + 1);
	t->bytes = ckpt_dtype_bytes(t->dtype);
	for (uint32_t i = 0; i < t->ndim; i++) {
		t->shape[i] =
			(int64_t)prng_below(d, most_of(t, i, side, wide)) + (prng_below(d, 12) > 0);
		t->bytes *= (uint64_t)t->shape[i];
	}
	t->data = malloc(t->bytes + 1);
	for (uint64_t i = 0; i < t->bytes; i++)
		t->data[i] = (char)prng_next(d);
}

static void make_rank(struct sharded *s, uint32_t rank)
{
	struct fixture_rank *r = &s->ranks[rank];

	(void)snprintf(s->metas[rank], sizeof(s->metas[rank]), "{\"rank\":%u}", rank);
	*r = (struct fixture_rank){.tensors = s->lists[rank], .meta = s->metas[rank]};
	for (size_t i = 0; i < SHARDED_TENSORS; i++) {
		struct sharded_piece *p = &s->pieces[rank][i];
		const struct sharded_tensor *t = &s->tensors[i];

		if (p->box.ndim == SHARDED_NONE)
			continue;
		p->data = take_box(t, &p->box);
		if (i == 0)
			r->alias = "tied";
		s->lists[rank][r->count++] = (struct ckpt_tensor){.size = sizeof(s->lists[0][0]),
			.name = t->name,
			.dtype = t->dtype,
			.ndim = t->ndim,
			.shape = p->box.shape,
			.data = p->data,
			.global_shape = t->shape,
			.global_start = p->box.start};
	}
}

static void make(
	struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t side, bool wide)
{
	*sharded = (struct sharded){.world = world};
	for (uint32_t r = 0; r < world; r++)
		for (size_t i = 0; i < SHARDED_TENSORS; i++)
			sharded->pieces[r][i].box.ndim = SHARDED_NONE;
	for (size_t i = 0; i < SHARDED_TENSORS; i++) {
		make_tensor(&sharded->tensors[i], prng, i, side, wide);
		distribute(sharded, prng, i);
	}
	for (uint32_t r = 0; r < world; r++)
		make_rank(sharded, r);
}

void sharded_make(struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t side)
{
	make(sharded, prng, world, side, false);
}

void sharded_make_wide(struct sharded *sharded, struct prng *prng, uint32_t world, uint64_t bytes)
{
	make(sharded, prng, world, bytes, true);
}

static void commit(struct sharded *sharded, const char *dir, uint64_t step, uint64_t chunk_bytes,
	bool catalog, uint32_t lie)
{
	sharded->step = (struct fixture_step){.dir = dir,
		.generation = 1,
		.step = step,
		.chunk_bytes = chunk_bytes,
		.world = sharded->world,
		.ranks = sharded->ranks,
		.catalog = catalog,
		.lie = lie};
	fixture_commit(&sharded->step);
}

void sharded_commit(struct sharded *sharded, const char *dir, uint64_t step, uint64_t chunk_bytes)
{
	commit(sharded, dir, step, chunk_bytes, false, 0);
}

void sharded_commit_cataloged(
	struct sharded *sharded, const char *dir, uint64_t step, uint64_t chunk_bytes, uint32_t lie)
{
	commit(sharded, dir, step, chunk_bytes, true, lie);
}

bool sharded_has_copy(const struct sharded *sharded, size_t tensor, uint32_t rank)
{
	const struct ckpt_box *own = &sharded->pieces[rank][tensor].box;

	if (own->ndim == SHARDED_NONE || ckpt_box_volume(own) == 0)
		return true;
	for (uint32_t r = 0; r < sharded->world; r++) {
		const struct ckpt_box *box = &sharded->pieces[r][tensor].box;
		if (r != rank && box->ndim == own->ndim &&
			memcmp(box->start, own->start, own->ndim * sizeof(int64_t)) == 0 &&
			memcmp(box->shape, own->shape, own->ndim * sizeof(int64_t)) == 0)
			return true;
	}
	return false;
}

void sharded_clear(struct sharded *sharded)
{
	for (size_t i = 0; i < SHARDED_TENSORS; i++)
		free(sharded->tensors[i].data);
	for (uint32_t r = 0; r < sharded->world; r++)
		for (size_t i = 0; i < SHARDED_TENSORS; i++)
			free(sharded->pieces[r][i].data);
}

/* Dimensions in a random order, with gaps between. Elements that they span. */
static size_t loose_strides(struct prng *d, const struct ckpt_box *box, int64_t *strides)
{
	uint32_t order[SHARDED_NDIM];
	int64_t step = 1;

	for (uint32_t i = 0; i < box->ndim; i++)
		order[i] = box->ndim - 1 - i;
	for (uint32_t i = box->ndim; i > 1 && prng_below(d, 2); i--) {
		uint32_t k = (uint32_t)prng_below(d, i);
		uint32_t t = order[i - 1];
		order[i - 1] = order[k];
		order[k] = t;
	}
	for (uint32_t i = 0; i < box->ndim; i++) {
		strides[order[i]] = step;
		step = step * (box->shape[order[i]] > 0 ? box->shape[order[i]] : 1) +
		       (int64_t)prng_below(d, 3);
	}
	return (size_t)step;
}

void sharded_want(
	const struct sharded *sharded, struct prng *prng, size_t tensor, struct sharded_goal *goal)
{
	const struct sharded_tensor *t = &sharded->tensors[tensor];
	bool box = prng_below(prng, 4) > 0;
	bool loose = prng_below(prng, 2);

	*goal = (struct sharded_goal){.tensor = t, .box = ckpt_box_of(NULL, t->shape, t->ndim)};
	for (uint32_t i = 0; i < t->ndim && box; i++) {
		if (prng_below(prng, 3) == 0)
			continue;
		goal->box.start[i] = (int64_t)prng_below(prng, (uint64_t)t->shape[i] + 1);
		goal->box.shape[i] =
			(int64_t)prng_below(prng, (uint64_t)(t->shape[i] - goal->box.start[i]) + 1);
	}
	row_major(goal->box.shape, t->ndim, goal->strides);
	goal->room = loose ? loose_strides(prng, &goal->box, goal->strides)
			   : ckpt_box_volume(&goal->box);
	goal->room *= ckpt_dtype_bytes(t->dtype);
	goal->memory = malloc(goal->room + 1);
	goal->expected = malloc(goal->room + 1);
	memset(goal->memory, 0x33, goal->room);
	memset(goal->expected, 0x33, goal->room);
	struct ckpt_view view = {.data = goal->expected,
		.item = ckpt_dtype_bytes(t->dtype),
		.ndim = t->ndim,
		.shape = goal->box.shape,
		.strides = goal->strides};
	char *bytes = take_box(t, &goal->box);
	if (ckpt_view_bytes(&view) > 0)
		ckpt_view_scatter(&view, 0, ckpt_view_bytes(&view), bytes);
	free(bytes);
	goal->target = (struct ckpt_target){.size = sizeof(goal->target),
		.name = tensor == 0 && prng_below(prng, 2) ? "tied" : t->name,
		.dtype = t->dtype,
		.data = goal->memory,
		.ndim = t->ndim,
		.shape = goal->box.shape,
		.strides = loose ? goal->strides : NULL,
		.start = box ? goal->box.start : NULL};
}

bool sharded_got(const struct sharded_goal *goal)
{
	return memcmp(goal->memory, goal->expected, goal->room) == 0;
}

void sharded_forget(struct sharded_goal *goal)
{
	free(goal->memory);
	free(goal->expected);
}
