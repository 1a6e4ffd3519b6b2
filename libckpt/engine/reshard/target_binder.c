/* SPDX-License-Identifier: Apache-2.0 */
/* Divides what a caller wants of a step into what is wanted of each shard. */
#include "engine/reshard/target_binder.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/devices.h"
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

/* Whether a rank elsewhere may hold what no rank here holds. */
static bool may_be_elsewhere(const struct ckpt_target_binder *b)
{
	return b->elsewhere && b->elsewhere->count > 0;
}

static int refuse_elsewhere(const struct ckpt_target_binder *b, const char *name, const char *part,
	struct ckpt_error *err)
{
	char what[384];

	(void)snprintf(what, sizeof(what),
		"target for tensor '%.160s': no rank whose files are here holds %s", name, part);
	return ckpt_shard_location_fail(
		b->elsewhere, ckpt_shard_location_first(b->elsewhere), name, what, err);
}

static int check_fields(const struct ckpt_target *t, struct ckpt_error *err)
{
	if (!t->name)
		return ckpt_fail(err, -EINVAL, "a target has no tensor name");
	if (t->flags & ~CKPT_TARGET_SHARED)
		return refuse(err, -EINVAL, t->name,
			"flags are 0x%x, but only CKPT_TARGET_* are allowed", t->flags);
	if (ckpt_devices_number(t->device, t->device_index) < 0)
		return refuse(err, -EINVAL, t->name, "unknown device kind %u, index %d", t->device,
			t->device_index);
	if (t->dtype && !ckpt_dtype_name(t->dtype))
		return refuse(err, -EINVAL, t->name, "%u is not an element type", t->dtype);
	if (t->ndim > CKPT_NDIM_MAX || (t->ndim > 0 && !t->shape))
		return refuse(err, -EINVAL, t->name,
			"%u dimensions and %s shape: at most %d dimensions are allowed, with a "
			"shape",
			t->ndim, t->shape ? "a" : "no", CKPT_NDIM_MAX);
	if (t->strides && !t->shape)
		return refuse(err, -EINVAL, t->name, "strides need a shape");
	if (t->strides && t->offset != 0)
		return refuse(err, -EINVAL, t->name,
			"strides need the whole tensor, but the offset is %llu",
			(unsigned long long)t->offset);
	if (t->start && (t->offset != 0 || t->length != 0))
		return refuse(err, -EINVAL, t->name,
			"the target has both a box and %llu bytes from byte %llu on: use one of "
			"them",
			(unsigned long long)t->length, (unsigned long long)t->offset);
	return 0;
}

/* Checks that the box is within the tensor. */
static int check_box(
	const struct ckpt_target *t, const struct ckpt_entry *whole, struct ckpt_error *err)
{
	char have[CKPT_SHAPE_CHARS];
	char start[CKPT_SHAPE_CHARS];
	char shape[CKPT_SHAPE_CHARS];
	bool within = t->ndim == whole->ndim;

	for (uint32_t i = 0; within && i < t->ndim; i++)
		within = t->start[i] >= 0 && t->shape[i] >= 0 && t->start[i] <= whole->shape[i] &&
			 t->shape[i] <= whole->shape[i] - t->start[i];
	if (within)
		return 0;
	return refuse(err, CKPT_EMISMATCH, t->name,
		"the step holds shape %s, the target asks for a box of %s from %s on",
		ckpt_shape_text(whole->shape, whole->ndim, have),
		ckpt_shape_text(t->shape, t->ndim, shape),
		ckpt_shape_text(t->start, t->ndim, start));
}

static int check_match(const struct ckpt_target_binder *b, const struct ckpt_target *t,
	const struct ckpt_entry *entry, struct ckpt_error *err)
{
	char have[CKPT_SHAPE_CHARS];
	char want[CKPT_SHAPE_CHARS];

	if (!entry && may_be_elsewhere(b))
		return refuse_elsewhere(b, t->name, "it", err);
	if (!entry)
		return refuse(err, CKPT_EMISMATCH, t->name, "the step has no tensor of that name");
	if (t->dtype && t->dtype != entry->dtype)
		return refuse(err, CKPT_EMISMATCH, t->name, "the step holds %s, the target is %s",
			ckpt_dtype_name(entry->dtype), ckpt_dtype_name(t->dtype));
	if (t->start)
		return check_box(t, entry, err);
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
			"strides need the whole tensor of %llu bytes, but the target has %llu",
			(unsigned long long)entry->nbytes, (unsigned long long)t->length);
	return 0;
}

/* The strides must stay within the address space, and no two elements may share memory. */
static int check_strides(const struct ckpt_target *t, uint32_t item, struct ckpt_error *err)
{
	struct ckpt_view view = {.data = t->data,
		.item = item,
		.ndim = t->ndim,
		.shape = t->shape,
		.strides = t->strides};
	int stray = ckpt_view_stray(&view);

	for (uint32_t i = 0; i < t->ndim; i++)
		if (t->shape[i] > 1 && t->strides[i] == 0)
			return refuse(err, -EINVAL, t->name,
				"stride 0 in dimension %u: its elements would share memory", i);
	if (stray >= 0)
		return refuse(err, -EINVAL, t->name,
			"stride %lld in dimension %d exceeds the address space",
			(long long)t->strides[stray], stray);
	if (ckpt_view_shares(&view))
		return refuse(err, -EINVAL, t->name,
			"its strides overlap: its elements would share memory");
	return 0;
}

/* Of several ranks with the same box, one that is read anyway, else the first. */
static const struct ckpt_part *choose(const struct ckpt_target_binder *b,
	const struct ckpt_part *first, const struct ckpt_part *end)
{
	for (const struct ckpt_part *p = first; p < end && ckpt_part_same(first, p); p++)
		if (b->ranks[p->rank].count > 0)
			return p;
	return first;
}

static int fail_memory(struct ckpt_error *err)
{
	return ckpt_fail(err, -ENOMEM, "out of memory");
}

/* All parts that overlap the box, and possibly others. -ENOMEM. */
static int find_parts(const struct ckpt_target_binder *b, const struct ckpt_entry *whole,
	const struct ckpt_box *box, const struct ckpt_part **ret_parts, size_t *ret_count)
{
	if (b->catalog_map)
		return ckpt_catalog_map_find(b->catalog_map, whole, box, ret_parts, ret_count);
	*ret_parts = ckpt_tensor_map_parts(b->tensor_map, whole, ret_count);
	return 0;
}

/* A part that is the whole tensor, which is not empty; NULL: there is none. -ENOMEM. */
static int find_whole(const struct ckpt_target_binder *b, const struct ckpt_entry *whole,
	const struct ckpt_part **ret_part)
{
	struct ckpt_box all = ckpt_box_of(NULL, whole->shape, whole->ndim);
	const struct ckpt_part *parts = NULL;
	size_t count = 0;
	int r = find_parts(b, whole, &all, &parts, &count);

	*ret_part = NULL;
	for (size_t i = 0; i < count && !*ret_part; i++)
		if (parts[i].entry->nbytes == whole->nbytes)
			*ret_part = choose(b, &parts[i], parts + count);
	return r;
}

/* Index of the tensor of a checked target. */
static uint32_t number_of(const struct ckpt_target *t)
{
	return (uint32_t)ckpt_devices_number(t->device, t->device_index);
}

/* Adds a tensor that one rank holds completely, or a byte range of it. */
static int put_whole(struct ckpt_target_binder *b, const struct ckpt_target *t, uint64_t length,
	const struct ckpt_part *part, struct ckpt_error *err)
{
	int64_t bytes = (int64_t)length;
	struct ckpt_view flat = {
		.data = t->data, .item = 1, .ndim = 1, .shape = &bytes, .device = number_of(t)};
	struct ckpt_view strided = {.data = t->data,
		.item = ckpt_dtype_bytes(part->entry->dtype),
		.ndim = t->ndim,
		.shape = t->shape,
		.strides = t->strides,
		.device = number_of(t)};
	struct ckpt_targets *targets = &b->ranks[part->rank];
	int r = ckpt_targets_put(
		targets, part->entry->offset + t->offset, t->strides ? &strided : &flat);

	if (r < 0)
		return fail_memory(err);
	if (t->flags & CKPT_TARGET_SHARED)
		ckpt_targets_share(targets);
	return 0;
}

/* Adds the part of one cut, with its place in the target's memory. */
static int put_cut(struct ckpt_target_binder *b, const struct ckpt_view *memory,
	const struct ckpt_box *wanted, const struct ckpt_box_cover_cut *cut,
	const struct ckpt_part *part)
{
	struct ckpt_box in = cut->box;
	struct ckpt_view view = *memory;

	view.shape = in.shape;
	for (uint32_t i = 0; i < in.ndim; i++) {
		int64_t skipped = in.start[i] - wanted->start[i];

		/* The stride of a dimension of size one is not used. */
		if (skipped > 0)
			view.data += skipped * memory->strides[i] * (int64_t)memory->item;
		in.start[i] -= part->entry->global_start ? part->entry->global_start[i] : 0;
	}
	struct ckpt_targets *targets = &b->ranks[part->rank];
	const int64_t *shape = part->entry->shape;
	if (ckpt_box_together(&in, shape, view.item))
		return ckpt_targets_put(targets,
			part->entry->offset + ckpt_box_seek(&in, shape, view.item, 0), &view);
	return ckpt_targets_put_box(targets, part->entry->offset, &view, shape, &in);
}

static int put_box(struct ckpt_target_binder *b, const struct ckpt_target *t,
	const struct ckpt_entry *whole, struct ckpt_error *err)
{
	struct ckpt_box wanted =
		ckpt_box_of(t->start, t->start ? t->shape : whole->shape, whole->ndim);
	struct ckpt_view view = {.data = t->data,
		.item = ckpt_dtype_bytes(whole->dtype),
		.ndim = wanted.ndim,
		.shape = wanted.shape,
		.strides = t->strides,
		.device = number_of(t)};
	struct ckpt_box missing;
	int64_t strides[CKPT_NDIM_MAX] = {0};
	char text[CKPT_BOX_CHARS];
	const struct ckpt_part *parts = NULL;
	size_t count = 0;
	int64_t stride = 1;

	for (uint32_t i = wanted.ndim; i-- > 0; stride *= wanted.shape[i])
		strides[i] = stride;
	if (!view.strides)
		view.strides = strides;
	int r = find_parts(b, whole, &wanted, &parts, &count);
	if (r == 0)
		r = ckpt_box_cover_find(&b->cover, parts, count, &wanted, &missing);
	if (r > 0 && may_be_elsewhere(b))
		return refuse_elsewhere(b, t->name, ckpt_box_text(&missing, text), err);
	if (r > 0)
		return refuse(err, CKPT_EMISMATCH, t->name,
			"no rank of the step holds %s of it, which the target asks for",
			ckpt_box_text(&missing, text));
	if (r == -E2BIG)
		return refuse(err, CKPT_EUNSUPPORTED, t->name,
			"the boxes that the ranks hold of it overlap in more ways than this "
			"version puts together");
	for (size_t i = 0; r == 0 && i < b->cover.count; i++) {
		const struct ckpt_box_cover_cut *cut = &b->cover.cuts[i];
		const struct ckpt_part *part = choose(b, cut->part, parts + count);

		r = put_cut(b, &view, &wanted, cut, part);
		if (r == 0 && t->flags & CKPT_TARGET_SHARED)
			ckpt_targets_share(&b->ranks[part->rank]);
	}
	return r < 0 ? fail_memory(err) : 0;
}

uint64_t ckpt_target_binder_bytes(const struct ckpt_target *target, const struct ckpt_entry *whole)
{
	if (!target->start)
		return target->length ? target->length : whole->nbytes - target->offset;
	struct ckpt_box wanted = ckpt_box_of(target->start, target->shape, target->ndim);
	return ckpt_box_volume(&wanted) * ckpt_dtype_bytes(whole->dtype);
}

static int add_one(
	struct ckpt_target_binder *b, const struct ckpt_target *t, struct ckpt_error *err)
{
	int r = check_fields(t, err);
	if (r < 0)
		return r;
	const struct ckpt_entry *whole = ckpt_layout_find(b->names, t->name);
	r = check_match(b, t, whole, err);
	if (r < 0)
		return r;
	if (t->strides)
		r = check_strides(t, ckpt_dtype_bytes(whole->dtype), err);
	if (r < 0)
		return r;
	uint64_t length = ckpt_target_binder_bytes(t, whole);
	if (length == 0)
		return 0;
	if (!t->data)
		return refuse(err, -EINVAL, t->name, "it has no memory (data is NULL)");
	const struct ckpt_part *part = NULL;
	if (!t->start && find_whole(b, whole, &part) < 0)
		return fail_memory(err);
	if (part)
		return put_whole(b, t, length, part, err);
	if (!t->start && length != whole->nbytes)
		return refuse(err, CKPT_EUNSUPPORTED, t->name,
			"it is stored in pieces, and %llu bytes from byte %llu on may be in "
			"several: ask for a box of it, by start and shape",
			(unsigned long long)length, (unsigned long long)t->offset);
	return put_box(b, t, whole, err);
}

static int init(struct ckpt_target_binder *binder, uint32_t world)
{
	binder->world = world;
	binder->ranks = ckpt_alloc_array(world, sizeof(*binder->ranks));
	return binder->ranks ? 0 : -ENOMEM;
}

int ckpt_target_binder_init(
	struct ckpt_target_binder *binder, const struct ckpt_tensor_map *tensor_map, uint32_t world)
{
	*binder = (struct ckpt_target_binder){.names = tensor_map->names, .tensor_map = tensor_map};
	return init(binder, world);
}

int ckpt_target_binder_init_holders(
	struct ckpt_target_binder *binder, struct ckpt_catalog_map *catalog_map, uint32_t world)
{
	*binder = (struct ckpt_target_binder){
		.names = catalog_map->names, .catalog_map = catalog_map};
	return init(binder, world);
}

int ckpt_target_binder_add(struct ckpt_target_binder *binder, const struct ckpt_target *add,
	size_t count, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < count; i++)
		r = add_one(binder, &add[i], err);
	for (uint32_t i = 0; i < binder->world; i++) {
		if (r < 0)
			ckpt_targets_forget(&binder->ranks[i]);
		else
			ckpt_targets_keep(&binder->ranks[i]);
	}
	return r;
}

void ckpt_target_binder_clear(struct ckpt_target_binder *binder)
{
	for (uint32_t i = 0; binder->ranks && i < binder->world; i++)
		ckpt_targets_clear(&binder->ranks[i]);
	ckpt_free(binder->ranks);
	ckpt_box_cover_clear(&binder->cover);
	*binder = (struct ckpt_target_binder){0};
}
