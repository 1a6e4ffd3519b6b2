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

int ckpt_chunk_decoder_aim(struct ckpt_chunk_decoder *decoder, uint64_t shard, uint64_t chunk_bytes)
{
	decoder->shard = 0;
	decoder->kept = (struct ckpt_kept_refs){0};
	if (decoder->room < chunk_bytes) {
		free_room(decoder);
		decoder->out = ckpt_alloc(chunk_bytes);
		bool all = decoder->out;
		for (size_t i = 0; i < CKPT_KEPT_REFS; i++) {
			decoder->refs[i] = ckpt_alloc(chunk_bytes);
			all = all && decoder->refs[i];
		}
		if (!all) {
			free_room(decoder);
			return -ENOMEM;
		}
		decoder->room = chunk_bytes;
	}
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
	ckpt_free(decoder);
}

static const uint8_t *find_stored(const struct ckpt_stored_chunks *stored, size_t chunk)
{
	size_t lo = 0;
	size_t hi = stored->count;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (stored->items[mid].chunk < chunk)
			lo = mid + 1;
		else
			hi = mid;
	}
	CKPT_ASSERT(lo < stored->count && stored->items[lo].chunk == chunk);
	return stored->items[lo].bytes;
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
static bool find_source(
	const struct ckpt_stored_chunks *stored, size_t chunk, struct source *ret_source)
{
	const struct ckpt_encoded_chunk *e = &stored->encoded->chunks[chunk];
	const uint8_t *bytes = find_stored(stored, chunk);

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
	bool rounded; /* it has a master, that begins at `master` of the shard */
	uint64_t master;
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
	if (!head || *head > 1)
		return false;
	ret_part->rounded = *head == 1;
	if (!ret_part->rounded)
		return true;
	head = take(&ret_part->body, 8);
	ret_part->master = head ? ckpt_le64(head) : 0;
	return head;
}

static bool decode_part(struct ckpt_chunk_decoder *d, const struct ckpt_chunk_part *part,
	const struct stored_part *from, char *out)
{
	const struct ckpt_codec_chunk what = {.count = part->length / part->width,
		.width = part->width,
		.kind = part->kind,
		.master = from->rounded ? d->master : NULL};

	return ckpt_decode(d->codec, &what, from->body.at, (size_t)(from->body.end - from->body.at),
		       out) == 0;
}

static bool is_right(const struct ckpt_layout *layout, size_t chunk, const char *bytes)
{
	struct ckpt_digest digest = ckpt_digest_of(bytes, layout->chunks[chunk].length);

	return ckpt_digest_equal(&digest, &layout->chunks[chunk].digest);
}

/* Decodes a chunk that others refer to. It refers to none itself: the decoder of the table has seen to it. */
static bool decode_ref(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	size_t chunk, char *out)
{
	const struct ckpt_chunk *c = &stored->layout->chunks[chunk];
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	struct stored_part from;
	struct source source;

	if (!find_source(stored, chunk, &source))
		return false;
	if (stored->encoded->chunks[chunk].kind == CKPT_ENCODED_PLAIN) {
		memcpy(out, source.at, c->length);
	} else {
		ckpt_chunk_parts_begin(&parts, stored->layout, chunk);
		while (ckpt_chunk_parts_next(&parts, &part))
			if (!take_part(&source, &from) || from.rounded ||
				!decode_part(d, &part, &from, out + (part.offset - c->offset)))
				return false;
		if (source.at != source.end)
			return false;
	}
	return is_right(stored->layout, chunk, out);
}

/* The bytes of a chunk that others refer to. NULL: it is damaged, or too many were decoded. */
static const char *fetch_ref(
	struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored, size_t chunk)
{
	unsigned at;

	if (ckpt_kept_refs_need(&d->kept, chunk, &at))
		return d->refs[at];
	if (d->kept.decodes <= CKPT_REF_DECODES_MAX &&
		!(stored->stopped && atomic_load(stored->stopped)) &&
		decode_ref(d, stored, chunk, d->refs[at]))
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

/* Puts bytes of the shard, from `offset` on, into d->master. They are of chunks that `chunk` refers to. */
static bool gather(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	size_t chunk, uint64_t offset, size_t bytes)
{
	const struct ckpt_layout *layout = stored->layout;
	uint64_t end = offset + bytes;
	uint64_t at = offset;

	for (size_t i = ckpt_layout_chunk_at(layout, offset); at < end; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];
		uint64_t stop = ckpt_min_u64(end, c->offset + c->length);

		const char *ref =
			refers(stored->encoded, chunk, i) ? fetch_ref(d, stored, i) : NULL;
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

/* Fetches the master that a part was rounded from, if it has one. */
static bool fetch_master(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	size_t chunk, const struct ckpt_chunk_part *part, const struct stored_part *from)
{
	bool rounds = part->kind == CKPT_KIND_BF16 || part->kind == CKPT_KIND_F16;
	size_t bytes = (size_t)part->length / part->width * 4;

	if (!from->rounded)
		return true;
	return rounds && is_master(stored->layout, from->master, bytes) &&
	       gather(d, stored, chunk, from->master, bytes);
}

static bool decode_parts(struct ckpt_chunk_decoder *d, const struct ckpt_stored_chunks *stored,
	size_t chunk, struct source *source, char *out)
{
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	struct stored_part from;
	uint64_t offset = stored->layout->chunks[chunk].offset;

	ckpt_chunk_parts_begin(&parts, stored->layout, chunk);
	while (ckpt_chunk_parts_next(&parts, &part))
		if (!take_part(source, &from) || !fetch_master(d, stored, chunk, &part, &from) ||
			!decode_part(d, &part, &from, out + (part.offset - offset)))
			return false;
	return source->at == source->end;
}

int ckpt_chunk_decode(struct ckpt_chunk_decoder *decoder, const struct ckpt_stored_chunks *stored,
	size_t chunk, char *out, const char **ret_bytes)
{
	struct source source;

	if (!out)
		out = decoder->out;
	*ret_bytes = out;
	decoder->kept.decodes = 0;
	if (!find_source(stored, chunk, &source))
		return CKPT_EINTEGRITY;
	if (stored->encoded->chunks[chunk].kind == CKPT_ENCODED_PLAIN)
		memcpy(out, source.at, stored->layout->chunks[chunk].length);
	else if (!decode_parts(decoder, stored, chunk, &source, out))
		return decoder->kept.decodes > CKPT_REF_DECODES_MAX ? CKPT_EFORMAT
								    : CKPT_EINTEGRITY;
	return is_right(stored->layout, chunk, out) ? 0 : CKPT_EINTEGRITY;
}

#else

struct ckpt_chunk_decoder *ckpt_chunk_decoder_open(void)
{
	return NULL;
}

int ckpt_chunk_decoder_aim(struct ckpt_chunk_decoder *decoder, uint64_t shard, uint64_t chunk_bytes)
{
	(void)decoder;
	(void)shard;
	(void)chunk_bytes;
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

#endif
