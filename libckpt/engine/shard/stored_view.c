/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/stored_view.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/shard/stored_place.h"

/* Pieces of the table, where chunks are smaller. */
#define PIECE_MIN 4096
/* A gap is not read, so only the numbers have to hold it. */
#define GAP_MAX   (UINT64_C(1) << 30)

struct build {
	const struct ckpt_encoded *encoded;
	const struct ckpt_layout *of;
	struct ckpt_layout *layout;
	struct ckpt_stored_view *view;
	uint64_t at; /* how much of the file is laid out */
};

static struct ckpt_chunk *add(struct build *b, uint64_t length)
{
	struct ckpt_chunk *c = &b->layout->chunks[b->layout->chunk_count++];

	c->offset = b->at;
	c->length = (uint32_t)length;
	b->at += length;
	return c;
}

static uint64_t count_pieces(uint64_t bytes, uint64_t piece)
{
	return bytes / piece + (bytes % piece != 0);
}

static void add_gap(struct build *b, uint64_t until)
{
	while (b->at < until) {
		ckpt_chunkset_add(&b->view->gaps, b->layout->chunk_count);
		(void)add(b, ckpt_min_u64(until - b->at, GAP_MAX));
	}
}

static void add_stored(struct build *b, size_t chunk)
{
	const struct ckpt_encoded_chunk *stored = &b->encoded->chunks[chunk];
	const struct ckpt_entry *of = ckpt_layout_at(b->of, b->of->chunks[chunk].offset);
	struct ckpt_entry *entry = &b->layout->entries[b->layout->entry_count++];

	add_gap(b, stored->offset);
	/* Borrowed. The header has none. */
	entry->name = of ? of->name : NULL;
	entry->offset = stored->offset;
	entry->nbytes = stored->length;
	add(b, stored->length)->digest = stored->digest;
}

static void add_table(struct build *b, const char *end, uint64_t file_bytes)
{
	struct ckpt_entry *entry = &b->layout->entries[b->layout->entry_count++];
	uint64_t from = b->encoded->table_offset;

	add_gap(b, from);
	entry->offset = from;
	entry->nbytes = file_bytes - from;
	while (b->at < file_bytes) {
		const char *bytes = end + (b->at - from);
		uint64_t length = ckpt_min_u64(file_bytes - b->at, b->layout->chunk_bytes);

		add(b, length)->digest = ckpt_digest_of(bytes, length);
	}
}

/* The stored chunks by their place in the file. NULL: no memory. */
static struct ckpt_stored_place *sort(const struct ckpt_encoded *encoded)
{
	struct ckpt_stored_place *places = ckpt_alloc_array(encoded->chunk_count, sizeof(*places));

	if (!places)
		return NULL;
	for (size_t i = 0; i < encoded->chunk_count; i++)
		places[i] =
			(struct ckpt_stored_place){.offset = encoded->chunks[i].offset, .item = i};
	ckpt_stored_place_sort(places, encoded->chunk_count);
	return places;
}

static struct ckpt_layout *make_layout(
	const struct ckpt_encoded *encoded, const struct ckpt_layout *of, uint64_t file_bytes)
{
	struct ckpt_layout *layout = ckpt_alloc(sizeof(*layout));
	uint64_t chunks;

	if (!layout)
		return NULL;
	layout->bytes = file_bytes;
	layout->chunk_bytes = ckpt_max_u64(of->chunk_bytes, PIECE_MIN);
	/* The table, each chunk with a gap before it, and the gaps that are cut. */
	chunks = count_pieces(file_bytes - encoded->table_offset, layout->chunk_bytes) +
		 2 * (uint64_t)encoded->chunk_count + 1 + file_bytes / GAP_MAX;
	layout->chunks = ckpt_alloc_array(chunks, sizeof(*layout->chunks));
	layout->entries = ckpt_alloc_array(encoded->chunk_count + 1, sizeof(*layout->entries));
	if (layout->chunks && layout->entries) {
		layout->chunk_count = chunks;
		return layout;
	}
	ckpt_layout_free(layout);
	return NULL;
}

int ckpt_stored_view_build(struct ckpt_stored_view *view, const struct ckpt_encoded *encoded,
	const struct ckpt_layout *layout, const void *end, uint64_t file_bytes, const char *file,
	struct ckpt_error *err)
{
	struct build b = {.encoded = encoded,
		.of = layout,
		.view = view,
		.layout = make_layout(encoded, layout, file_bytes)};
	struct ckpt_stored_place *places = sort(encoded);
	int r = 0;

	*view = (struct ckpt_stored_view){.layout = b.layout};
	if (!b.layout || !places || ckpt_chunkset_init(&view->gaps, b.layout) < 0) {
		ckpt_free(places);
		ckpt_stored_view_clear(view);
		return ckpt_fail(err, -ENOMEM, "out of memory for the table of %s", file);
	}
	b.layout->chunk_count = 0;
	for (size_t i = 0; r == 0 && i < encoded->chunk_count; i++) {
		if (places[i].offset < b.at)
			r = CKPT_EFORMAT;
		else
			add_stored(&b, places[i].item);
	}
	if (r == 0)
		add_table(&b, end, file_bytes);
	ckpt_free(places);
	if (r == 0)
		return 0;
	ckpt_stored_view_clear(view);
	return ckpt_fail_at(err, r, &(struct ckpt_where){.file = file},
		"%s has a malformed table: chunks of it overlap; put the file back from a copy, or "
		"use another step",
		file);
}

void ckpt_stored_view_clear(struct ckpt_stored_view *view)
{
	ckpt_layout_free(view->layout);
	ckpt_chunkset_clear(&view->gaps);
	*view = (struct ckpt_stored_view){0};
}
