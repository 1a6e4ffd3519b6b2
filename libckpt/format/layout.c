/* SPDX-License-Identifier: Apache-2.0 */
/* Order, names and chunks of a shard. */
#include "format/layout.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "format/dtype.h"

/* Element sizes, in the order of the shard. The entries of one size are sorted by name. */
static const uint32_t run_sizes[] = {16, 8, 4, 2, 1};

#define RUNS CKPT_COUNT(run_sizes)

void ckpt_layout_free(struct ckpt_layout *layout)
{
	if (!layout)
		return;
	ckpt_free(layout->header);
	ckpt_free(layout->entries);
	ckpt_free(layout->aliases);
	ckpt_free(layout->chunks);
	ckpt_free(layout->digests);
	ckpt_free(layout->texts);
	ckpt_free(layout->dims);
	ckpt_free(layout);
}

const char *ckpt_layout_bad_name(const char *name, size_t length)
{
	if (length == 0)
		return "is empty";
	if (length >= CKPT_NAME_MAX)
		return "is longer than 1023 bytes";
	if (strcmp(name, "__metadata__") == 0)
		return "is reserved by safetensors";
	for (size_t at = 0; at < length;) {
		bool ascii = (unsigned char)name[at] < 0x80;
		size_t step = ascii ? 1 : ckpt_utf8_char(name + at, length - at);

		if (step == 0)
			return "is not UTF-8";
		at += step;
	}
	return NULL;
}

bool ckpt_layout_box_bytes(
	uint32_t dtype, const int64_t *shape, uint32_t ndim, uint64_t *ret_nbytes)
{
	uint64_t bytes = ckpt_dtype_bytes(dtype);
	bool empty = false;

	if (bytes == 0)
		return false;
	/* A dimension of 0 does not excuse the others: their product must fit. */
	for (uint32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return false;
		if (shape[i] == 0)
			empty = true;
		else if (__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes) ||
			 bytes > CKPT_SHARD_BYTES_MAX)
			return false;
	}
	*ret_nbytes = empty ? 0 : bytes;
	return true;
}

/* Compares an entry with (element size, name). */
static int compare(const struct ckpt_entry *entry, uint32_t bytes, const char *name)
{
	uint32_t own = ckpt_dtype_bytes(entry->dtype);

	if (own != bytes)
		return own > bytes ? -1 : 1;
	return strcmp(entry->name, name);
}

int ckpt_layout_order(const struct ckpt_entry *a, const struct ckpt_entry *b)
{
	return compare(a, ckpt_dtype_bytes(b->dtype), b->name);
}

static const struct ckpt_entry *find_in_run(
	const struct ckpt_layout *layout, uint32_t bytes, const char *name)
{
	size_t low = 0;
	size_t high = layout->entry_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = compare(&layout->entries[middle], bytes, name);

		if (order == 0)
			return &layout->entries[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static const struct ckpt_entry *find_entry(const struct ckpt_layout *layout, const char *name)
{
	const struct ckpt_entry *found = NULL;

	for (size_t i = 0; i < RUNS && !found; i++)
		found = find_in_run(layout, run_sizes[i], name);
	return found;
}

const struct ckpt_entry *ckpt_layout_find(const struct ckpt_layout *layout, const char *name)
{
	const struct ckpt_entry *found = find_entry(layout, name);
	size_t low = 0;
	size_t high = found ? 0 : layout->alias_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(layout->aliases[middle].name, name);

		if (order == 0)
			return find_entry(layout, layout->aliases[middle].target);
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return found;
}

const struct ckpt_alias *ckpt_layout_loose(const struct ckpt_layout *layout)
{
	for (size_t i = 0; i < layout->alias_count; i++) {
		if (!find_entry(layout, layout->aliases[i].target))
			return &layout->aliases[i];
	}
	return NULL;
}

/* Merges the sorted runs and aliases, so that equal names meet. */
const char *ckpt_layout_twice(const struct ckpt_layout *layout)
{
	size_t at[RUNS + 1] = {0};
	size_t end[RUNS + 1];
	const char *last = NULL;
	size_t start = 0;

	for (size_t i = 0; i < RUNS; i++) {
		at[i] = start;
		while (start < layout->entry_count &&
			ckpt_dtype_bytes(layout->entries[start].dtype) == run_sizes[i])
			start++;
		end[i] = start;
	}
	CKPT_ASSERT(start == layout->entry_count);
	end[RUNS] = layout->alias_count;
	for (;;) {
		const char *least = NULL;
		size_t from = 0;

		for (size_t i = 0; i <= RUNS; i++) {
			const char *name;

			if (at[i] == end[i])
				continue;
			name = i < RUNS ? layout->entries[at[i]].name : layout->aliases[at[i]].name;
			if (!least || strcmp(name, least) < 0) {
				least = name;
				from = i;
			}
		}
		if (!least || (last && strcmp(last, least) == 0))
			return least;
		last = least;
		at[from]++;
	}
}

const struct ckpt_entry *ckpt_layout_at(const struct ckpt_layout *layout, uint64_t offset)
{
	size_t low = 0;
	size_t high = layout->entry_count;

	/* Finds the first entry that begins after `offset`. */
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (layout->entries[middle].offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	while (low > 0 && layout->entries[low - 1].nbytes == 0)
		low--;
	return low > 0 ? &layout->entries[low - 1] : NULL;
}

size_t ckpt_layout_chunk_at(const struct ckpt_layout *layout, uint64_t offset)
{
	size_t low = 0;
	size_t high = layout->chunk_count;

	CKPT_ASSERT(offset < layout->bytes && high > 0);
	/* chunks[low] begins at or before `offset`, chunks[high] after it. */
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (layout->chunks[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Cuts chunks: counts them, and stores them if `chunks` is set. */
struct cutter {
	struct ckpt_chunk *chunks; /* NULL: only count */
	uint64_t count;
	uint64_t chunk_bytes;
	uint64_t offset; /* start of the open chunk */
	uint64_t length; /* bytes of small tensors in it so far */
};

static void note(struct cutter *c, uint64_t length)
{
	if (c->chunks)
		c->chunks[c->count] =
			(struct ckpt_chunk){.offset = c->offset, .length = (uint32_t)length};
	c->count++;
	c->offset += length;
}

static void close_shared(struct cutter *c)
{
	if (c->length > 0)
		note(c, c->length);
	c->length = 0;
}

/* The header, or a tensor of at least chunk_bytes. */
static void cut_alone(struct cutter *c, uint64_t bytes)
{
	if (!c->chunks) {
		c->count += bytes / c->chunk_bytes + (bytes % c->chunk_bytes > 0);
		c->offset += bytes;
		return;
	}
	for (uint64_t left = bytes; left > 0;) {
		uint64_t length = ckpt_min_u64(left, c->chunk_bytes);

		note(c, length);
		left -= length;
	}
}

static uint64_t cut_all(const struct ckpt_layout *layout, struct ckpt_chunk *chunks)
{
	struct cutter c = {.chunks = chunks, .chunk_bytes = layout->chunk_bytes};

	cut_alone(&c, layout->header_bytes);
	for (size_t i = 0; i < layout->entry_count; i++) {
		uint64_t bytes = layout->entries[i].nbytes;

		if (bytes >= c.chunk_bytes) {
			close_shared(&c);
			cut_alone(&c, bytes);
			continue;
		}
		if (c.length + bytes > c.chunk_bytes)
			close_shared(&c);
		c.length += bytes;
	}
	close_shared(&c);
	CKPT_ASSERT(c.offset == layout->bytes);
	return c.count;
}

uint64_t ckpt_layout_cuts(const struct ckpt_layout *layout)
{
	return cut_all(layout, NULL);
}

int ckpt_layout_cut(struct ckpt_layout *layout, struct ckpt_error *err)
{
	uint64_t count;

	CKPT_ASSERT(layout->chunk_bytes >= 1 && layout->chunk_bytes <= CKPT_CHUNK_BYTES_MAX);
	CKPT_ASSERT(!layout->chunks);
	count = ckpt_layout_cuts(layout);
	if (count > CKPT_CHUNKS_MAX)
		return ckpt_fail(err, -E2BIG,
			"a shard of %llu bytes has more than %llu chunks of %llu bytes: spread it "
			"over more ranks, or use larger chunks",
			(unsigned long long)layout->bytes, (unsigned long long)CKPT_CHUNKS_MAX,
			(unsigned long long)layout->chunk_bytes);
	layout->chunks = ckpt_alloc_array(count, sizeof(*layout->chunks));
	if (!layout->chunks)
		return ckpt_fail(
			err, -ENOMEM, "out of memory for %llu chunks", (unsigned long long)count);
	layout->chunk_count = count;
	CKPT_ASSERT(cut_all(layout, layout->chunks) == count);
	return 0;
}
