/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes a catalog, and answers a reader's queries. */
#include "engine/reshard/catalog_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/dtype.h"

/* The list of an entry of names->entries. */
static const struct ckpt_catalog_list *list_of(
	const struct ckpt_catalog_map *h, const struct ckpt_entry *whole)
{
	return &h->lists[whole->source];
}

static int open_lists(struct ckpt_catalog_map *h, const char *path, struct ckpt_error *err)
{
	int r = 0;

	h->lists = ckpt_alloc_array(h->catalog->tensor_count, sizeof(*h->lists));
	if (!h->lists)
		return -ENOMEM;
	for (size_t i = 0; i < h->catalog->tensor_count && r == 0; i++) {
		const struct ckpt_catalog_tensor *tensor = &h->catalog->tensors[i];

		r = ckpt_catalog_open_list(
			h->catalog, tensor, h->file + tensor->offset, path, err, &h->lists[i]);
	}
	return r;
}

static int whole_order(const void *a, const void *b)
{
	return ckpt_layout_order(a, b);
}

static int name_all(struct ckpt_catalog_map *h)
{
	const struct ckpt_layout_catalog *c = h->catalog;
	struct ckpt_layout *names = ckpt_alloc(sizeof(*names));

	h->names = names;
	if (!names)
		return -ENOMEM;
	names->entries = ckpt_alloc_array(c->tensor_count, sizeof(*names->entries));
	names->aliases = ckpt_alloc_array(c->alias_count, sizeof(*names->aliases));
	if (!names->entries || !names->aliases)
		return -ENOMEM;
	for (size_t i = 0; i < c->tensor_count; i++) {
		const struct ckpt_catalog_tensor *t = &c->tensors[i];
		struct ckpt_entry *e = &names->entries[names->entry_count++];

		*e = (struct ckpt_entry){.name = (char *)t->name,
			.dtype = t->dtype,
			.ndim = t->ndim,
			.shape = (int64_t *)t->shape,
			.source = (uint32_t)i};
		/* The decoder has checked that the number of elements fits. */
		struct ckpt_box whole = ckpt_box_of(NULL, t->shape, t->ndim);
		e->nbytes = ckpt_box_volume(&whole) * ckpt_dtype_bytes(t->dtype);
	}
	for (size_t i = 0; i < c->alias_count; i++)
		names->aliases[names->alias_count++] =
			(struct ckpt_alias){.name = (char *)c->aliases[i].name,
				.target = (char *)c->tensors[c->aliases[i].target].name};
	if (names->entry_count > 0)
		qsort(names->entries, names->entry_count, sizeof(*names->entries), whole_order);
	return 0;
}

static int read_file(struct ckpt_catalog_map *h, size_t length, const struct ckpt_digest *named,
	uint32_t world, const char *path, struct ckpt_error *err)
{
	const struct ckpt_where where = {.tier = "local", .file = path};
	uint64_t root_bytes = 0;
	uint64_t bytes = 0;

	int r = ckpt_layout_catalog_measure(h->file, length, path, err, &root_bytes, &bytes);
	if (r < 0)
		return r;
	if (bytes != length)
		return ckpt_fail_at(err, CKPT_EINTEGRITY, &where,
			"%s has %zu bytes, but its header says %llu", path, length,
			(unsigned long long)bytes);
	r = ckpt_layout_catalog_decode(h->file, root_bytes, named, path, err, &h->catalog);
	if (r < 0)
		return r;
	if (h->catalog->world != world)
		return ckpt_fail_at(err, CKPT_EFORMAT, &where,
			"%s is for %u ranks, but the step has %u", path, h->catalog->world, world);
	r = open_lists(h, path, err);
	return r < 0 ? r : name_all(h);
}

int ckpt_catalog_map_open(char *file, size_t length, const struct ckpt_digest *named,
	uint32_t world, const char *path, struct ckpt_error *err,
	struct ckpt_catalog_map **ret_catalog_map)
{
	struct ckpt_catalog_map *h = ckpt_alloc(sizeof(*h));

	if (!h) {
		ckpt_free(file);
		return ckpt_fail(err, -ENOMEM, "out of memory");
	}
	h->file = file;
	int r = read_file(h, length, named, world, path, err);
	if (r < 0) {
		ckpt_catalog_map_free(h);
		return r == -ENOMEM ? ckpt_fail(err, r, "out of memory for %s", path) : r;
	}
	*ret_catalog_map = h;
	return 0;
}

void ckpt_catalog_map_free(struct ckpt_catalog_map *catalog_map)
{
	if (!catalog_map)
		return;
	ckpt_layout_free(catalog_map->names);
	ckpt_free(catalog_map->lists);
	ckpt_layout_catalog_free(catalog_map->catalog);
	ckpt_free(catalog_map->file);
	ckpt_free(catalog_map->parts);
	ckpt_free(catalog_map->entries);
	ckpt_free(catalog_map->dims);
	ckpt_free(catalog_map);
}

static int make_room(struct ckpt_catalog_map *h, size_t count)
{
	if (count <= h->room)
		return 0;
	ckpt_free(h->parts);
	ckpt_free(h->entries);
	ckpt_free(h->dims);
	h->parts = ckpt_alloc_array(count, sizeof(*h->parts));
	h->entries = ckpt_alloc_array(count, sizeof(*h->entries));
	h->dims = ckpt_alloc_array(count, (size_t)2 * CKPT_NDIM_MAX * sizeof(*h->dims));
	h->room = h->parts && h->entries && h->dims ? count : 0;
	return h->room ? 0 : -ENOMEM;
}

/* Stores only as many as were counted, because the list is the same. */
static void put_part(struct ckpt_catalog_map *h, size_t at, const struct ckpt_entry *whole,
	const struct ckpt_catalog_box *box)
{
	int64_t *start = h->dims + at * (size_t)2 * CKPT_NDIM_MAX;
	int64_t *shape = start + CKPT_NDIM_MAX;
	struct ckpt_entry *e = &h->entries[at];

	memcpy(start, box->start, whole->ndim * sizeof(*start));
	memcpy(shape, box->shape, whole->ndim * sizeof(*shape));
	*e = (struct ckpt_entry){.name = whole->name,
		.dtype = whole->dtype,
		.ndim = whole->ndim,
		.shape = shape,
		.global_shape = whole->shape,
		.global_start = start};
	struct ckpt_box held = ckpt_box_of(start, shape, whole->ndim);
	e->nbytes = ckpt_box_volume(&held) * ckpt_dtype_bytes(whole->dtype);
	h->parts[at] = (struct ckpt_part){.entry = e, .rank = box->rank};
}

static int part_order(const void *a, const void *b)
{
	return ckpt_part_order(a, b);
}

int ckpt_catalog_map_find(struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole,
	const struct ckpt_box *box, const struct ckpt_part **ret_parts, size_t *ret_count)
{
	const struct ckpt_catalog_list *list = list_of(catalog_map, whole);
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box found;
	size_t count = 0;
	size_t at = 0;

	ckpt_catalog_walk_begin(&walk, list, box->start, box->shape);
	while (ckpt_catalog_walk_next(&walk, &found))
		count++;
	if (make_room(catalog_map, count) < 0)
		return -ENOMEM;
	ckpt_catalog_walk_begin(&walk, list, box->start, box->shape);
	for (; ckpt_catalog_walk_next(&walk, &found); at++)
		put_part(catalog_map, at, whole, &found);
	CKPT_ASSERT(at == count);
	if (count > 0)
		qsort(catalog_map->parts, count, sizeof(*catalog_map->parts), part_order);
	*ret_parts = catalog_map->parts;
	*ret_count = count;
	return 0;
}

uint32_t ckpt_catalog_map_first(
	const struct ckpt_catalog_map *catalog_map, const struct ckpt_entry *whole)
{
	const struct ckpt_catalog_list *list = list_of(catalog_map, whole);
	struct ckpt_catalog_walk walk;
	struct ckpt_catalog_box box;

	ckpt_catalog_walk_begin(&walk, list, NULL, NULL);
	bool any = ckpt_catalog_walk_next(&walk, &box);
	CKPT_ASSERT(any); /* a list is not empty */
	return box.rank;
}

/* Whether the box in the index is the one in the catalog. */
static bool is_same(const struct ckpt_catalog_map *h, const struct ckpt_entry *e, uint32_t rank)
{
	const struct ckpt_entry *whole = ckpt_layout_find(h->names, e->name);
	const int64_t *shape = e->global_shape ? e->global_shape : e->shape;
	size_t dims = e->ndim * sizeof(int64_t);
	int64_t start[CKPT_NDIM_MAX];
	int64_t size[CKPT_NDIM_MAX];

	if (!whole || strcmp(whole->name, e->name) != 0 || whole->dtype != e->dtype ||
		whole->ndim != e->ndim || memcmp(whole->shape, shape, dims) != 0 ||
		!ckpt_catalog_box_of(list_of(h, whole), rank, start, size))
		return false;
	struct ckpt_box box = ckpt_box_of(e->global_start, e->shape, e->ndim);
	return memcmp(box.start, start, dims) == 0 && memcmp(box.shape, size, dims) == 0;
}

static int fail_compare(const char *path, const char *name, uint32_t rank, struct ckpt_error *err)
{
	int r = ckpt_fail_at(err, CKPT_EFORMAT,
		&(struct ckpt_where){.tier = "local", .file = path, .tensor = name},
		"%s describes '%.200s' differently than the index of rank %u", path, name, rank);

	if (err)
		err->rank = (int32_t)rank;
	return r;
}

int ckpt_catalog_map_compare(const struct ckpt_catalog_map *catalog_map,
	const struct ckpt_index *index, const char *path, struct ckpt_error *err)
{
	const struct ckpt_layout *layout = index->layout;
	int64_t start[CKPT_NDIM_MAX];
	int64_t size[CKPT_NDIM_MAX];

	for (size_t i = 0; i < layout->entry_count; i++)
		if (!is_same(catalog_map, &layout->entries[i], index->rank))
			return fail_compare(path, layout->entries[i].name, index->rank, err);
	for (size_t i = 0; i < layout->alias_count; i++) {
		const struct ckpt_alias *alias = &layout->aliases[i];
		const struct ckpt_entry *e = ckpt_layout_find(catalog_map->names, alias->name);
		if (!e || strcmp(e->name, alias->target) != 0)
			return fail_compare(path, alias->name, index->rank, err);
	}
	for (size_t i = 0; i < catalog_map->names->entry_count; i++) {
		const struct ckpt_entry *e = &catalog_map->names->entries[i];
		if (ckpt_catalog_box_of(list_of(catalog_map, e), index->rank, start, size) &&
			!ckpt_layout_find(layout, e->name))
			return fail_compare(path, e->name, index->rank, err);
	}
	return 0;
}
