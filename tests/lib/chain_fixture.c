/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/chain_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/shard/chunk_encode.h"
#include "lib/encode_fixture.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort();
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

static void write_all(const char *path, const struct ckpt_buf *buf)
{
	FILE *f = fopen(path, "wb");

	must(f != NULL && fwrite(buf->data, 1, buf->len, f) == buf->len && fclose(f) == 0, path);
}

/* A shard, and the one before it. */
struct encoding {
	const struct ckpt_layout *layout;
	const char *shard;
	const char *base; /* NULL: none */
};

static const void *bytes_of(void *user, uint64_t offset, size_t length, void *room)
{
	const struct encoding *e = user;

	(void)length;
	(void)room;
	return e->shard + offset;
}

static const void *base_of(void *user, uint64_t offset, size_t length, void *room)
{
	const struct encoding *e = user;

	/* As bytes that are not contiguous. */
	memcpy(room, e->base + offset, length);
	return room;
}

/* Of each tensor, the fp32 tensor of as many elements that it may be the rounding of. */
static uint64_t *find_masters(const struct ckpt_layout *layout)
{
	uint64_t *masters = calloc(layout->entry_count + 1, sizeof(*masters));

	must(masters != NULL, "memory");
	for (size_t i = 0; i < layout->entry_count; i++)
		for (size_t k = 0; k < layout->entry_count && !masters[i]; k++)
			if (layout->entries[k].dtype == CKPT_F32 &&
				layout->entries[k].nbytes == layout->entries[i].nbytes * 2)
				masters[i] = layout->entries[k].offset;
	return masters;
}

/* The number of the file that has the bytes of a chunk of the last step: it names others as the new one does. */
static uint8_t base_number(const struct chain_fixture *chain, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &chain->table.chunks[chunk];

	if (!chain->plain && c->kind == CKPT_ENCODED_SAME)
		return c->base;
	return (uint8_t)(chain->table.base_count + 1);
}

static void encode_chunks(struct chain_fixture *chain, struct encoding *e,
	struct ckpt_encoded *table, struct ckpt_buf *out)
{
	struct ckpt_chunk_scratch scratch;
	uint64_t *masters = find_masters(e->layout);
	uint8_t *room = malloc(ckpt_chunk_encode_room(e->layout->chunk_bytes));

	must(room && ckpt_chunk_scratch_open(&scratch) == 0 &&
			ckpt_chunk_scratch_add_base(&scratch) == 0,
		"memory");
	for (size_t i = 0; i < table->chunk_count; i++) {
		struct ckpt_chunk_source source = {.layout = e->layout,
			.masters = masters,
			.bytes = bytes_of,
			.base_bytes = e->base ? base_of : NULL,
			.base = e->base ? base_number(chain, i) : 0,
			.user = e};
		struct ckpt_encoded_chunk *c = &table->chunks[i];

		ckpt_chunk_encode(&scratch, &source, i, room, table->refs + table->ref_count, c);
		if (c->kind != CKPT_ENCODED_SAME)
			c->offset = out->len;
		c->first_ref = (uint32_t)table->ref_count;
		table->ref_count += c->ref_count;
		ckpt_buf_put(out, room, c->length);
		chain->same += c->kind == CKPT_ENCODED_SAME;
		chain->based += c->kind == CKPT_ENCODED_PARTS && c->base > 0;
		chain->refs += c->ref_count;
	}
	ckpt_chunk_scratch_close(&scratch);
	free(masters);
	free(room);
}

static void put_table(struct ckpt_encoded *table, struct ckpt_buf *out)
{
	table->table_offset = out->len;
	ckpt_encoded_put(table, out);
	must(!out->failed, "memory");
}

/* Encodes the shard with the last one as its base. */
static struct ckpt_encoded encode(struct chain_fixture *chain, const struct ckpt_layout *layout,
	const char *shard, struct ckpt_buf *out)
{
	struct encoding e = {.layout = layout, .shard = shard, .base = chain->shard};
	struct ckpt_encoded table = {.bytes = layout->bytes,
		.chunk_count = layout->chunk_count,
		.chunks = calloc(layout->chunk_count, sizeof(*table.chunks)),
		.refs = calloc(layout->chunk_count * CKPT_ENCODED_REFS_MAX, sizeof(*table.refs))};

	must(table.chunks && table.refs, "memory");
	if (e.base) {
		memcpy(table.bases, chain->table.bases, sizeof(table.bases));
		table.base_count = chain->table.base_count;
		must(table.base_count < CKPT_ENCODED_BASES_MAX, "bases");
		table.bases[table.base_count++] = chain->last;
	}
	encode_chunks(chain, &e, &table, out);
	put_table(&table, out);
	return table;
}

static const struct ckpt_encoded *named;

static void name_bases(struct ckpt_manifest *manifest)
{
	manifest->base_count = named->base_count;
	for (unsigned i = 0; i < named->base_count; i++)
		manifest->bases[i] = (struct ckpt_base_step){
			.generation = named->bases[i].generation, .step = named->bases[i].step};
}

static struct ckpt_encoded_base last_of(
	const struct fixture_step *step, struct ckpt_digest digest, size_t index_bytes)
{
	char attempt[17];

	(void)snprintf(attempt, sizeof(attempt), "%.16s",
		strrchr(fixture_index_name(step, 0), '/') + strlen("/rank-00000."));
	return (struct ckpt_encoded_base){.generation = step->generation,
		.step = step->step,
		.attempt = strtoull(attempt, NULL, 16),
		.index_bytes = index_bytes,
		.index_digest = digest};
}

static void add(struct chain_fixture *chain, const struct fixture_step *step, bool plain)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_index *decoded = NULL;
	struct ckpt_encoded table = {0};
	struct ckpt_buf out = {0};
	size_t length;
	size_t bytes;

	fixture_commit(step);
	char *index = read_all(fixture_index(step, 0), &length);
	must(ckpt_index_decode(index, length, "index", &err, &decoded) == 0, err.message);
	char *shard = read_all(fixture_shard(step, 0), &bytes);
	must(bytes == decoded->layout->bytes, "length of a shard");
	if (!plain) {
		table = encode(chain, decoded->layout, shard, &out);
		write_all(encode_fixture_path(step, 0), &out);
		must(unlink(fixture_shard(step, 0)) == 0, "unlink");
		named = &table;
		fixture_edit(step, name_bases);
	}
	ckpt_buf_free(&out);
	struct chain_fixture next = {.index = decoded,
		.shard = shard,
		.table = table,
		.last = last_of(step, ckpt_digest_of(index, length), length),
		.plain = plain,
		.same = chain->same,
		.based = chain->based,
		.refs = chain->refs};
	free(index);
	chain_fixture_clear(chain);
	*chain = next;
}

void chain_fixture_add(struct chain_fixture *chain, const struct fixture_step *step)
{
	add(chain, step, false);
}

void chain_fixture_begin_plain(struct chain_fixture *chain, const struct fixture_step *step)
{
	must(!chain->index, "begin");
	add(chain, step, true);
}

void chain_fixture_put_table(struct chain_fixture *chain, const struct fixture_step *step)
{
	const char *path = encode_fixture_path(step, 0);
	struct ckpt_buf out = {0};
	size_t length;
	char *data = read_all(path, &length);

	ckpt_buf_put(&out, data, chain->table.table_offset);
	put_table(&chain->table, &out);
	write_all(path, &out);
	ckpt_buf_free(&out);
	free(data);
}

void chain_fixture_clear(struct chain_fixture *chain)
{
	ckpt_index_free(chain->index);
	free(chain->shard);
	free(chain->table.chunks);
	free(chain->table.refs);
	*chain = (struct chain_fixture){0};
}
