/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a save. */
#include "engine/save/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/core/copy_batch.h"
#include "format/dtype.h"

static uint64_t mix(uint64_t hash, const void *data, size_t length)
{
	return ckpt_hash64(data, length, hash);
}

/* Same descriptions, same fingerprint; pointers and strides do not count. */
static uint64_t fingerprint(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count)
{
	uint64_t hash = mix(count, &alias_count, sizeof(alias_count));

	for (size_t i = 0; i < count; i++) {
		const struct ckpt_tensor *t = &tensors[i];
		uint32_t kind[3] = {
			t->dtype, t->ndim, t->flags & (CKPT_TENSOR_SHARED | CKPT_TENSOR_VARIES)};
		hash = mix(hash, kind, sizeof(kind));
		hash = mix(hash, t->shape, t->ndim * sizeof(*t->shape));
		if (t->global_shape)
			hash = mix(hash, t->global_shape, t->ndim * sizeof(*t->shape));
		if (t->global_start)
			hash = mix(hash, t->global_start, t->ndim * sizeof(*t->shape));
		hash = mix(hash, t->name, strlen(t->name) + 1);
	}
	for (size_t i = 0; i < alias_count; i++) {
		hash = mix(hash, aliases[i].name, strlen(aliases[i].name) + 1);
		hash = mix(hash, aliases[i].target, strlen(aliases[i].target) + 1);
	}
	return hash;
}

static uint64_t mix_dims(uint64_t hash, const int64_t *dims, uint32_t ndim)
{
	return dims ? mix(hash, dims, ndim * sizeof(*dims)) : mix(hash, &ndim, sizeof(ndim));
}

static uint64_t mix_layout(uint64_t hash, const struct ckpt_layout *l)
{
	hash = mix(hash, &l->entry_count, sizeof(l->entry_count));
	for (size_t i = 0; i < l->entry_count; i++) {
		const struct ckpt_entry *e = &l->entries[i];
		uint32_t kind[3] = {e->dtype, e->ndim, (e->own > 0) + 2 * e->varies};

		hash = mix(hash, kind, sizeof(kind));
		hash = mix_dims(hash, e->shape, e->ndim);
		hash = mix_dims(hash, e->global_shape, e->ndim);
		hash = mix_dims(hash, e->global_start, e->ndim);
		hash = mix(hash, e->name, strlen(e->name) + 1);
	}
	for (size_t i = 0; i < l->alias_count; i++) {
		hash = mix(hash, l->aliases[i].name, strlen(l->aliases[i].name) + 1);
		hash = mix(hash, l->aliases[i].target, strlen(l->aliases[i].target) + 1);
	}
	return hash;
}

/* Two hashes of 64 bits, from two beginnings. */
static struct ckpt_digest digest_of(const struct ckpt_layout *layout)
{
	uint64_t halves[2] = {mix_layout(1, layout), mix_layout(2, layout)};

	return ckpt_digest_of(halves, sizeof(halves));
}

/* The same box of the same whole. The layout leaves out what says nothing. */
static bool same_box(const struct ckpt_entry *e, const struct ckpt_tensor *t)
{
	for (uint32_t i = 0; i < t->ndim; i++) {
		int64_t whole = t->global_shape ? t->global_shape[i] : t->shape[i];
		int64_t start = t->global_start ? t->global_start[i] : 0;

		if (e->shape[i] != t->shape[i] ||
			(e->global_shape ? e->global_shape[i] : e->shape[i]) != whole ||
			(e->global_start ? e->global_start[i] : 0) != start)
			return false;
	}
	return true;
}

bool ckpt_plan_fits(const struct ckpt_plan *plan, const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count)
{
	const struct ckpt_layout *layout = plan->layout;

	if (layout->entry_count != count || layout->alias_count != alias_count ||
		plan->fingerprint != fingerprint(tensors, count, aliases, alias_count))
		return false;
	/* 64 bits are not proof: look. */
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		const struct ckpt_tensor *t = &tensors[e->source];
		if (e->dtype != t->dtype || e->ndim != t->ndim || strcmp(e->name, t->name) != 0 ||
			!same_box(e, t) ||
			(e->own > 0) != ckpt_layout_has_own(layout, t, e->nbytes) ||
			e->varies != ((t->flags & CKPT_TENSOR_VARIES) != 0))
			return false;
	}
	for (size_t i = 0; i < alias_count; i++) {
		const struct ckpt_alias *a = &layout->aliases[plan->alias_places[i]];
		if (strcmp(a->name, aliases[i].name) != 0 ||
			strcmp(a->target, aliases[i].target) != 0)
			return false;
	}
	return true;
}

static int alias_order(const void *name, const void *alias)
{
	return strcmp(name, ((const struct ckpt_alias *)alias)->name);
}

/* Names are unique, and each is in the layout: it was made from them. */
static int place_aliases(struct ckpt_plan *plan, const struct ckpt_alias *aliases, size_t count)
{
	const struct ckpt_layout *layout = plan->layout;

	plan->alias_places = ckpt_alloc_array(count, sizeof(*plan->alias_places));
	if (!plan->alias_places)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_alias *at = bsearch(aliases[i].name, layout->aliases, count,
			sizeof(*layout->aliases), alias_order);
		CKPT_ASSERT(at);
		plan->alias_places[i] = (size_t)(at - layout->aliases);
	}
	return 0;
}

/* Cuts every entry at the ends of blocks. `out` NULL: only counts. */
static size_t cut_segments(const struct ckpt_plan *plan, struct ckpt_segment *out)
{
	const struct ckpt_layout *layout = plan->layout;
	size_t n = 0;

	for (size_t i = 0; i <= layout->entry_count; i++) {
		bool header = i == 0;
		const struct ckpt_entry *e = header ? NULL : &layout->entries[i - 1];
		uint64_t start = header ? 0 : e->offset;
		uint64_t end = header ? layout->header_bytes : e->offset + e->nbytes;
		for (uint64_t at = start; at < end;) {
			uint64_t stop = (at / plan->block_bytes + 1) * plan->block_bytes;
			stop = ckpt_min_u64(stop, end);
			if (out)
				out[n] = (struct ckpt_segment){.offset = at - start,
					.length = stop - at,
					.tensor = header ? CKPT_PLAN_HEADER : e->source};
			n++;
			at = stop;
		}
	}
	return n;
}

static void fill_blocks(struct ckpt_plan *plan)
{
	size_t segment = 0;

	for (size_t i = 0; i < plan->block_count; i++) {
		struct ckpt_plan_block *b = &plan->blocks[i];
		b->span = ckpt_blocks_span(plan->layout, plan->block_bytes, i);
		b->first_segment = segment;
		uint64_t bytes = 0;
		while (bytes < b->span.length) {
			bytes += plan->segments[segment].length;
			segment++;
		}
		CKPT_ASSERT(bytes == b->span.length);
		b->segment_count = segment - b->first_segment;
	}
	CKPT_ASSERT(segment == plan->segment_count);
}

int ckpt_plan_build(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, uint64_t chunk_bytes,
	uint32_t block_bytes, struct ckpt_error *err, struct ckpt_plan **ret_plan)
{
	struct ckpt_plan *plan = ckpt_alloc(sizeof(*plan));
	if (!plan)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	plan->block_bytes = block_bytes;
	plan->fingerprint = fingerprint(tensors, count, aliases, alias_count);
	int r = ckpt_layout_build(
		tensors, count, aliases, alias_count, chunk_bytes, err, &plan->layout);
	if (r < 0)
		goto fail;
	plan->digest = digest_of(plan->layout);
	plan->segment_count = cut_segments(plan, NULL);
	plan->block_count = ckpt_blocks_count(plan->layout, block_bytes);
	plan->segments = ckpt_alloc_array(plan->segment_count, sizeof(*plan->segments));
	plan->blocks = ckpt_alloc_array(plan->block_count, sizeof(*plan->blocks));
	if (!plan->segments || !plan->blocks || place_aliases(plan, aliases, alias_count) < 0) {
		r = ckpt_fail(err, -ENOMEM, "out of memory for the plan of %zu tensors", count);
		goto fail;
	}
	(void)cut_segments(plan, plan->segments);
	fill_blocks(plan);
	*ret_plan = plan;
	return 0;
fail:
	ckpt_plan_free(plan);
	return r;
}

void ckpt_plan_free(struct ckpt_plan *plan)
{
	if (!plan)
		return;
	ckpt_layout_free(plan->layout);
	ckpt_free(plan->segments);
	ckpt_free(plan->blocks);
	ckpt_free(plan->alias_places);
	ckpt_free(plan);
}

void ckpt_plan_aim(struct ckpt_plan *plan, const struct ckpt_tensor *tensors)
{
	plan->header_shape = (int64_t)plan->layout->header_bytes;
	for (size_t i = 0; i < plan->segment_count; i++) {
		struct ckpt_segment *s = &plan->segments[i];
		if (s->tensor == CKPT_PLAN_HEADER) {
			s->view = (struct ckpt_view){.data = plan->layout->header,
				.item = 1,
				.ndim = 1,
				.shape = &plan->header_shape};
			continue;
		}
		const struct ckpt_tensor *t = &tensors[s->tensor];
		s->view = (struct ckpt_view){.data = (char *)(uintptr_t)t->data,
			.item = ckpt_dtype_bytes(t->dtype),
			.ndim = t->ndim,
			.shape = t->shape,
			.strides = t->strides,
			.device = (uint32_t)ckpt_devices_number(t->device, t->device_index)};
		s->eager = t->flags & CKPT_TENSOR_EAGER;
	}
	plan->devices = 0;
	for (size_t i = 0; i < plan->block_count; i++) {
		struct ckpt_plan_block *b = &plan->blocks[i];
		b->devices = ckpt_copy_batch_devices(
			&plan->segments[b->first_segment], b->segment_count);
		plan->devices |= b->devices;
		b->eager = false;
		for (size_t k = 0; k < b->segment_count && !b->eager; k++) {
			uint32_t tensor = plan->segments[b->first_segment + k].tensor;
			b->eager = tensor != CKPT_PLAN_HEADER &&
				   (tensors[tensor].flags & CKPT_TENSOR_EAGER);
		}
	}
}
