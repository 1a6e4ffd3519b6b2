/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the layout of a shard from the caller's tensors. */
#include "format/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/utf8.h"
#include "format/dtype.h"
#include "format/safetensors.h"

#define NAME_SHOWN 200 /* bytes of a name in a message */

/* Bytes of a name to show, cut at a character. */
static int shown(const char *name)
{
	return (int)ckpt_utf8_cut(name, strnlen(name, NAME_SHOWN + 4), NAME_SHOWN);
}

static int refuse(
	struct ckpt_error *err, int code, const char *what, const char *name, const char *why)
{
	struct ckpt_where where = {.tensor = name};

	return ckpt_fail_at(err, code, &where, "%s '%.*s' %s", what, shown(name), name, why);
}

static int check_name(const char *what, const char *name, size_t number, struct ckpt_error *err)
{
	const char *bad = name ? ckpt_layout_bad_name(name, strnlen(name, CKPT_NAME_MAX)) : NULL;

	if (!name)
		return ckpt_fail(err, -EINVAL, "%s number %zu has no name", what, number);
	if (*name == 0)
		return ckpt_fail(err, -EINVAL, "the name of %s number %zu is empty", what, number);
	if (!bad)
		return 0;
	return ckpt_fail_at(err, -EINVAL, &(struct ckpt_where){.tensor = name},
		"the name '%.*s' of a %s %s: give it another", shown(name), name, what, bad);
}

const char *ckpt_layout_bad_box(const struct ckpt_tensor *tensor)
{
	uint64_t bytes = ckpt_dtype_bytes(tensor->dtype);

	if (!tensor->global_shape)
		return tensor->global_start ? "has a global_start and no global_shape" : NULL;
	for (uint32_t i = 0; i < tensor->ndim; i++) {
		int64_t start = tensor->global_start ? tensor->global_start[i] : 0;
		int64_t whole = tensor->global_shape[i];

		if (start < 0 || whole < 0 || start > whole || tensor->shape[i] > whole - start)
			return "has a box that exceeds its global_shape";
		if (__builtin_mul_overflow(bytes, (uint64_t)(whole > 0 ? whole : 1), &bytes) ||
			bytes > INT64_MAX)
			return "has a global_shape of more than 2^63-1 bytes";
	}
	return NULL;
}

static int check_tensor(const struct ckpt_tensor *t, size_t number, struct ckpt_error *err)
{
	uint64_t nbytes;
	int r = check_name("tensor", t->name, number, err);

	if (r < 0)
		return r;
	if (ckpt_dtype_bytes(t->dtype) == 0)
		return refuse(err, -EINVAL, "tensor", t->name,
			"has a dtype that is not in enum ckpt_dtype");
	if (t->ndim > CKPT_NDIM_MAX)
		return refuse(
			err, -EINVAL, "tensor", t->name, "has more than 16 dimensions: reshape it");
	if (t->ndim > 0 && !t->shape)
		return refuse(err, -EINVAL, "tensor", t->name, "has dimensions but no shape");
	for (uint32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return refuse(err, -EINVAL, "tensor", t->name,
				"has a shape with a negative size");
	}
	if (!ckpt_layout_box_bytes(t->dtype, t->shape, t->ndim, &nbytes))
		return refuse(err, -EINVAL, "tensor", t->name,
			"has a shape of more bytes than a shard may hold (2^46)");
	const char *bad = ckpt_layout_bad_box(t);
	return bad ? refuse(err, -EINVAL, "tensor", t->name, bad) : 0;
}

/* Sizes of the layout's memory pools. */
struct pools {
	size_t texts;
	size_t dims;
};

static int check_all(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, struct pools *ret_pools,
	struct ckpt_error *err)
{
	struct pools pools = {0};
	int r;

	if (count > CKPT_TENSORS_MAX || alias_count > CKPT_TENSORS_MAX - count)
		return ckpt_fail(err, -E2BIG,
			"%zu tensors and %zu aliases; a shard holds at most %d: join small ones",
			count, alias_count, CKPT_TENSORS_MAX);
	for (size_t i = 0; i < count; i++) {
		r = check_tensor(&tensors[i], i, err);
		if (r < 0)
			return r;
		pools.texts += strlen(tensors[i].name) + 1;
		pools.dims += tensors[i].ndim;
		if (tensors[i].global_shape)
			pools.dims += (size_t)2 * tensors[i].ndim;
	}
	for (size_t i = 0; i < alias_count; i++) {
		r = check_name("alias", aliases[i].name, i, err);
		if (r == 0)
			r = check_name("target of an alias", aliases[i].target, i, err);
		if (r < 0)
			return r;
		pools.texts += strlen(aliases[i].name) + strlen(aliases[i].target) + 2;
	}
	*ret_pools = pools;
	return 0;
}

static int by_order(const void *a, const void *b)
{
	return ckpt_layout_order(a, b);
}

static int by_name(const void *a, const void *b)
{
	const struct ckpt_alias *one = a;
	const struct ckpt_alias *two = b;

	return strcmp(one->name, two->name);
}

static char *take_text(char **at, const char *text)
{
	size_t size = strlen(text) + 1;
	char *taken = memcpy(*at, text, size);

	*at += size;
	return taken;
}

static int64_t *take_dims(int64_t **at, const int64_t *dims, uint32_t ndim)
{
	int64_t *taken = *at;

	if (ndim > 0)
		memcpy(taken, dims, ndim * sizeof(*dims));
	*at += ndim;
	return taken;
}

/* Trivial boxes become NULL, so that equal boxes are described alike. */
static void take_box(int64_t **at, const struct ckpt_tensor *t, struct ckpt_entry *e)
{
	bool starts = false;

	if (!t->global_shape || t->ndim == 0 ||
		memcmp(t->global_shape, t->shape, t->ndim * sizeof(*t->shape)) == 0)
		return;
	e->global_shape = take_dims(at, t->global_shape, t->ndim);
	for (uint32_t i = 0; t->global_start && i < t->ndim; i++)
		starts = starts || t->global_start[i] != 0;
	if (starts)
		e->global_start = take_dims(at, t->global_start, t->ndim);
}

/* Copies the descriptions and sorts them. Offsets are set later. */
static void fill(struct ckpt_layout *layout, const struct ckpt_tensor *tensors,
	const struct ckpt_alias *aliases)
{
	char *text = layout->texts;
	int64_t *dim = layout->dims;

	for (size_t i = 0; i < layout->entry_count; i++) {
		const struct ckpt_tensor *t = &tensors[i];
		struct ckpt_entry *e = &layout->entries[i];
		bool fits;

		*e = (struct ckpt_entry){.name = take_text(&text, t->name),
			.dtype = t->dtype,
			.ndim = t->ndim,
			.shape = take_dims(&dim, t->shape, t->ndim),
			.varies = t->flags & CKPT_TENSOR_VARIES,
			.source = (uint32_t)i};
		take_box(&dim, t, e);
		fits = ckpt_layout_box_bytes(e->dtype, e->shape, e->ndim, &e->nbytes);
		CKPT_ASSERT(fits);
	}
	for (size_t i = 0; i < layout->alias_count; i++) {
		layout->aliases[i].name = take_text(&text, aliases[i].name);
		layout->aliases[i].target = take_text(&text, aliases[i].target);
	}
	qsort(layout->entries, layout->entry_count, sizeof(*layout->entries), by_order);
	qsort(layout->aliases, layout->alias_count, sizeof(*layout->aliases), by_name);
}

/* Allocates the digests of single tensors, numbered in the order of the shard. */
static int make_digests(struct ckpt_layout *layout, const struct ckpt_tensor *tensors)
{
	for (size_t i = 0; i < layout->entry_count; i++) {
		struct ckpt_entry *e = &layout->entries[i];

		if (ckpt_layout_has_own(layout, &tensors[e->source], e->nbytes))
			e->own = (uint32_t)++layout->digest_count;
	}
	layout->digests = ckpt_alloc_array(layout->digest_count, sizeof(*layout->digests));
	return layout->digests ? 0 : -ENOMEM;
}

static int check_names(const struct ckpt_layout *layout, struct ckpt_error *err)
{
	const char *twice = ckpt_layout_twice(layout);
	const struct ckpt_alias *loose = ckpt_layout_loose(layout);

	if (twice)
		return refuse(err, -EEXIST, "name", twice,
			"is given to two tensors or aliases: names must be unique within a save");
	if (loose)
		return ckpt_fail_at(err, -EINVAL, &(struct ckpt_where){.tensor = loose->name},
			"alias '%.*s' stands for '%.*s', which is not a tensor of this save",
			shown(loose->name), loose->name, shown(loose->target), loose->target);
	return 0;
}

/* Makes the header, and with it all offsets. */
static int place(struct ckpt_layout *layout, struct ckpt_error *err)
{
	struct ckpt_buf header = {0};
	int r;

	r = ckpt_safetensors_encode(layout, &header, err);
	if (r < 0) {
		ckpt_buf_free(&header);
		return r;
	}
	layout->header = header.data;
	layout->header_bytes = header.len;
	layout->bytes = header.len;
	for (size_t i = 0; i < layout->entry_count; i++) {
		layout->entries[i].offset = layout->bytes;
		/* Cannot overflow: each tensor has at most 2^46 bytes, and there are at most 10^6. */
		layout->bytes += layout->entries[i].nbytes;
		if (layout->bytes > CKPT_SHARD_BYTES_MAX)
			return ckpt_fail(err, -E2BIG,
				"the tensors have more than 2^46 bytes, which is more than a shard "
				"may hold: spread them over more ranks");
	}
	return 0;
}

int ckpt_layout_build(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, uint64_t chunk_bytes,
	struct ckpt_error *err, struct ckpt_layout **ret_layout)
{
	struct ckpt_layout *layout;
	struct pools pools = {0};
	int r;

	CKPT_ASSERT(chunk_bytes >= 1 && chunk_bytes <= CKPT_CHUNK_BYTES_MAX);
	r = check_all(tensors, count, aliases, alias_count, &pools, err);
	if (r < 0)
		return r;
	layout = ckpt_alloc(sizeof(*layout));
	if (!layout)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	layout->chunk_bytes = chunk_bytes;
	layout->entry_count = count;
	layout->alias_count = alias_count;
	layout->entries = ckpt_alloc_array(count, sizeof(*layout->entries));
	layout->aliases = ckpt_alloc_array(alias_count, sizeof(*layout->aliases));
	layout->texts = ckpt_alloc_array(pools.texts, 1);
	layout->dims = ckpt_alloc_array(pools.dims, sizeof(*layout->dims));
	if (!layout->entries || !layout->aliases || !layout->texts || !layout->dims) {
		r = ckpt_fail(err, -ENOMEM, "out of memory for the layout of %zu tensors", count);
		goto fail;
	}
	fill(layout, tensors, aliases);
	if (make_digests(layout, tensors) < 0) {
		r = ckpt_fail(err, -ENOMEM, "out of memory for the layout of %zu tensors", count);
		goto fail;
	}
	r = check_names(layout, err);
	if (r == 0)
		r = place(layout, err);
	if (r == 0)
		r = ckpt_layout_cut(layout, err);
	if (r < 0)
		goto fail;
	*ret_layout = layout;
	return 0;
fail:
	ckpt_layout_free(layout);
	return r;
}
