/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of an index, written from FORMAT.md and without the functions that it is to check. */
#include "fuzz_shard.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "format/dtype.h"
#include "format/manifest.h"

static void cut_piece(struct fuzz_cut *cut, uint64_t length)
{
	if (cut->count < cut->max)
		cut->lengths[cut->count] = length;
	if (cut->count <= cut->max)
		cut->count++;
}

static void cut_alone(struct fuzz_cut *cut, uint64_t length)
{
	while (length > 0 && cut->count <= cut->max) {
		uint64_t piece = length < cut->chunk_bytes ? length : cut->chunk_bytes;

		cut_piece(cut, piece);
		length -= piece;
	}
}

static void cut_shared(struct fuzz_cut *cut, uint64_t *open)
{
	if (*open > 0)
		cut_piece(cut, *open);
	*open = 0;
}

void fuzz_cut_shard(
	struct fuzz_cut *cut, uint64_t header_bytes, const uint64_t *sizes, size_t count)
{
	uint64_t open = 0;

	cut->count = 0;
	cut_alone(cut, header_bytes);
	for (size_t i = 0; i < count; i++) {
		if (sizes[i] >= cut->chunk_bytes) {
			cut_shared(cut, &open);
			cut_alone(cut, sizes[i]);
			continue;
		}
		if (open + sizes[i] > cut->chunk_bytes)
			cut_shared(cut, &open);
		open += sizes[i];
	}
	cut_shared(cut, &open);
}

static void check_name(const char *name)
{
	size_t length = strlen(name);

	FUZZ_CHECK(length >= 1 && length <= 1023 && strcmp(name, "__metadata__") != 0);
	for (size_t at = 0, step; at < length; at += step) {
		step = ckpt_utf8_char(name + at, length - at);
		FUZZ_CHECK(step > 0);
	}
}

/* Element bytes times all sizes; UINT64_MAX: more than 2^63-1. An empty dimension counts as `zero`. */
static uint64_t product(uint64_t bytes, const int64_t *sizes, uint32_t count, uint64_t zero)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t size = sizes[i] == 0 ? zero : (uint64_t)sizes[i];

		FUZZ_CHECK(sizes[i] >= 0);
		if (size > 0 && bytes > (uint64_t)INT64_MAX / size)
			return UINT64_MAX;
		bytes *= size;
	}
	return bytes;
}

static void check_entry(const struct ckpt_layout *l, const struct ckpt_entry *e, uint64_t offset)
{
	uint32_t bytes = ckpt_dtype_bytes(e->dtype);

	check_name(e->name);
	FUZZ_CHECK(bytes > 0 && e->ndim <= 16);
	FUZZ_CHECK(e->offset == offset && e->offset >= l->header_bytes && e->offset <= l->bytes);
	FUZZ_CHECK(e->nbytes == product(bytes, e->shape, e->ndim, 0));
	FUZZ_CHECK(e->nbytes <= l->bytes - e->offset);
	FUZZ_CHECK(e->offset % bytes == 0);
	FUZZ_CHECK(e->global_shape || !e->global_start);
	if (!e->global_shape)
		return;
	FUZZ_CHECK(product(bytes, e->global_shape, e->ndim, 1) <= INT64_MAX);
	for (uint32_t i = 0; i < e->ndim; i++) {
		uint64_t start = e->global_start ? (uint64_t)e->global_start[i] : 0;

		FUZZ_CHECK(start <= INT64_MAX);
		FUZZ_CHECK(start + (uint64_t)e->shape[i] <= (uint64_t)e->global_shape[i]);
	}
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_names(const struct ckpt_layout *l)
{
	size_t count = l->entry_count + l->alias_count;
	const char **names = malloc((count + 1) * sizeof(*names));

	FUZZ_CHECK(names);
	for (size_t i = 0; i < l->entry_count; i++)
		names[i] = l->entries[i].name;
	qsort(names, l->entry_count, sizeof(*names), by_text);
	for (size_t i = 0; i < l->alias_count; i++) {
		const struct ckpt_alias *a = &l->aliases[i];
		const char *target = a->target;

		check_name(a->name);
		FUZZ_CHECK(i == 0 || strcmp(a[-1].name, a->name) < 0);
		FUZZ_CHECK(bsearch(&target, names, l->entry_count, sizeof(*names), by_text));
		FUZZ_CHECK(strcmp(ckpt_layout_find(l, a->name)->name, target) == 0);
	}
	for (size_t i = 0; i < l->alias_count; i++)
		names[l->entry_count + i] = l->aliases[i].name;
	qsort(names, count, sizeof(*names), by_text);
	for (size_t i = 1; i < count; i++)
		FUZZ_CHECK(strcmp(names[i - 1], names[i]) < 0);
	free(names);
}

static void check_chunks(const struct ckpt_layout *l)
{
	uint64_t *sizes = malloc((l->entry_count + l->chunk_count + 1) * sizeof(*sizes));
	struct fuzz_cut cut = {.chunk_bytes = l->chunk_bytes, .max = l->chunk_count};
	uint64_t offset = 0;

	FUZZ_CHECK(sizes);
	cut.lengths = sizes + l->entry_count;
	for (size_t i = 0; i < l->entry_count; i++)
		sizes[i] = l->entries[i].nbytes;
	fuzz_cut_shard(&cut, l->header_bytes, sizes, l->entry_count);
	FUZZ_CHECK(cut.count == l->chunk_count);
	for (size_t i = 0; i < l->chunk_count; i++) {
		const struct ckpt_chunk *chunk = &l->chunks[i];

		FUZZ_CHECK(chunk->offset == offset && chunk->length == cut.lengths[i]);
		FUZZ_CHECK(chunk->length > 0 && chunk->length <= l->chunk_bytes);
		FUZZ_CHECK(ckpt_layout_chunk_at(l, offset) == i);
		offset += chunk->length;
	}
	FUZZ_CHECK(offset == l->bytes);
	free(sizes);
}

void fuzz_check_index(const struct ckpt_index *index)
{
	const struct ckpt_layout *l = index->layout;
	uint64_t offset = l->header_bytes;

	FUZZ_CHECK(index->rank < CKPT_WORLD_MAX);
	FUZZ_CHECK(l->bytes <= CKPT_SHARD_BYTES_MAX);
	FUZZ_CHECK(l->header_bytes >= 4096 && l->header_bytes % 4096 == 0);
	FUZZ_CHECK(l->header_bytes - 8 <= CKPT_HEADER_MAX);
	FUZZ_CHECK(l->chunk_bytes >= 1 && l->chunk_bytes <= UINT64_C(1) << 30);
	FUZZ_CHECK(l->chunk_count <= UINT64_C(1) << 24);
	FUZZ_CHECK(l->entry_count + l->alias_count <= 1000000);
	for (size_t i = 0; i < l->entry_count; i++) {
		const struct ckpt_entry *e = &l->entries[i];

		check_entry(l, e, offset);
		offset += e->nbytes;
		if (i > 0) {
			uint32_t last = ckpt_dtype_bytes(e[-1].dtype);
			uint32_t own = ckpt_dtype_bytes(e->dtype);

			FUZZ_CHECK(last > own || (last == own && strcmp(e[-1].name, e->name) < 0));
		}
		FUZZ_CHECK(ckpt_layout_find(l, e->name) == e);
	}
	FUZZ_CHECK(offset == l->bytes);
	check_names(l);
	check_chunks(l);
	FUZZ_CHECK((index->meta != NULL) == (index->meta_bytes > 0));
	if (index->meta) {
		FUZZ_CHECK(index->meta_bytes <= CKPT_META_MAX);
		FUZZ_CHECK(strlen(index->meta) == index->meta_bytes);
	}
}

static bool same_dims(const int64_t *one, const int64_t *other, uint32_t count)
{
	if (!one || !other)
		return one == other;
	return memcmp(one, other, count * sizeof(*one)) == 0;
}

static bool same_entry(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
	return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->ndim == b->ndim &&
	       same_dims(a->shape, b->shape, a->ndim) &&
	       same_dims(a->global_shape, b->global_shape, a->ndim) &&
	       same_dims(a->global_start, b->global_start, a->ndim) && a->offset == b->offset &&
	       a->nbytes == b->nbytes && a->own == b->own && a->varies == b->varies;
}

bool fuzz_same_index(const struct ckpt_index *one, const struct ckpt_index *other)
{
	const struct ckpt_layout *a = one->layout;
	const struct ckpt_layout *b = other->layout;

	if (one->rank != other->rank || one->meta_bytes != other->meta_bytes ||
		(one->meta && memcmp(one->meta, other->meta, one->meta_bytes) != 0) ||
		a->bytes != b->bytes || a->header_bytes != b->header_bytes ||
		a->chunk_bytes != b->chunk_bytes || a->entry_count != b->entry_count ||
		a->alias_count != b->alias_count || a->chunk_count != b->chunk_count ||
		a->digest_count != b->digest_count)
		return false;
	for (size_t i = 0; i < a->entry_count; i++) {
		if (!same_entry(&a->entries[i], &b->entries[i]))
			return false;
	}
	for (size_t i = 0; i < a->alias_count; i++) {
		if (strcmp(a->aliases[i].name, b->aliases[i].name) != 0 ||
			strcmp(a->aliases[i].target, b->aliases[i].target) != 0)
			return false;
	}
	for (size_t i = 0; i < a->chunk_count; i++) {
		if (a->chunks[i].offset != b->chunks[i].offset ||
			a->chunks[i].length != b->chunks[i].length ||
			!ckpt_digest_equal(&a->chunks[i].digest, &b->chunks[i].digest))
			return false;
	}
	for (size_t i = 0; i < a->digest_count; i++) {
		if (!ckpt_digest_equal(&a->digests[i], &b->digests[i]))
			return false;
	}
	return true;
}
