/* SPDX-License-Identifier: Apache-2.0 */
/* Combines what each rank holds to the tensors of the step. */
#include "engine/reshard/tensor_map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/dtype.h"

/* A name in a rank's index: of a tensor or an alias. */
struct mention {
	const char *name;
	const struct ckpt_entry *entry; /* NULL: an alias */
	const struct ckpt_alias *alias;
	uint32_t rank;
};

static int64_t start_of(const struct ckpt_entry *e, uint32_t dimension)
{
	return e->global_start ? e->global_start[dimension] : 0;
}

static const int64_t *whole_of(const struct ckpt_entry *e)
{
	return e->global_shape ? e->global_shape : e->shape;
}

static int order(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int box_order(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
	int r = order(a->ndim, b->ndim);

	for (uint32_t i = 0; r == 0 && i < a->ndim; i++)
		r = order(start_of(a, i), start_of(b, i));
	for (uint32_t i = 0; r == 0 && i < a->ndim; i++)
		r = order(a->shape[i], b->shape[i]);
	return r;
}

/* By name; then tensors before aliases, by box, by rank. */
static int mention_order(const void *a, const void *b)
{
	const struct mention *x = a;
	const struct mention *y = b;
	int r = strcmp(x->name, y->name);

	if (r == 0)
		r = (x->entry == NULL) - (y->entry == NULL);
	if (r == 0 && x->entry)
		r = box_order(x->entry, y->entry);
	return r ? r : order(x->rank, y->rank);
}

static bool alike(const struct mention *a, const struct mention *b)
{
	if (!a->entry || !b->entry)
		return !a->entry && !b->entry && strcmp(a->alias->target, b->alias->target) == 0;
	return a->entry->dtype == b->entry->dtype && a->entry->ndim == b->entry->ndim &&
	       (a->entry->ndim == 0 || memcmp(whole_of(a->entry), whole_of(b->entry),
					       a->entry->ndim * sizeof(int64_t)) == 0);
}

/* "F32 [8, 8]", "another name of 'w'" */
static const char *mention_text(const struct mention *m, char *out, size_t size)
{
	char shape[CKPT_SHAPE_CHARS];

	if (m->entry)
		(void)snprintf(out, size, "%s %s", ckpt_dtype_name(m->entry->dtype),
			ckpt_shape_text(whole_of(m->entry), m->entry->ndim, shape));
	else
		(void)snprintf(out, size, "another name of '%.200s'", m->alias->target);
	return out;
}

static int fail_apart(const struct mention *a, const struct mention *b, struct ckpt_error *err)
{
	char one[CKPT_SHAPE_CHARS + 32];
	char two[CKPT_SHAPE_CHARS + 32];

	return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.tensor = a->name},
		"the ranks do not agree about '%.200s': %s says rank %u, %s says rank %u; one name "
		"is one tensor of the whole job; give what each rank has for itself a name of its "
		"own",
		a->name, mention_text(a, one, sizeof(one)), a->rank,
		mention_text(b, two, sizeof(two)), b->rank);
}

/* All names in all indexes, sorted. */
static struct mention *collect(
	const struct ckpt_index *const *indexes, uint32_t world, size_t *ret_count)
{
	size_t count = 0;
	size_t n = 0;

	for (uint32_t i = 0; i < world; i++)
		if (indexes[i])
			count += indexes[i]->layout->entry_count + indexes[i]->layout->alias_count;
	struct mention *all = ckpt_alloc_array(count, sizeof(*all));
	if (!all)
		return NULL;
	for (uint32_t i = 0; i < world; i++) {
		const struct ckpt_layout *l = indexes[i] ? indexes[i]->layout : NULL;
		for (size_t k = 0; l && k < l->entry_count; k++)
			all[n++] = (struct mention){
				.name = l->entries[k].name, .entry = &l->entries[k], .rank = i};
		for (size_t k = 0; l && k < l->alias_count; k++)
			all[n++] = (struct mention){
				.name = l->aliases[k].name, .alias = &l->aliases[k], .rank = i};
	}
	if (count > 0)
		qsort(all, count, sizeof(*all), mention_order);
	*ret_count = count;
	return all;
}

/* Counts tensors and aliases, and checks that all ranks mean the same by a name. */
static int count_names(const struct mention *all, size_t count, struct ckpt_layout *names,
	size_t *ret_parts, struct ckpt_error *err)
{
	size_t parts = 0;

	for (size_t i = 0; i < count; i++) {
		const struct mention *m = &all[i];
		bool again = i > 0 && strcmp(all[i - 1].name, m->name) == 0;

		parts += m->entry != NULL;
		if (again && !alike(&all[i - 1], m))
			return fail_apart(&all[i - 1], m, err);
		names->entry_count += !again && m->entry;
		names->alias_count += !again && !m->entry;
	}
	*ret_parts = parts;
	return 0;
}

static int whole_order(const void *a, const void *b)
{
	return ckpt_layout_order(a, b);
}

/* Bytes of the whole tensor. The decoder has checked that the number fits. */
static uint64_t bytes_of(const struct ckpt_entry *e)
{
	struct ckpt_box box = ckpt_box_of(NULL, whole_of(e), e->ndim);

	return ckpt_box_volume(&box) * ckpt_dtype_bytes(e->dtype);
}

static void fill(struct ckpt_tensor_map *w, const struct mention *all, size_t count)
{
	struct ckpt_entry *e = w->made->entries;
	struct ckpt_alias *a = w->made->aliases;
	struct ckpt_part *part = w->parts;
	size_t number = 0;

	for (size_t i = 0; i < count; i++) {
		const struct mention *m = &all[i];
		bool again = i > 0 && strcmp(all[i - 1].name, m->name) == 0;

		if (m->entry && !again) {
			w->firsts[number] = (size_t)(part - w->parts);
			*e++ = (struct ckpt_entry){.name = m->entry->name,
				.dtype = m->entry->dtype,
				.ndim = m->entry->ndim,
				.shape = m->entry->global_shape ? m->entry->global_shape
								: m->entry->shape,
				.nbytes = bytes_of(m->entry),
				.source = (uint32_t)number++};
		}
		if (m->entry)
			*part++ = (struct ckpt_part){.entry = m->entry, .rank = m->rank};
		else if (!again)
			*a++ = *m->alias;
	}
	w->firsts[number] = (size_t)(part - w->parts);
	if (number > 0)
		qsort(w->made->entries, number, sizeof(*w->made->entries), whole_order);
}

static int unite(struct ckpt_tensor_map *w, const struct ckpt_index *const *indexes, uint32_t world,
	struct ckpt_error *err)
{
	size_t count = 0;
	size_t parts = 0;
	struct mention *all = collect(indexes, world, &count);

	w->made = ckpt_alloc(sizeof(*w->made));
	if (!all || !w->made)
		goto no_memory;
	w->names = w->made;
	int r = count_names(all, count, w->made, &parts, err);
	if (r < 0)
		goto out;
	if (w->made->entry_count > UINT32_MAX)
		goto no_memory;
	w->made->entries = ckpt_alloc_array(w->made->entry_count, sizeof(*w->made->entries));
	w->made->aliases = ckpt_alloc_array(w->made->alias_count, sizeof(*w->made->aliases));
	w->firsts = ckpt_alloc_array(w->made->entry_count + 1, sizeof(*w->firsts));
	w->parts = ckpt_alloc_array(parts, sizeof(*w->parts));
	if (!w->made->entries || !w->made->aliases || !w->firsts || !w->parts)
		goto no_memory;
	fill(w, all, count);
out:
	ckpt_free(all);
	return r;
no_memory:
	ckpt_free(all);
	return ckpt_fail(err, -ENOMEM, "out of memory for the tensors of %u ranks", world);
}

bool ckpt_tensor_map_are_plain(const struct ckpt_index *const *indexes, uint32_t world)
{
	if (world != 1)
		return false;
	const struct ckpt_layout *l = indexes[0]->layout;
	for (size_t i = 0; i < l->entry_count; i++)
		if (l->entries[i].global_shape)
			return false;
	return true;
}

static int take(struct ckpt_tensor_map *w, const struct ckpt_layout *layout, struct ckpt_error *err)
{
	w->names = layout;
	w->parts = ckpt_alloc_array(layout->entry_count, sizeof(*w->parts));
	if (!w->parts)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < layout->entry_count; i++)
		w->parts[i].entry = &layout->entries[i];
	return 0;
}

int ckpt_tensor_map_build(const struct ckpt_index *const *indexes, uint32_t world,
	struct ckpt_error *err, struct ckpt_tensor_map **ret_tensor_map)
{
	struct ckpt_tensor_map *w = ckpt_alloc(sizeof(*w));

	CKPT_ASSERT(world > 0);
	if (!w)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	int r = ckpt_tensor_map_are_plain(indexes, world) ? take(w, indexes[0]->layout, err)
							  : unite(w, indexes, world, err);
	if (r < 0)
		ckpt_tensor_map_free(w);
	else
		*ret_tensor_map = w;
	return r;
}

void ckpt_tensor_map_free(struct ckpt_tensor_map *tensor_map)
{
	if (!tensor_map)
		return;
	ckpt_layout_free(tensor_map->made);
	ckpt_free(tensor_map->parts);
	ckpt_free(tensor_map->firsts);
	ckpt_free(tensor_map);
}

const struct ckpt_part *ckpt_tensor_map_parts(
	const struct ckpt_tensor_map *tensor_map, const struct ckpt_entry *whole, size_t *ret_count)
{
	size_t number = (size_t)(whole - tensor_map->names->entries);

	CKPT_ASSERT(number < tensor_map->names->entry_count);
	*ret_count = 1;
	if (!tensor_map->firsts)
		return &tensor_map->parts[number];
	*ret_count = tensor_map->firsts[whole->source + 1] - tensor_map->firsts[whole->source];
	return &tensor_map->parts[tensor_map->firsts[whole->source]];
}

static bool overlap(const struct ckpt_part *parts, size_t count, const struct ckpt_entry *whole)
{
	struct ckpt_box all = ckpt_box_of(NULL, whole->shape, whole->ndim);
	uint64_t left = ckpt_box_volume(&all);

	for (size_t i = 0; i < count; i++) {
		struct ckpt_box box = ckpt_part_box(&parts[i]);
		uint64_t volume = ckpt_box_volume(&box);

		if (volume > left)
			return true;
		left -= volume;
		if (volume > 0 && i > 0 && ckpt_part_same(&parts[i - 1], &parts[i]))
			return true;
	}
	return false;
}

bool ckpt_tensor_map_overlap(const struct ckpt_tensor_map *tensor_map)
{
	for (size_t i = 0; i < tensor_map->names->entry_count; i++) {
		const struct ckpt_entry *whole = &tensor_map->names->entries[i];
		size_t count = 0;
		const struct ckpt_part *parts = ckpt_tensor_map_parts(tensor_map, whole, &count);

		if (count > 1 && overlap(parts, count, whole))
			return true;
	}
	return false;
}

struct ckpt_box ckpt_part_box(const struct ckpt_part *part)
{
	return ckpt_box_of(part->entry->global_start, part->entry->shape, part->entry->ndim);
}

bool ckpt_part_same(const struct ckpt_part *a, const struct ckpt_part *b)
{
	return box_order(a->entry, b->entry) == 0;
}

int ckpt_part_order(const struct ckpt_part *a, const struct ckpt_part *b)
{
	int r = box_order(a->entry, b->entry);

	return r ? r : order(a->rank, b->rank);
}
