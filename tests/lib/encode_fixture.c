/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/encode_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/shard/chunk_parts.h"
#include "format/index.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort();
}

struct encoding {
	const struct ckpt_layout *layout;
	const char *shard;
	struct prng *prng;
	struct ckpt_codec *codec;
	uint8_t *room;
	struct ckpt_encoded encoded;
	struct ckpt_encoded_chunk *chunks;
	struct ckpt_buf *stored; /* of each chunk */
	uint32_t (*refs)[CKPT_ENCODED_REFS_MAX];
	struct encode_fixture made;
};

/* An F32 tensor of as many elements, from which those of the part may be rounded; NULL: none. */
static const struct ckpt_entry *find_master(
	const struct encoding *e, const struct ckpt_chunk_part *part)
{
	bool rounds = part->kind == CKPT_KIND_BF16 || part->kind == CKPT_KIND_F16;

	for (size_t i = 0; part->entry && rounds && i < e->layout->entry_count; i++) {
		const struct ckpt_entry *m = &e->layout->entries[i];
		if (m->dtype == CKPT_F32 && m->nbytes == part->entry->nbytes * 2)
			return m;
	}
	return NULL;
}

/* Adds the chunks of these bytes to those that the chunk refers to. False: they are too many, or not to be referred to. */
static bool refer(struct encoding *e, size_t chunk, uint64_t offset, uint64_t bytes)
{
	struct ckpt_encoded_chunk *c = &e->chunks[chunk];
	size_t last = ckpt_layout_chunk_at(e->layout, offset + bytes - 1);

	for (size_t i = ckpt_layout_chunk_at(e->layout, offset); i <= last; i++) {
		size_t at = 0;

		if (i == chunk || e->chunks[i].ref_count != 0)
			return false;
		while (at < c->ref_count && e->refs[chunk][at] < i)
			at++;
		if (at < c->ref_count && e->refs[chunk][at] == i)
			continue;
		if (c->ref_count == CKPT_ENCODED_REFS_MAX)
			return false;
		memmove(&e->refs[chunk][at + 1], &e->refs[chunk][at],
			(c->ref_count - at) * sizeof(e->refs[chunk][0]));
		e->refs[chunk][at] = (uint32_t)i;
		c->ref_count++;
	}
	return true;
}

static void encode_part(struct encoding *e, size_t chunk, const struct ckpt_chunk_part *part)
{
	struct ckpt_buf *out = &e->stored[chunk];
	struct ckpt_codec_chunk what = {
		.count = part->length / part->width, .width = part->width, .kind = part->kind};
	const struct ckpt_entry *master = find_master(e, part);
	uint64_t from = 0;

	if (master) {
		from = master->offset + (part->offset - part->entry->offset) * 2;
		if (refer(e, chunk, from, what.count * 4))
			what.master = e->shard + from;
	}
	size_t length = ckpt_encode(e->codec, &what, e->shard + part->offset, e->room);
	ckpt_buf_put_le32(out, (uint32_t)(1 + (what.master ? 8 : 0) + length));
	ckpt_buf_fill(out, what.master ? 1 : 0, 1);
	if (what.master)
		ckpt_buf_put_le64(out, from);
	ckpt_buf_put(out, e->room, length);
}

static void encode_chunk(struct encoding *e, size_t chunk)
{
	const struct ckpt_chunk *c = &e->layout->chunks[chunk];
	struct ckpt_buf *out = &e->stored[chunk];
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	e->chunks[chunk].kind = CKPT_ENCODED_PARTS;
	ckpt_chunk_parts_begin(&parts, e->layout, chunk);
	while (ckpt_chunk_parts_next(&parts, &part))
		encode_part(e, chunk, &part);
	if (out->len >= c->length) {
		out->len = 0;
		e->chunks[chunk].kind = CKPT_ENCODED_PLAIN;
		e->chunks[chunk].ref_count = 0;
		ckpt_buf_put(out, e->shard + c->offset, c->length);
	}
	must(!out->failed, "memory");
	e->chunks[chunk].length = (uint32_t)out->len;
	e->chunks[chunk].digest = ckpt_digest_of(out->data, out->len);
	e->made.plain += e->chunks[chunk].kind == CKPT_ENCODED_PLAIN;
	e->made.parts += e->chunks[chunk].kind == CKPT_ENCODED_PARTS;
	e->made.refs += e->chunks[chunk].ref_count;
}

/* Any order, and now and then a gap up to a line of the disk. */
static void put_chunks(struct encoding *e, struct ckpt_buf *out)
{
	size_t count = e->layout->chunk_count;
	size_t *order = calloc(count, sizeof(*order));

	must(order != NULL, "memory");
	for (size_t i = 0; i < count; i++) {
		size_t at = prng_below(e->prng, i + 1);

		order[i] = order[at];
		order[at] = i;
	}
	for (size_t i = 0; i < count; i++) {
		if (prng_below(e->prng, 4) == 0)
			ckpt_buf_fill(out, 0, ckpt_align_up(out->len, 4096) - out->len);
		e->chunks[order[i]].offset = out->len;
		ckpt_buf_put(out, e->stored[order[i]].data, e->stored[order[i]].len);
	}
	free(order);
}

static void put_table(struct encoding *e, struct ckpt_buf *out)
{
	size_t count = e->layout->chunk_count;

	e->encoded = (struct ckpt_encoded){.bytes = e->layout->bytes,
		.table_offset = out->len,
		.chunks = e->chunks,
		.chunk_count = count,
		.refs = calloc(e->made.refs + 1, sizeof(uint32_t))};
	must(e->encoded.refs != NULL, "memory");
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < e->chunks[i].ref_count; k++)
			e->encoded.refs[e->encoded.ref_count++] = e->refs[i][k];
	ckpt_encoded_put(&e->encoded, out);
	must(!out->failed, "memory");
	free(e->encoded.refs);
}

void encode_fixture(const struct ckpt_layout *layout, const char *shard, struct prng *prng,
	struct ckpt_buf *out, struct encode_fixture *ret_made)
{
	struct encoding e = {.layout = layout,
		.shard = shard,
		.prng = prng,
		.codec = ckpt_codec_open(CKPT_SIMD_BEST),
		.room = malloc(ckpt_encode_room(CKPT_CODEC_CHUNK_BYTES)),
		.chunks = calloc(layout->chunk_count, sizeof(*e.chunks)),
		.stored = calloc(layout->chunk_count, sizeof(*e.stored)),
		.refs = calloc(layout->chunk_count, sizeof(*e.refs))};

	must(e.codec && e.room && e.chunks && e.stored && e.refs, "memory");
	for (size_t i = 0; i < layout->chunk_count; i++)
		encode_chunk(&e, i);
	put_chunks(&e, out);
	put_table(&e, out);
	e.made.bytes = out->len;
	e.made.middle = (long)e.chunks[layout->chunk_count / 2].offset;
	if (ret_made)
		*ret_made = e.made;
	for (size_t i = 0; i < layout->chunk_count; i++)
		ckpt_buf_free(&e.stored[i]);
	ckpt_codec_close(e.codec);
	free(e.room);
	free(e.chunks);
	free(e.stored);
	free(e.refs);
}

static char *read_all(const char *path, size_t *ret_length)
{
	FILE *f = fopen(path, "rb");

	must(f != NULL && fseek(f, 0, SEEK_END) == 0, path);
	long length = ftell(f);
	must(length >= 0 && fseek(f, 0, SEEK_SET) == 0, path);
	char *data = malloc((size_t)length + 1);
	must(data != NULL && fread(data, 1, (size_t)length, f) == (size_t)length, path);
	must(fclose(f) == 0, path);
	*ret_length = (size_t)length;
	return data;
}

const char *encode_fixture_name(const struct fixture_step *step, uint32_t rank)
{
	static char names[4][CKPT_PATH_MAX];
	static unsigned next;
	char *name = names[next++ % 4];
	const char *plain = fixture_shard_name(step, rank);

	(void)snprintf(name, CKPT_PATH_MAX, "%.*s.encoded",
		(int)(strlen(plain) - strlen(".safetensors")), plain);
	return name;
}

const char *encode_fixture_path(const struct fixture_step *step, uint32_t rank)
{
	static char paths[4][1024];
	static unsigned next;
	char *path = paths[next++ % 4];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", step->dir, encode_fixture_name(step, rank));
	return path;
}

void encode_fixture_rank(const struct fixture_step *step, uint32_t rank, struct prng *prng,
	struct encode_fixture *ret_made)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_index *index = NULL;
	struct ckpt_buf out = {0};
	size_t length;
	char *data = read_all(fixture_index(step, rank), &length);

	must(ckpt_index_decode(data, length, "index", &err, &index) == 0, err.message);
	free(data);
	data = read_all(fixture_shard(step, rank), &length);
	must(length == index->layout->bytes, "length of a shard");
	encode_fixture(index->layout, data, prng, &out, ret_made);
	FILE *f = fopen(encode_fixture_path(step, rank), "wb");
	must(f != NULL && fwrite(out.data, 1, out.len, f) == out.len && fclose(f) == 0, "write");
	must(unlink(fixture_shard(step, rank)) == 0, "unlink");
	free(data);
	ckpt_buf_free(&out);
	ckpt_index_free(index);
}
