/* SPDX-License-Identifier: Apache-2.0 */
/* From stored bytes to the chunk. */
#include "engine/shard/chunk_decode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "config.h"
#include "format/index_head.h"

/* The fp32 elements that as many elements of two bytes as a part has were rounded from. */
#define MASTER_BYTES (CKPT_CODEC_CHUNK_BYTES * 2)

struct ckpt_chunk_decoder {
	struct ckpt_codec *codec;
	uint8_t *master;
	uint64_t shard;             /* 0: none */
	uint64_t room;              /* bytes of `out` and of each of `refs` */
	char *out;                  /* one chunk, of who has no room for it */
	char *refs[CKPT_KEPT_REFS]; /* chunks that others refer to */
	struct ckpt_kept_refs kept; /* which they are, and how many were decoded for the chunk */
	uint64_t base_room;         /* bytes of each of these: */
	char *base;                 /* what a chunk is decoded from */
	char *ref_base;             /* and one that it refers to */
	unsigned bad_file;
};

#if CKPT_HAVE_CODEC

struct ckpt_chunk_decoder *ckpt_chunk_decoder_open(void)
{
	struct ckpt_chunk_decoder *d = ckpt_alloc(sizeof(*d));

	if (!d)
		return NULL;
	d->codec = ckpt_codec_open(CKPT_SIMD_BEST);
	d->master = ckpt_alloc(MASTER_BYTES);
	if (d->codec && d->master)
		return d;
	ckpt_chunk_decoder_close(d);
	return NULL;
}

static void free_room(struct ckpt_chunk_decoder *d)
{
	ckpt_free(d->out);
	d->out = NULL;
	for (size_t i = 0; i < CKPT_KEPT_REFS; i++) {
		ckpt_free(d->refs[i]);
		d->refs[i] = NULL;
	}
	d->room = 0;
}

static int make_room(struct ckpt_chunk_decoder *d, uint64_t chunk_bytes)
{
	free_room(d);
	d->out = ckpt_alloc(chunk_bytes);
	bool all = d->out;
	for (size_t i = 0; i < CKPT_KEPT_REFS; i++) {
		d->refs[i] = ckpt_alloc(chunk_bytes);
		all = all && d->refs[i];
	}
	if (!all) {
		free_room(d);
		return -ENOMEM;
	}
	d->room = chunk_bytes;
	return 0;
}

static void free_base_room(struct ckpt_chunk_decoder *d)
{
	ckpt_free(d->base);
	ckpt_free(d->ref_base);
	d->base = NULL;
	d->ref_base = NULL;
	d->base_room = 0;
}

static int make_base_room(struct ckpt_chunk_decoder *d, uint64_t chunk_bytes)
{
	free_base_room(d);
	d->base = ckpt_alloc(chunk_bytes);
	d->ref_base = ckpt_alloc(chunk_bytes);
	if (!d->base || !d->ref_base) {
		free_base_room(d);
		return -ENOMEM;
	}
	d->base_room = chunk_bytes;
	return 0;
}

int ckpt_chunk_decoder_aim(
	struct ckpt_chunk_decoder *decoder, uint64_t shard, uint64_t chunk_bytes, bool based)
{
	decoder->shard = 0;
	decoder->kept = (struct ckpt_kept_refs){0};
	if (decoder->room < chunk_bytes && make_room(decoder, chunk_bytes) < 0)
		return -ENOMEM;
	if (based && decoder->base_room < chunk_bytes && make_base_room(decoder, chunk_bytes) < 0)
		return -ENOMEM;
	decoder->shard = shard;
	return 0;
}

bool ckpt_chunk_decoder_is_for(const struct ckpt_chunk_decoder *decoder, uint64_t shard)
{
	return decoder->shard == shard;
}

void ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder)
{
	if (!decoder)
		return;
	ckpt_codec_close(decoder->codec);
	ckpt_free(decoder->master);
	free_room(decoder);
	free_base_room(decoder);
	ckpt_free(decoder);
}

static bool is_before(const struct ckpt_stored_chunk *item, unsigned file, size_t chunk)
{
	return item->file != file ? item->file < file : item->chunk < chunk;
}

static const uint8_t *find_stored(
	const struct ckpt_stored_chunks *stored, unsigned file, size_t chunk)
{
	size_t lo = 0;
	size_t hi = stored->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (is_before(&stored->items[mid], file, chunk))
			lo = mid + 1;
		else
			hi = mid;
	}
	CKPT_ASSERT(lo < stored->count && stored->items[lo].file == file &&
		    stored->items[lo].chunk == chunk);
	return stored->items[lo].bytes;
}

static const struct ckpt_encoded_chunk *record_of(
	const struct ckpt_stored_chunks *stored, unsigned file, size_t chunk)
{
	return &ckpt_stored_table(stored->chain, stored->encoded, file)->chunks[chunk];
}

/* What is left of a stored chunk. */
struct source {
	const uint8_t *at;
	const uint8_t *end;
};

static const uint8_t *take(struct source *source, size_t bytes)
{
	const uint8_t *at = source->at;

	if ((size_t)(source->end - at) < bytes)
		return NULL;
	source->at += bytes;
	return at;
}

/* The stored bytes of a chunk, as they were written. False: they are missing or damaged. */
static bool find_source(const struct ckpt_stored_chunks *stored, unsigned file, size_t chunk,
	struct source *ret_source)
{
	const struct ckpt_encoded_chunk *e = record_of(stored, file, chunk);
	const uint8_t *bytes = find_stored(stored, file, chunk);

	if (!bytes)
		return false;
	*ret_source = (struct source){.at = bytes, .end = bytes + e->length};
	/* Who copies the file goes by this digest alone, so a reader sees to it, too. */
	struct ckpt_digest digest = ckpt_digest_of(bytes, e->length);
	return ckpt_digest_equal(&digest, &e->digest);
}

/* A part as it is stored. */
struct stored_part {
	struct source body;
	enum ckpt_part_help help;
	uint64_t master; /* where it begins in the shard, of one with a master */
};

static bool take_part(struct source *source, struct stored_part *ret_part)
{
	const uint8_t *head = take(source, 4);
	size_t length = head ? ckpt_le32(head) : 0;
	const uint8_t *body = head ? take(source, length) : NULL;

	if (!body)
		return false;
	ret_part->body = (struct source){.at = body, .end = body + length};
	head = take(&ret_part->body, 1);
	if (!head || *head >= CKPT_PART_HELP_END)
		return false;
	ret_part->help = *head;
	ret_part->master = 0;
	if (ret_part->help != CKPT_PART_MASTER)
		return true;
	head = take(&ret_part->body, 8);
	ret_part->master = head ? ckpt_le64(head) : 0;
	return head;
}

static bool is_right(const struct ckpt_layout *layout, size_t chunk, const char *bytes)
{
	struct ckpt_digest digest = ckpt_digest_of(bytes, layout->chunks[chunk].length);

	return ckpt_digest_equal(&digest, &layout->chunks[chunk].digest);
}

struct link;

/* Fetches the master that a part was rounded from. The chunks that it lies in are decoded without one. */
typedef bool fetch_master_fn(struct ckpt_chunk_decoder *d, const struct link *link,
	const struct ckpt_chunk_part *part, const struct stored_part *from);

/* A chunk on its way from one file. */
struct link {
	const struct ckpt_stored_chunks *stored;
	unsigned file;
	size_t chunk;
	const char *base;              /* the chunk in the base; NULL: it has none */
	fetch_master_fn *fetch_master; /* NULL: it may not refer to others */
};

static bool decode_part(struct ckpt_chunk_decoder *d, const struct link *link,
	const struct ckpt_chunk_part *part, const struct stored_part *from, char *out)
{
	uint64_t at = part->offset - link->stored->layout->chunks[link->chunk].offset;
	struct ckpt_codec_chunk what = {
		.count = part->length / part->width, .width = part->width, .kind = part->kind};

	if (from->help == CKPT_PART_MASTER) {
		if (!link->fetch_master || !link->fetch_master(d, link, part, from))
			return false;
		what.master = d->master;
	} else if (from->help == CKPT_PART_BASE) {
		if (!link->base)
			return false;
		what.base = link->base + at;
	}
	return ckpt_decode(d->codec, &what, from->body.at, (size_t)(from->body.end - from->body.at),
		       out + at) == 0;
}

/* Decodes what one file has of a chunk. */
static bool decode_link(struct ckpt_chunk_decoder *d, const struct link *link, char *out)
{
	const struct ckpt_stored_chunks *stored = link->stored;
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	struct stored_part from;
	struct source source;

	if (!find_source(stored, link->file, link->chunk, &source))
		return false;
	if (record_of(stored, link->file, link->chunk)->kind == CKPT_ENCODED_PLAIN) {
		memcpy(out, source.at, stored->layout->chunks[link->chunk].length);
		return true;
	}
	ckpt_chunk_parts_begin(&parts, stored->layout, link->chunk);
	while (ckpt_chunk_parts_next(&parts, &part))
		if (!take_part(&source, &from) || !decode_part(d, link, &part, &from, out))
			return false;
	return source.at == source.end;
}

/*
 * Decodes a chunk of `file` into `out`, from the oldest file that it is decoded from to the newest. `room`, for one chunk,
 * holds every other one of them.
 */
static bool decode_links(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	unsigned file, size_t chunk, fetch_master_fn *fetch, char *out, char *room)
{
	uint8_t files[CKPT_CHAIN_FILES];
	unsigned count = ckpt_chain_links(stored->chain, file, chunk, files);
	const char *base = NULL;

	for (unsigned i = count; i-- > 0;) {
		struct link link = {.stored = stored,
			.file = files[i],
			.chunk = chunk,
			.base = base,
			.fetch_master = i + 1 == count ? fetch : NULL};
		char *to = i % 2 ? room : out;

		if (stored->stopped && atomic_load(stored->stopped))
			return false;
		if (!decode_link(d, &link, to)) {
			d->bad_file = d->bad_file ? d->bad_file : link.file;
			return false;
		}
		base = to;
	}
	return true;
}

/* The bytes of a chunk that others in its file refer to. NULL: it is damaged, or too many were decoded. */
static const char *fetch_ref(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	unsigned file, size_t chunk)
{
	unsigned at;

	if (ckpt_kept_refs_need(&d->kept, (size_t)file * CKPT_CHUNKS_MAX + chunk, &at))
		return d->refs[at];
	/* It refers to none itself: that of its own file the decoder of the table has seen to. */
	if (d->kept.decodes <= CKPT_REF_DECODES_MAX &&
		decode_links(d, stored, file, chunk, NULL, d->refs[at], d->ref_base) &&
		(file > 0 || is_right(stored->layout, chunk, d->refs[at])))
		return d->refs[at];
	d->kept.chunks[at] = 0;
	return NULL;
}

static bool refers(const struct ckpt_encoded *encoded, size_t chunk, size_t to)
{
	const struct ckpt_encoded_chunk *c = &encoded->chunks[chunk];

	for (size_t i = 0; i < c->ref_count; i++)
		if (encoded->refs[c->first_ref + i] == to)
			return true;
	return false;
}

/* Puts bytes of the shard, from `offset` on, into d->master. They are of chunks that the link refers to. */
static bool gather(
	struct ckpt_chunk_decoder *d, const struct link *link, uint64_t offset, size_t bytes)
{
	const struct ckpt_stored_chunks *stored = link->stored;
	const struct ckpt_encoded *encoded =
		ckpt_stored_table(stored->chain, stored->encoded, link->file);
	const struct ckpt_layout *layout = stored->layout;
	uint64_t end = offset + bytes;
	uint64_t at = offset;

	for (size_t i = ckpt_layout_chunk_at(layout, offset); at < end; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];
		uint64_t stop = ckpt_min_u64(end, c->offset + c->length);

		const char *ref = refers(encoded, link->chunk, i)
					  ? fetch_ref(d, stored, link->file, i)
					  : NULL;
		if (!ref)
			return false;
		memcpy(d->master + (at - offset), ref + (at - c->offset), stop - at);
		at = stop;
	}
	return true;
}

/* Whether these bytes of the shard are whole elements of one tensor of type F32. */
static bool is_master(const struct ckpt_layout *layout, uint64_t offset, size_t bytes)
{
	if (offset >= layout->bytes || bytes > layout->bytes - offset)
		return false;
	const struct ckpt_entry *e = ckpt_layout_at(layout, offset);
	return e && e->dtype == CKPT_F32 && (offset - e->offset) % 4 == 0 &&
	       offset - e->offset < e->nbytes && bytes <= e->nbytes - (offset - e->offset);
}

/* The same, where they are in memory. */
static bool copy_master(
	struct ckpt_chunk_decoder *d, const struct link *link, uint64_t offset, size_t bytes)
{
	const struct ckpt_stored_chunks *stored = link->stored;
	size_t last = ckpt_layout_chunk_at(stored->layout, offset + bytes - 1);

	for (size_t i = ckpt_layout_chunk_at(stored->layout, offset); i <= last; i++)
		if (!refers(stored->encoded, link->chunk, i))
			return false;
	const void *from = stored->masters(stored->user, offset, bytes, d->master);
	if (from && from != d->master)
		memcpy(d->master, from, bytes);
	return from;
}

static bool fetch_master(struct ckpt_chunk_decoder *d, const struct link *link,
	const struct ckpt_chunk_part *part, const struct stored_part *from)
{
	bool rounds = part->kind == CKPT_KIND_BF16 || part->kind == CKPT_KIND_F16;
	size_t bytes = (size_t)part->length / part->width * 4;

	return rounds && is_master(link->stored->layout, from->master, bytes) &&
	       (link->stored->masters ? copy_master : gather)(d, link, from->master, bytes);
}

int ckpt_chunk_decode(struct ckpt_chunk_decoder *decoder, const struct ckpt_stored_chunks *stored,
	size_t chunk, char *out, const char **ret_bytes)
{
	if (!out)
		out = decoder->out;
	*ret_bytes = out;
	decoder->kept.decodes = 0;
	decoder->bad_file = 0;
	if (!decode_links(decoder, stored, 0, chunk, fetch_master, out, decoder->base))
		return decoder->kept.decodes > CKPT_REF_DECODES_MAX ? CKPT_EFORMAT
								    : CKPT_EINTEGRITY;
	return is_right(stored->layout, chunk, out) ? 0 : CKPT_EINTEGRITY;
}

unsigned ckpt_chunk_decoder_bad_file(const struct ckpt_chunk_decoder *decoder)
{
	return decoder->bad_file;
}

#else

struct ckpt_chunk_decoder *ckpt_chunk_decoder_open(void)
{
	return NULL;
}

int ckpt_chunk_decoder_aim(
	struct ckpt_chunk_decoder *decoder, uint64_t shard, uint64_t chunk_bytes, bool based)
{
	(void)decoder;
	(void)shard;
	(void)chunk_bytes;
	(void)based;
	return -ENOMEM;
}

bool ckpt_chunk_decoder_is_for(const struct ckpt_chunk_decoder *decoder, uint64_t shard)
{
	(void)decoder;
	(void)shard;
	return false;
}

void ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder)
{
	(void)decoder;
}

int ckpt_chunk_decode(struct ckpt_chunk_decoder *decoder, const struct ckpt_stored_chunks *stored,
	size_t chunk, char *out, const char **ret_bytes)
{
	(void)decoder;
	(void)stored;
	(void)chunk;
	(void)out;
	(void)ret_bytes;
	return CKPT_EINTEGRITY;
}

unsigned ckpt_chunk_decoder_bad_file(const struct ckpt_chunk_decoder *decoder)
{
	(void)decoder;
	return 0;
}

#endif
