/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps over the targets of a shard in its order. */
#include "engine/reshard/targets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* Grows an array for `need` items. Returns it, or NULL without memory; then it is unchanged. */
static void *grow(void *items, size_t *room, size_t need, size_t size)
{
	size_t more = *room ? *room * 2 : 16;

	if (need <= *room)
		return items;
	if (more < need)
		more = need;
	void *grown = ckpt_realloc_array(items, more, size);
	if (grown)
		*room = more;
	return grown;
}

static int put_dims(struct ckpt_targets *targets, const int64_t *dims, uint32_t count)
{
	int64_t *grown = grow(
		targets->dims, &targets->dims_room, targets->dims_count + count, sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	targets->dims = grown;
	memcpy(grown + targets->dims_count, dims, count * sizeof(*dims));
	targets->dims_count += count;
	return 0;
}

static int put_bound(struct ckpt_targets *targets, const struct ckpt_bound *bound)
{
	struct ckpt_bound *items =
		grow(targets->items, &targets->room, targets->count + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	targets->items = items;
	targets->items[targets->count++] = *bound;
	return 0;
}

int ckpt_targets_put(struct ckpt_targets *targets, uint64_t lo, const struct ckpt_view *view)
{
	uint64_t bytes = ckpt_view_bytes(view);
	struct ckpt_bound bound = {.lo = lo,
		.hi = lo + bytes,
		.base = lo,
		.data = view->data,
		.item = view->item,
		.ndim = view->ndim,
		.device = view->device,
		.dims = targets->dims_count,
		.flat = (int64_t)bytes};

	CKPT_ASSERT(!targets->sealed && bytes > 0);
	if (ckpt_view_contiguous(view))
		return put_bound(targets, &bound);
	bound.flat = -1;
	if (put_dims(targets, view->shape, view->ndim) < 0 ||
		put_dims(targets, view->strides, view->ndim) < 0)
		return -ENOMEM;
	return put_bound(targets, &bound);
}

int ckpt_targets_put_box(struct ckpt_targets *targets, uint64_t base, const struct ckpt_view *view,
	const int64_t *shape, const struct ckpt_box *in)
{
	struct ckpt_bound bound = {.lo = base + ckpt_box_seek(in, shape, view->item, 0),
		.hi = base + ckpt_box_end(in, shape, view->item),
		.base = base,
		.data = view->data,
		.item = view->item,
		.ndim = view->ndim,
		.device = view->device,
		.dims = targets->dims_count,
		.flat = -1,
		.boxed = true};

	CKPT_ASSERT(!targets->sealed && view->strides && in->ndim == view->ndim);
	if (put_dims(targets, view->shape, view->ndim) < 0 ||
		put_dims(targets, view->strides, view->ndim) < 0 ||
		put_dims(targets, shape, view->ndim) < 0 ||
		put_dims(targets, in->start, view->ndim) < 0)
		return -ENOMEM;
	return put_bound(targets, &bound);
}

int ckpt_targets_copy(struct ckpt_targets *targets, const struct ckpt_targets *from, size_t item,
	uint64_t here, uint64_t there)
{
	struct ckpt_bound bound = from->items[item];
	uint32_t dims = bound.flat >= 0 ? 0 : (bound.boxed ? 4 : 2) * bound.ndim;
	const int64_t *old = dims > 0 ? from->dims + bound.dims : NULL;

	CKPT_ASSERT(!targets->sealed && targets != from);
	bound.lo = bound.lo - here + there;
	bound.hi = bound.hi - here + there;
	bound.base = bound.base - here + there;
	bound.dims = targets->dims_count;
	if (dims > 0 && put_dims(targets, old, dims) < 0)
		return -ENOMEM;
	return put_bound(targets, &bound);
}

void ckpt_targets_share(struct ckpt_targets *targets)
{
	CKPT_ASSERT(!targets->sealed && targets->count > 0);
	targets->items[targets->count - 1].shared = true;
}

void ckpt_targets_keep(struct ckpt_targets *targets)
{
	targets->kept = targets->count;
	targets->kept_dims = targets->dims_count;
}

void ckpt_targets_forget(struct ckpt_targets *targets)
{
	targets->count = targets->kept;
	targets->dims_count = targets->kept_dims;
}

static int by_place(const void *a, const void *b)
{
	const struct ckpt_bound *x = a;
	const struct ckpt_bound *y = b;

	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return (x->hi > y->hi) - (x->hi < y->hi);
}

void ckpt_targets_rewind(struct ckpt_targets *targets)
{
	CKPT_ASSERT(targets->sealed);
	targets->next = 0;
	targets->active_count = 0;
}

void ckpt_targets_clear(struct ckpt_targets *targets)
{
	ckpt_free(targets->items);
	ckpt_free(targets->dims);
	ckpt_free(targets->active);
	ckpt_free(targets->wanted);
	ckpt_free(targets->shared);
	*targets = (struct ckpt_targets){0};
}

/* The shape of the array around a box, and the box in it. */
static const int64_t *around_of(const struct ckpt_targets *targets, const struct ckpt_bound *b)
{
	return b->boxed ? targets->dims + b->dims + (size_t)2 * b->ndim : NULL;
}

static struct ckpt_box box_of(const struct ckpt_targets *targets, const struct ckpt_bound *b)
{
	return ckpt_box_of(around_of(targets, b) + b->ndim, targets->dims + b->dims, b->ndim);
}

/* The first byte of a box at or after `at`, both as offsets in the shard; UINT64_MAX: none. */
static uint64_t seek(const struct ckpt_targets *targets, const struct ckpt_bound *b,
	const struct ckpt_box *box, uint64_t at)
{
	uint64_t from = at > b->base ? at - b->base : 0;
	uint64_t found = ckpt_box_seek(box, around_of(targets, b), b->item, from);

	return found == UINT64_MAX ? found : b->base + found;
}

/* Returns the length of the chunk if it was not marked before, else 0. */
static uint64_t mark_chunk(
	struct ckpt_targets *targets, const struct ckpt_layout *layout, size_t chunk)
{
	uint64_t bit = UINT64_C(1) << (chunk % 64);

	if (targets->wanted[chunk / 64] & bit)
		return 0;
	targets->wanted[chunk / 64] |= bit;
	return layout->chunks[chunk].length;
}

/* The first chunk from this one on that is not marked; one after the last has a bit, too. */
static size_t next_unmarked(const struct ckpt_targets *targets, size_t chunk)
{
	size_t word = chunk / 64;
	uint64_t left = ~targets->wanted[word] & (UINT64_MAX << (chunk % 64));

	while (left == 0)
		left = ~targets->wanted[++word];
	return word * 64 + (size_t)__builtin_ctzll(left);
}

/* Moves from one byte of the box to the next that is in no marked chunk. */
static uint64_t mark_box(
	struct ckpt_targets *targets, const struct ckpt_layout *layout, const struct ckpt_bound *b)
{
	struct ckpt_box box = box_of(targets, b);
	size_t chunk = ckpt_layout_chunk_at(layout, b->lo);
	uint64_t bytes = 0;

	for (;;) {
		chunk = next_unmarked(targets, chunk);
		if (chunk >= layout->chunk_count || layout->chunks[chunk].offset >= b->hi)
			return bytes;
		const struct ckpt_chunk *c = &layout->chunks[chunk];
		uint64_t at = seek(targets, b, &box, c->offset);
		if (at == UINT64_MAX)
			return bytes;
		if (at < c->offset + c->length)
			bytes += mark_chunk(targets, layout, chunk);
		else
			chunk = ckpt_layout_chunk_at(layout, at);
	}
}

/* Returns the total length of the chunks that it marks. */
static uint64_t mark(struct ckpt_targets *targets, const struct ckpt_layout *layout)
{
	uint64_t bytes = 0;
	size_t next = 0; /* chunks below it that any range wants are marked */

	for (size_t i = 0; i < targets->count; i++) {
		const struct ckpt_bound *b = &targets->items[i];

		if (b->boxed) {
			bytes += mark_box(targets, layout, b);
			continue;
		}
		size_t chunk = ckpt_layout_chunk_at(layout, b->lo);
		if (chunk < next)
			chunk = next;
		for (; chunk < layout->chunk_count && layout->chunks[chunk].offset < b->hi; chunk++)
			bytes += mark_chunk(targets, layout, chunk);
		next = chunk;
	}
	return bytes;
}

static void share_chunk(struct ckpt_targets *targets, size_t chunk)
{
	targets->shared[chunk / 64] |= targets->wanted[chunk / 64] & UINT64_C(1) << (chunk % 64);
}

/* A range begins or ends here: the rest of the chunk may be wanted elsewhere. */
static void share_edge(struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t at)
{
	if (at >= layout->bytes)
		return;
	size_t chunk = ckpt_layout_chunk_at(layout, at);
	if (layout->chunks[chunk].offset < at)
		share_chunk(targets, chunk);
}

/* The bytes between those of a box are assumed to be wanted elsewhere, and not here. */
static void share(struct ckpt_targets *targets, const struct ckpt_layout *layout)
{
	uint64_t end = 0;
	size_t next = 0; /* chunks below it that others want are marked */

	for (size_t i = 0; i < targets->count; i++) {
		const struct ckpt_bound *b = &targets->items[i];

		if (b->boxed || b->shared) {
			size_t chunk = ckpt_layout_chunk_at(layout, b->lo);
			if (chunk < next)
				chunk = next;
			for (; chunk < layout->chunk_count && layout->chunks[chunk].offset < b->hi;
				chunk++)
				share_chunk(targets, chunk);
			next = chunk;
		}
		if (b->boxed)
			continue;
		if (b->lo > end) {
			share_edge(targets, layout, end);
			share_edge(targets, layout, b->lo);
		}
		end = ckpt_max_u64(end, b->hi);
	}
	share_edge(targets, layout, end);
}

int ckpt_targets_seal(
	struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t *ret_bytes)
{
	CKPT_ASSERT(!targets->sealed);
	targets->active = ckpt_alloc_array(targets->count, sizeof(*targets->active));
	targets->wanted = ckpt_alloc_array(layout->chunk_count / 64 + 1, sizeof(*targets->wanted));
	targets->shared = ckpt_alloc_array(layout->chunk_count / 64 + 1, sizeof(*targets->shared));
	if (!targets->active || !targets->wanted || !targets->shared)
		return -ENOMEM;
	if (targets->count > 0)
		qsort(targets->items, targets->count, sizeof(*targets->items), by_place);
	targets->sealed = true;
	*ret_bytes = mark(targets, layout);
	share(targets, layout);
	return 0;
}

static struct ckpt_view view_of(const struct ckpt_targets *targets, const struct ckpt_bound *b)
{
	if (b->flat >= 0)
		return (struct ckpt_view){.data = b->data,
			.item = 1,
			.ndim = 1,
			.shape = &b->flat,
			.device = b->device};
	const int64_t *shape = targets->dims + b->dims;
	return (struct ckpt_view){.data = b->data,
		.item = b->item,
		.ndim = b->ndim,
		.shape = shape,
		.strides = shape + b->ndim,
		.device = b->device};
}

int ckpt_targets_check(const struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_devices *devices, struct ckpt_error *err)
{
	CKPT_ASSERT(targets->sealed);
	for (size_t i = 0; i < targets->count; i++) {
		const struct ckpt_bound *b = &targets->items[i];
		struct ckpt_error why = {.size = sizeof(why)};

		/* Contiguous bytes can go to any device, and the CPU can write to all of its own memory. */
		if (b->flat >= 0 || b->device == 0)
			continue;
		const struct ckpt_segment segment = {.view = view_of(targets, b),
			.offset = b->lo - b->base,
			.length = b->hi - b->lo,
			.staged = b->data,
			.around = around_of(targets, b)};
		int r = ckpt_device_takes(ckpt_devices_get(devices, b->device), &segment, &why);
		if (r == 0)
			continue;
		const struct ckpt_entry *entry = ckpt_layout_at(layout, b->lo);
		const char *name = entry ? entry->name : NULL;
		return ckpt_fail_at(err, r, &(struct ckpt_where){.tensor = name},
			"target for tensor '%.160s': %.768s", name ? name : "", why.message);
	}
	return 0;
}

static int put_segment(struct ckpt_segment_list *list, const struct ckpt_segment *segment)
{
	if (segment->length == 0)
		return 0;
	struct ckpt_segment *items =
		grow(list->items, &list->room, list->count + 1, sizeof(*items));
	if (!items)
		return -ENOMEM;
	list->items = items;
	list->items[list->count++] = *segment;
	return 0;
}

/* The segments of one target within the cut. */
static int cut_target(struct ckpt_targets *targets, size_t target, const struct ckpt_cut *cut,
	struct ckpt_segment_list *list)
{
	const struct ckpt_bound *b = &targets->items[target];
	uint64_t lo = ckpt_max_u64(b->lo, cut->lo);
	uint64_t hi = ckpt_min_u64(b->hi, cut->hi);

	if (b->boxed && lo < hi) {
		/* Earlier bytes may be in a chunk that is not wanted and not in memory. */
		struct ckpt_box box = box_of(targets, b);
		lo = seek(targets, b, &box, lo);
	}
	if (lo >= hi)
		return 0;
	struct ckpt_pieces p = ckpt_blocks_pieces(
		lo, hi - lo, cut->block_offset, cut->block_bytes, cut->before, cut->here);
	struct ckpt_segment segment = {.view = view_of(targets, b),
		.offset = lo - b->base,
		.length = p.head_length,
		.staged = p.head,
		.around = around_of(targets, b),
		.tensor = (uint32_t)target};
	int r = put_segment(list, &segment);
	if (r < 0)
		return r;
	segment.offset += p.head_length;
	segment.length = p.tail_length;
	segment.staged = p.tail;
	return put_segment(list, &segment);
}

int ckpt_targets_cut(
	struct ckpt_targets *targets, const struct ckpt_cut *cut, struct ckpt_segment_list *list)
{
	size_t kept = 0;

	CKPT_ASSERT(targets->sealed);
	while (targets->next < targets->count && targets->items[targets->next].lo < cut->hi)
		targets->active[targets->active_count++] = targets->next++;
	for (size_t i = 0; i < targets->active_count; i++) {
		size_t target = targets->active[i];
		int r = cut_target(targets, target, cut, list);
		if (r < 0)
			return r;
		if (targets->items[target].hi > cut->hi)
			targets->active[kept++] = target;
	}
	targets->active_count = kept;
	return 0;
}
