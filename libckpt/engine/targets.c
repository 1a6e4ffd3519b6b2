/* SPDX-License-Identifier: Apache-2.0 */
/* Checking targets, and sweeping over them in the order of the shard. */
#include "engine/targets.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/box.h"
#include "format/dtype.h"

CKPT_PRINTF(4, 5)
static int refuse(struct ckpt_error *err, int code, const char *name, const char *fmt, ...)
{
	char text[768];
	va_list args;

	va_start(args, fmt);
	if (vsnprintf(text, sizeof(text), fmt, args) < 0)
		text[0] = 0;
	va_end(args);
	return ckpt_fail_at(err, code, &(struct ckpt_where){.tensor = name},
		"target for tensor '%.160s': %s", name, text);
}

static int check_fields(const struct ckpt_target *t, struct ckpt_error *err)
{
	if (!t->name)
		return ckpt_fail(err, -EINVAL, "a target has no tensor name");
	if (t->device != CKPT_DEVICE_HOST)
		return refuse(err, CKPT_EUNSUPPORTED, t->name,
			"device kind %u is not supported by this build: bind host memory",
			t->device);
	if (t->dtype && !ckpt_dtype_name(t->dtype))
		return refuse(err, -EINVAL, t->name, "%u is no element type", t->dtype);
	if (t->ndim > CKPT_NDIM_MAX || (t->ndim > 0 && !t->shape))
		return refuse(err, -EINVAL, t->name,
			"%u dimensions and %s shape: at most %d can be, with their shape", t->ndim,
			t->shape ? "a" : "no", CKPT_NDIM_MAX);
	if (t->strides && !t->shape)
		return refuse(err, -EINVAL, t->name, "strides need a shape");
	if (t->strides && t->offset != 0)
		return refuse(err, -EINVAL, t->name,
			"strides need the whole tensor, and offset %llu was asked for",
			(unsigned long long)t->offset);
	return 0;
}

static int check_match(
	const struct ckpt_target *t, const struct ckpt_entry *entry, struct ckpt_error *err)
{
	char have[CKPT_SHAPE_CHARS];
	char want[CKPT_SHAPE_CHARS];

	if (!entry)
		return refuse(
			err, CKPT_EMISMATCH, t->name, "the step holds no tensor of that name");
	if (t->dtype && t->dtype != entry->dtype)
		return refuse(err, CKPT_EMISMATCH, t->name, "the step holds %s, the target is %s",
			ckpt_dtype_name(entry->dtype), ckpt_dtype_name(t->dtype));
	if (t->shape && (t->ndim != entry->ndim ||
				(t->ndim > 0 && memcmp(t->shape, entry->shape,
							t->ndim * sizeof(*t->shape)) != 0)))
		return refuse(err, CKPT_EMISMATCH, t->name,
			"the step holds shape %s, the target has %s",
			ckpt_shape_text(entry->shape, entry->ndim, have),
			ckpt_shape_text(t->shape, t->ndim, want));
	if (t->offset > entry->nbytes || t->length > entry->nbytes - t->offset)
		return refuse(err, CKPT_EMISMATCH, t->name,
			"the step holds %llu bytes, the target asks for %llu from byte %llu on",
			(unsigned long long)entry->nbytes, (unsigned long long)t->length,
			(unsigned long long)t->offset);
	if (t->strides && t->length != 0 && t->length != entry->nbytes)
		return refuse(err, -EINVAL, t->name,
			"strides need the whole tensor of %llu bytes, and %llu were asked for",
			(unsigned long long)entry->nbytes, (unsigned long long)t->length);
	return 0;
}

/* The strides stay within what a pointer can span, and no two elements share memory by a zero stride. */
static int check_strides(const struct ckpt_target *t, uint32_t item, struct ckpt_error *err)
{
	struct ckpt_view view = {t->data, item, t->ndim, t->shape, t->strides};
	int stray = ckpt_view_stray(&view);

	for (uint32_t i = 0; i < t->ndim; i++)
		if (t->shape[i] > 1 && t->strides[i] == 0)
			return refuse(err, -EINVAL, t->name,
				"stride 0 in dimension %u: its elements would share memory", i);
	if (stray >= 0)
		return refuse(err, -EINVAL, t->name,
			"stride %lld in dimension %d leaves the address space",
			(long long)t->strides[stray], stray);
	return 0;
}

/* Room for `need` items: where they are now, or NULL when there is no memory (they stay as they were). */
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

static int put_dims(struct ckpt_targets *targets, const struct ckpt_target *t)
{
	size_t bytes = t->ndim * sizeof(*targets->dims);

	int64_t *dims = grow(targets->dims, &targets->dims_room,
		targets->dims_count + 2 * (size_t)t->ndim, sizeof(*dims));
	if (!dims)
		return -ENOMEM;
	targets->dims = dims;
	memcpy(targets->dims + targets->dims_count, t->shape, bytes);
	memcpy(targets->dims + targets->dims_count + t->ndim, t->strides, bytes);
	targets->dims_count += 2 * (size_t)t->ndim;
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

static int add_one(struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_target *t, struct ckpt_error *err)
{
	int r = check_fields(t, err);
	if (r < 0)
		return r;
	const struct ckpt_entry *entry = ckpt_layout_find(layout, t->name);
	r = check_match(t, entry, err);
	if (r < 0)
		return r;
	uint32_t item = ckpt_dtype_bytes(entry->dtype);
	if (t->strides)
		r = check_strides(t, item, err);
	if (r < 0)
		return r;
	uint64_t length = t->length ? t->length : entry->nbytes - t->offset;
	if (length == 0)
		return 0;
	if (!t->data)
		return refuse(err, -EINVAL, t->name, "it has no memory (data is NULL)");

	struct ckpt_bound bound = {.lo = entry->offset + t->offset,
		.hi = entry->offset + t->offset + length,
		.data = t->data,
		.item = item,
		.ndim = t->ndim,
		.dims = targets->dims_count,
		.flat = (int64_t)length};
	if (t->strides) {
		struct ckpt_view view = {t->data, item, t->ndim, t->shape, t->strides};
		if (!ckpt_view_contiguous(&view))
			bound.flat = -1;
	}
	if ((bound.flat < 0 && put_dims(targets, t) < 0) || put_bound(targets, &bound) < 0)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	return 0;
}

int ckpt_targets_add(struct ckpt_targets *targets, const struct ckpt_layout *layout,
	const struct ckpt_target *add, size_t count, struct ckpt_error *err)
{
	size_t old_count = targets->count;
	size_t old_dims = targets->dims_count;

	CKPT_ASSERT(!targets->sealed);
	for (size_t i = 0; i < count; i++) {
		int r = add_one(targets, layout, &add[i], err);
		if (r < 0) {
			targets->count = old_count;
			targets->dims_count = old_dims;
			return r;
		}
	}
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct ckpt_bound *x = a;
	const struct ckpt_bound *y = b;

	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return (x->hi > y->hi) - (x->hi < y->hi);
}

int ckpt_targets_seal(struct ckpt_targets *targets)
{
	CKPT_ASSERT(!targets->sealed);
	targets->active = ckpt_alloc_array(targets->count, sizeof(*targets->active));
	if (!targets->active)
		return -ENOMEM;
	if (targets->count > 0)
		qsort(targets->items, targets->count, sizeof(*targets->items), by_place);
	targets->sealed = true;
	return 0;
}

void ckpt_targets_clear(struct ckpt_targets *targets)
{
	ckpt_free(targets->items);
	ckpt_free(targets->dims);
	ckpt_free(targets->active);
	*targets = (struct ckpt_targets){0};
}

uint64_t ckpt_targets_want(
	const struct ckpt_targets *targets, const struct ckpt_layout *layout, uint64_t *wanted)
{
	uint64_t bytes = 0;
	size_t next = 0; /* chunks below have been seen to */

	CKPT_ASSERT(targets->sealed);
	for (size_t i = 0; i < targets->count; i++) {
		const struct ckpt_bound *b = &targets->items[i];
		size_t first = ckpt_layout_chunk_at(layout, b->lo);

		for (next = next > first ? next : first;
			next < layout->chunk_count && layout->chunks[next].offset < b->hi; next++) {
			wanted[next / 64] |= UINT64_C(1) << (next % 64);
			bytes += layout->chunks[next].length;
		}
	}
	return bytes;
}

static struct ckpt_view view_of(const struct ckpt_targets *targets, const struct ckpt_bound *b)
{
	if (b->flat >= 0)
		return (struct ckpt_view){.data = b->data, .item = 1, .ndim = 1, .shape = &b->flat};
	const int64_t *shape = targets->dims + b->dims;
	return (struct ckpt_view){.data = b->data,
		.item = b->item,
		.ndim = b->ndim,
		.shape = shape,
		.strides = shape + b->ndim};
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

/* The pieces of one target within the cut. */
static int cut_target(struct ckpt_targets *targets, size_t target, const struct ckpt_cut *cut,
	struct ckpt_segment_list *list)
{
	const struct ckpt_bound *b = &targets->items[target];
	uint64_t lo = ckpt_max_u64(b->lo, cut->lo);
	uint64_t hi = ckpt_min_u64(b->hi, cut->hi);

	if (lo >= hi)
		return 0;
	struct ckpt_pieces p = ckpt_blocks_pieces(
		lo, hi - lo, cut->block_offset, cut->block_bytes, cut->before, cut->here);
	struct ckpt_segment segment = {.view = view_of(targets, b),
		.offset = lo - b->lo,
		.length = p.head_length,
		.staged = p.head,
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
