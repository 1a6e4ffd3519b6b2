/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/chunk_encode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/shard/chunk_parts.h"
#include "format/dtype.h"

/* Of a part: its length, what it is decoded with, and where its master is. */
#define LENGTH_BYTES 4
#define FLAG_BYTES   1
#define MASTER_BYTES 8
#define HEAD_BYTES   (LENGTH_BYTES + FLAG_BYTES + MASTER_BYTES)

int ckpt_chunk_scratch_open(struct ckpt_chunk_scratch *scratch)
{
	*scratch = (struct ckpt_chunk_scratch){.codec = ckpt_codec_open(CKPT_SIMD_BEST),
		.part = ckpt_alloc(CKPT_CODEC_CHUNK_BYTES),
		.master = ckpt_alloc(2 * CKPT_CODEC_CHUNK_BYTES)};
	if (scratch->codec && scratch->part && scratch->master)
		return 0;
	ckpt_chunk_scratch_close(scratch);
	return -ENOMEM;
}

int ckpt_chunk_scratch_add_base(struct ckpt_chunk_scratch *scratch)
{
	scratch->base = ckpt_alloc(CKPT_CODEC_CHUNK_BYTES);
	return scratch->base ? 0 : -ENOMEM;
}

void ckpt_chunk_scratch_close(struct ckpt_chunk_scratch *scratch)
{
	ckpt_codec_close(scratch->codec);
	ckpt_free(scratch->part);
	ckpt_free(scratch->master);
	ckpt_free(scratch->base);
	*scratch = (struct ckpt_chunk_scratch){0};
}

size_t ckpt_chunk_encode_room(size_t bytes)
{
	/* Parts are added until they are larger than the chunk. */
	return bytes + HEAD_BYTES + ckpt_encode_room(CKPT_CODEC_CHUNK_BYTES);
}

static void put_le(uint8_t *out, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

/* A chunk that is being encoded. */
struct encoding {
	const struct ckpt_chunk_scratch *scratch;
	const struct ckpt_chunk_source *source;
	size_t chunk;
	bool wide; /* it may have fp32 elements: other chunks may refer to it, so it refers to none */
	bool based;     /* parts may be decoded with the base, and none with a master */
	bool uses_base; /* one is */
	uint32_t *refs;
	size_t ref_count;
	struct ckpt_kept_refs kept; /* of who decodes it */
};

static const void *base_of(const struct encoding *e, uint64_t offset, size_t length)
{
	return e->source->base_bytes(e->source->user, offset, length, e->scratch->base);
}

static const void *bytes_of(const struct encoding *e, uint64_t offset, size_t length, void *room)
{
	return e->source->bytes(e->source->user, offset, length, room);
}

/* The first reference that is not less than `ref`. */
static size_t ref_place(const struct encoding *e, size_t ref)
{
	size_t at = 0;

	while (at < e->ref_count && e->refs[at] < ref)
		at++;
	return at;
}

static void add_refs(struct encoding *e, size_t first, size_t last)
{
	for (size_t ref = first; ref <= last; ref++) {
		size_t at = ref_place(e, ref);

		if (at < e->ref_count && e->refs[at] == ref)
			continue;
		memmove(e->refs + at + 1, e->refs + at, (e->ref_count - at) * sizeof(*e->refs));
		e->refs[at] = (uint32_t)ref;
		e->ref_count++;
	}
}

static void need_refs(struct ckpt_kept_refs *kept, size_t first, size_t last)
{
	unsigned at;

	for (size_t ref = first; ref <= last; ref++)
		(void)ckpt_kept_refs_need(kept, ref, &at);
}

/* The fp32 elements that a part may be the rounding of. */
struct master {
	uint64_t offset; /* in the shard; 0: none */
	size_t length;
	size_t first; /* chunk that they are in */
	size_t last;
};

/* Where the master of the part's tensor begins in the shard; 0: it has none. */
static uint64_t find_master(const struct encoding *e, const struct ckpt_chunk_part *part)
{
	if (!e->source->masters || !part->entry || e->wide ||
		(part->kind != CKPT_KIND_BF16 && part->kind != CKPT_KIND_F16))
		return 0;
	return e->source->masters[part->entry - e->source->layout->entries];
}

static struct master master_of(const struct encoding *e, const struct ckpt_chunk_part *part)
{
	const struct ckpt_layout *layout = e->source->layout;
	struct master m = {.length = 2 * (size_t)part->length};

	uint64_t begin = e->based ? 0 : find_master(e, part);
	if (!begin)
		return m;
	begin += 2 * (part->offset - part->entry->offset);
	m.first = ckpt_layout_chunk_at(layout, begin);
	m.last = ckpt_layout_chunk_at(layout, begin + m.length - 1);
	/* All chunks with elements of 4 bytes are before this one. */
	CKPT_ASSERT(m.last < e->chunk);
	struct ckpt_kept_refs kept = e->kept;
	need_refs(&kept, m.first, m.last);
	if (e->ref_count + (m.last - m.first + 1) <= CKPT_ENCODED_REFS_MAX &&
		kept.decodes <= CKPT_REF_DECODES_MAX)
		m.offset = begin;
	return m;
}

static bool is_of_base(enum ckpt_chunk_mode mode)
{
	return mode == CKPT_MODE_SAME || mode == CKPT_MODE_DELTA || mode == CKPT_MODE_MASK ||
	       mode == CKPT_MODE_GROUPED;
}

/* Returns the length. */
static size_t encode_part(struct encoding *e, const struct ckpt_chunk_part *part, uint8_t *out)
{
	const void *data = bytes_of(e, part->offset, part->length, e->scratch->part);
	struct master master = master_of(e, part);
	struct ckpt_codec_chunk chunk = {
		.count = part->length / part->width, .width = part->width, .kind = part->kind};
	uint8_t *to = out + LENGTH_BYTES + FLAG_BYTES;
	size_t length;

	out[LENGTH_BYTES] = CKPT_PART_ALONE;
	if (e->based)
		chunk.base = base_of(e, part->offset, part->length);
	if (master.offset) {
		chunk.master = bytes_of(e, master.offset, master.length, e->scratch->master);
		length = ckpt_encode(e->scratch->codec, &chunk, data, to + MASTER_BYTES);
		if (to[MASTER_BYTES] == CKPT_MODE_CAST) {
			out[LENGTH_BYTES] = CKPT_PART_MASTER;
			put_le(to, master.offset, MASTER_BYTES);
			add_refs(e, master.first, master.last);
			need_refs(&e->kept, master.first, master.last);
			length += MASTER_BYTES;
		} else {
			memmove(to, to + MASTER_BYTES, length);
		}
	} else {
		length = ckpt_encode(e->scratch->codec, &chunk, data, to);
		if (e->based && is_of_base(to[0])) {
			out[LENGTH_BYTES] = CKPT_PART_BASE;
			e->uses_base = true;
		}
	}
	put_le(out, FLAG_BYTES + length, LENGTH_BYTES);
	return LENGTH_BYTES + FLAG_BYTES + length;
}

/* Returns the length; not less than the chunk's: it does not get smaller. */
static size_t encode_parts(struct encoding *e, uint8_t *out)
{
	const struct ckpt_layout *layout = e->source->layout;
	uint32_t length = layout->chunks[e->chunk].length;
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	size_t size = 0;

	ckpt_chunk_parts_begin(&parts, layout, e->chunk);
	while (size < length && ckpt_chunk_parts_next(&parts, &part)) {
		size += encode_part(e, &part, out + size);
	}
	return size;
}

static bool has_master(const struct encoding *e)
{
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	ckpt_chunk_parts_begin(&parts, e->source->layout, e->chunk);
	while (ckpt_chunk_parts_next(&parts, &part))
		if (find_master(e, &part))
			return true;
	return false;
}

/* All of the chunk is as it was. */
static bool is_same(const struct encoding *e)
{
	const struct ckpt_chunk *chunk = &e->source->layout->chunks[e->chunk];
	size_t size;

	for (size_t at = 0; at < chunk->length; at += size) {
		size = ckpt_min_u64(chunk->length - at, CKPT_CODEC_CHUNK_BYTES);
		const void *data = bytes_of(e, chunk->offset + at, size, e->scratch->part);
		if (memcmp(data, base_of(e, chunk->offset + at, size), size) != 0)
			return false;
	}
	return true;
}

static void copy_plain(const struct encoding *e, uint8_t *out)
{
	const struct ckpt_chunk *chunk = &e->source->layout->chunks[e->chunk];
	size_t size;

	for (size_t at = 0; at < chunk->length; at += size) {
		size = ckpt_min_u64(chunk->length - at, CKPT_CODEC_CHUNK_BYTES);
		const void *data = bytes_of(e, chunk->offset + at, size, out + at);
		if (data != out + at)
			memcpy(out + at, data, size);
	}
}

void ckpt_chunk_encode(const struct ckpt_chunk_scratch *scratch,
	const struct ckpt_chunk_source *source, size_t chunk, uint8_t *out, uint32_t *refs,
	struct ckpt_encoded_chunk *ret_stored)
{
	const struct ckpt_layout *layout = source->layout;
	const struct ckpt_entry *first = ckpt_layout_at(layout, layout->chunks[chunk].offset);
	struct encoding e = {.scratch = scratch, .source = source, .chunk = chunk};
	uint32_t length = layout->chunks[chunk].length;

	CKPT_ASSERT(!source->base_bytes || (source->base > 0 && scratch->base));
	e.refs = refs;
	/* Larger elements come first. */
	e.wide = first && ckpt_dtype_bytes(first->dtype) >= 4;
	if (source->base_bytes && is_same(&e)) {
		*ret_stored = (struct ckpt_encoded_chunk){
			.kind = CKPT_ENCODED_SAME, .base = source->base};
		return;
	}
	/* A rounding costs next to nothing, and makes no chain. */
	e.based = source->base_bytes && !has_master(&e);
	size_t size = encode_parts(&e, out);

	if (size >= length) {
		copy_plain(&e, out);
		e.ref_count = 0;
		e.uses_base = false;
	}
	*ret_stored = (struct ckpt_encoded_chunk){.length = (uint32_t)ckpt_min_u64(size, length),
		.kind = size < length ? CKPT_ENCODED_PARTS : CKPT_ENCODED_PLAIN,
		.base = e.uses_base ? source->base : 0,
		.ref_count = (uint16_t)e.ref_count};
	ret_stored->digest = ckpt_digest_of(out, ret_stored->length);
}
