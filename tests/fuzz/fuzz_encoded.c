/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of an encoded shard beside its index: trailer, table, and the parts of its chunks. The input: the index's
 * length in three bytes, the index, the file.
 */
#include "fuzz_shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/shard/chunk_decode.h"
#include "engine/shard/stored_view.h"
#include "format/index_head.h"

#define FRONT      3
#define SLACK      1024
/* More would cost time and show nothing. */
#define BYTES_MAX  (UINT64_C(1) << 18)
#define CHUNKS_MAX 64

/* Where the trailer and a record have what. */
enum { T_BYTES = 16, T_CHUNKS = 24, T_OFFSET = 32, T_LENGTH = 40, T_TABLE = 48, T_OWN = 64 };
enum { R_OFFSET = 0, R_LENGTH = 8, R_KIND = 12, R_REFS = 14, R_DIGEST = 16 };

struct input {
	const uint8_t *index;
	size_t index_size;
	const uint8_t *file;
	size_t file_size;
};

static struct ckpt_chunk_decoder *decoder;

static bool split(const uint8_t *data, size_t size, struct input *in)
{
	if (size < FRONT)
		return false;
	in->index_size = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16;
	if (in->index_size > size - FRONT)
		return false;
	in->index = data + FRONT;
	in->file = in->index + in->index_size;
	in->file_size = size - FRONT - in->index_size;
	return true;
}

static void check_error(const struct ckpt_error *err, int code, size_t length)
{
	if (code != CKPT_EINCOMPLETE) {
		fuzz_check_error(err, code, length);
		return;
	}
	FUZZ_CHECK(err->code == code && strstr(err->message, FUZZ_FILE));
	FUZZ_CHECK(fuzz_is_line(err->message, strnlen(err->message, sizeof(err->message))));
}

static void check_refs(const struct ckpt_encoded *e, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &e->chunks[chunk];
	const uint32_t *refs = e->refs + c->first_ref;

	FUZZ_CHECK(c->ref_count <= 64 && c->first_ref + c->ref_count <= e->ref_count);
	for (size_t i = 0; i < c->ref_count; i++) {
		FUZZ_CHECK(refs[i] < e->chunk_count && refs[i] != chunk);
		FUZZ_CHECK(e->chunks[refs[i]].ref_count == 0);
		FUZZ_CHECK(i == 0 || refs[i - 1] < refs[i]);
	}
}

/* What section 23 says of a table. */
static void check_table(const struct ckpt_encoded *e, const struct ckpt_layout *layout)
{
	FUZZ_CHECK(e->bytes == layout->bytes && e->chunk_count == layout->chunk_count);
	for (size_t i = 0; i < e->chunk_count; i++) {
		const struct ckpt_encoded_chunk *c = &e->chunks[i];
		uint32_t length = layout->chunks[i].length;

		FUZZ_CHECK(c->base <= e->base_count && (c->base == 0 || c->ref_count == 0));
		if (c->kind == 2) {
			FUZZ_CHECK(c->base > 0 && c->offset == 0 && c->length == 0);
			continue;
		}
		FUZZ_CHECK(c->kind <= 1 && c->length > 0);
		FUZZ_CHECK(c->kind == 1 || c->base == 0);
		FUZZ_CHECK(c->kind == 0 ? c->length == length && c->ref_count == 0
					: c->length < length);
		FUZZ_CHECK(
			c->offset <= e->table_offset && c->length <= e->table_offset - c->offset);
		check_refs(e, i);
	}
}

/* What was read is written as it stands in the file, but for a newer minor version. */
static void check_again(const struct ckpt_encoded *e, const uint8_t *file, size_t size)
{
	struct ckpt_buf again = {0};

	if (ckpt_le32(file + size - CKPT_ENCODED_TRAILER + 12) != 0)
		return;
	ckpt_encoded_put(e, &again);
	FUZZ_CHECK(!again.failed && again.len == size - e->table_offset);
	FUZZ_CHECK(memcmp(again.data, file + e->table_offset, again.len) == 0);
	ckpt_buf_free(&again);
}

static void check_without_memory(const uint8_t *file, const struct ckpt_encoded_trailer *trailer,
	const struct ckpt_layout *layout, size_t count, int code)
{
	struct ckpt_encoded *e = NULL;
	struct ckpt_error err = {0};

	if (count == 0)
		return;
	fuzz_memory_begin(1 + trailer->table_bytes % count);
	int r = ckpt_encoded_decode(
		file + trailer->table_offset, trailer, layout, FUZZ_FILE, &err, &e);
	check_error(&err, r, SIZE_MAX);
	(void)fuzz_memory_end(UINT64_MAX);
	FUZZ_CHECK(r == -ENOMEM || r == code);
	ckpt_encoded_free(e);
}

/* A file is copied as it is if no two of its chunks overlap. */
static void check_view(const struct ckpt_encoded *e, const struct ckpt_layout *layout,
	const uint8_t *file, size_t size)
{
	struct ckpt_error err = {0};
	struct ckpt_stored_view view;
	bool overlap = false;

	for (size_t i = 0; i < e->chunk_count; i++)
		for (size_t k = 0; k < i; k++)
			overlap =
				overlap ||
				(e->chunks[i].offset < e->chunks[k].offset + e->chunks[k].length &&
					e->chunks[k].offset <
						e->chunks[i].offset + e->chunks[i].length);
	int r = ckpt_stored_view_build(
		&view, e, layout, file + e->table_offset, size, FUZZ_FILE, &err);
	check_error(&err, r, size);
	FUZZ_CHECK(r == (overlap ? CKPT_EFORMAT : 0));
	FUZZ_CHECK(overlap || view.layout->bytes == size);
	ckpt_stored_view_clear(&view);
}

/* Returns whether it decodes. Exactly so much memory as it may use is there. */
static bool decode(const struct ckpt_stored_chunks *stored, size_t chunk)
{
	const struct ckpt_chunk *c = &stored->layout->chunks[chunk];
	const struct ckpt_encoded_chunk *e = &stored->encoded->chunks[chunk];
	char *out = malloc(c->length);
	const char *got;

	FUZZ_CHECK(out);
	fuzz_memory_begin(0);
	int r = ckpt_chunk_decode(decoder, stored, chunk, out, &got);
	FUZZ_CHECK(fuzz_memory_end(0) == 0);
	FUZZ_CHECK(r == 0 || r == CKPT_EINTEGRITY || r == CKPT_EFORMAT);
	if (r == 0) {
		struct ckpt_digest digest = ckpt_digest_of(got, c->length);
		FUZZ_CHECK(ckpt_digest_equal(&digest, &c->digest));
		digest = ckpt_digest_of(stored->items[chunk].bytes, e->length);
		FUZZ_CHECK(ckpt_digest_equal(&digest, &e->digest));
	}
	free(out);
	return r == 0;
}

/* First by the digests that the file has of its stored bytes, then as if these were right. */
static void decode_chunks(
	struct ckpt_encoded *e, const struct ckpt_layout *layout, const uint8_t *file)
{
	struct ckpt_stored_chunk items[CHUNKS_MAX];
	struct ckpt_stored_chunks stored = {
		.layout = layout, .encoded = e, .items = items, .count = e->chunk_count};
	static uint64_t shards;
	bool good[CHUNKS_MAX];

	if (!decoder)
		decoder = ckpt_chunk_decoder_open();
	FUZZ_CHECK(decoder && ckpt_chunk_decoder_aim(decoder, ++shards, BYTES_MAX, false) == 0);
	for (size_t i = 0; i < e->chunk_count; i++)
		items[i] =
			(struct ckpt_stored_chunk){.chunk = i, .bytes = file + e->chunks[i].offset};
	for (size_t i = 0; i < e->chunk_count; i++)
		good[i] = decode(&stored, i);
	for (size_t i = 0; i < e->chunk_count; i++)
		e->chunks[i].digest = ckpt_digest_of(items[i].bytes, e->chunks[i].length);
	for (size_t i = 0; i < e->chunk_count; i++)
		FUZZ_CHECK(decode(&stored, i) || !good[i]);
}

static void try_file(const struct ckpt_layout *layout, const uint8_t *file, size_t size)
{
	struct ckpt_encoded_trailer trailer;
	struct ckpt_encoded *e = NULL;
	struct ckpt_error err = {0};

	fuzz_memory_begin(0);
	int r = ckpt_encoded_read_trailer(
		file + size - CKPT_ENCODED_TRAILER, size, layout, FUZZ_FILE, &err, &trailer);
	FUZZ_CHECK(fuzz_memory_end(0) == 0);
	check_error(&err, r, size);
	if (r < 0)
		return;
	FUZZ_CHECK(trailer.table_offset + trailer.table_bytes + CKPT_ENCODED_TRAILER == size);
	fuzz_memory_begin(0);
	r = ckpt_encoded_decode(file + trailer.table_offset, &trailer, layout, FUZZ_FILE, &err, &e);
	check_error(&err, r, size);
	size_t count = fuzz_memory_end(2 * trailer.table_bytes + SLACK);
	FUZZ_CHECK((r == 0) == (e != NULL));
	check_without_memory(file, &trailer, layout, count, r);
	if (!e)
		return;
	check_table(e, layout);
	check_again(e, file, size);
	/* One with bases is not copied as it is, and is decoded with other files. */
	if (e->base_count == 0 && layout->bytes <= BYTES_MAX && e->chunk_count <= CHUNKS_MAX) {
		check_view(e, layout, file, size);
		decode_chunks(e, layout, file);
	}
	ckpt_encoded_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_index *index = NULL;
	struct input in;

	if (!split(data, size, &in) || in.file_size < CKPT_ENCODED_TRAILER ||
		ckpt_index_decode(in.index, in.index_size, FUZZ_FILE, NULL, &index) < 0)
		return 0;
	try_file(index->layout, in.file, in.file_size);
	ckpt_index_free(index);
	return 0;
}

static void put_le(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static void put_digest(uint8_t *at, const uint8_t *data, size_t size)
{
	struct ckpt_digest digest = ckpt_digest_of(data, size);

	memcpy(at, digest.bytes, CKPT_DIGEST_SIZE);
}

/* The table that the file's trailer tells the length of. NULL: it is not in the file. */
static uint8_t *table_of(uint8_t *file, size_t size, size_t *ret_bytes)
{
	uint64_t bytes = size < CKPT_ENCODED_TRAILER
				 ? UINT64_MAX
				 : ckpt_le64(file + size - CKPT_ENCODED_TRAILER + T_LENGTH);

	if (bytes == UINT64_MAX || bytes > size - CKPT_ENCODED_TRAILER)
		return NULL;
	*ret_bytes = bytes;
	return file + size - CKPT_ENCODED_TRAILER - bytes;
}

/* Table and trailer, after what is before them was made longer or shorter. */
static void seal(uint8_t *file, size_t size, bool mend)
{
	uint8_t *trailer = file + size - CKPT_ENCODED_TRAILER;
	size_t bytes;
	uint8_t *table = table_of(file, size, &bytes);

	if (!table)
		return;
	if (mend)
		put_le(trailer + T_OFFSET, (uint64_t)(table - file), 8);
	put_digest(trailer + T_TABLE, table, bytes);
	put_digest(trailer + T_OWN, trailer, T_OWN);
}

/* A number of a record, or a reference. */
static void change_table(uint8_t *file, size_t size, struct prng *prng)
{
	static const struct {
		uint8_t at;
		uint8_t bytes;
	} numbers[] = {{R_OFFSET, 8}, {R_LENGTH, 4}, {R_KIND, 2}, {R_REFS, 2}, {R_DIGEST, 1}};
	size_t which = prng_below(prng, sizeof(numbers) / sizeof(numbers[0]));
	size_t bytes = 0;
	uint8_t *table = table_of(file, size, &bytes);

	if (!table || bytes < CKPT_ENCODED_RECORD)
		return;
	uint64_t count = ckpt_le64(file + size - CKPT_ENCODED_TRAILER + T_CHUNKS);
	count = count > 0 ? ckpt_min_u64(count, bytes / CKPT_ENCODED_RECORD) : 1;
	uint64_t refs = (bytes - count * CKPT_ENCODED_RECORD) / 4;
	if (refs > 0 && prng_below(prng, 3) == 0) {
		table += count * CKPT_ENCODED_RECORD + 4 * prng_below(prng, refs);
		put_le(table, prng_below(prng, 2) ? fuzz_edge(prng) : prng_below(prng, count), 4);
		return;
	}
	table += CKPT_ENCODED_RECORD * prng_below(prng, count) + numbers[which].at;
	uint64_t value = prng_below(prng, 2)
				 ? fuzz_edge(prng)
				 : (table[0] | (uint64_t)table[1] << 8) + prng_below(prng, 9) - 4;
	put_le(table, value, numbers[which].bytes);
}

/* Stored bytes: mostly near the beginning of a chunk, where lengths and offsets are. */
static void change_chunk(uint8_t *file, size_t size, struct prng *prng)
{
	size_t bytes = 0;
	uint8_t *table = table_of(file, size, &bytes);

	if (!table || table == file || bytes < CKPT_ENCODED_RECORD)
		return;
	uint8_t *record =
		table + CKPT_ENCODED_RECORD * prng_below(prng, bytes / CKPT_ENCODED_RECORD);
	uint64_t from = ckpt_le64(record) + prng_below(prng, 40);
	if (from >= (uint64_t)(table - file) || prng_below(prng, 4) == 0)
		from = prng_below(prng, (uint64_t)(table - file));
	file[from] = (uint8_t)(prng_below(prng, 2) ? prng_next(prng) : prng_below(prng, 10));
}

static size_t mutate_file(uint8_t *file, size_t size, size_t max, struct prng *prng)
{
	uint64_t what = prng_below(prng, 16);
	size_t bytes = 0;
	bool has_table = table_of(file, size, &bytes) != NULL;

	if (what == 0 || !has_table)
		return LLVMFuzzerMutate(file, size, max);
	if (what < 7) {
		for (uint64_t n = 1 + prng_below(prng, 4); n > 0; n--)
			change_chunk(file, size, prng);
	} else if (what < 12) {
		change_table(file, size, prng);
	} else if (what == 12) {
		put_le(file + size - CKPT_ENCODED_TRAILER + T_BYTES + 8 * prng_below(prng, 4),
			fuzz_edge(prng), 8);
	} else {
		/* Anything before the trailer, the table too. */
		size_t end = size - CKPT_ENCODED_TRAILER;
		uint8_t trailer[CKPT_ENCODED_TRAILER];
		memcpy(trailer, file + end, sizeof(trailer));
		size = LLVMFuzzerMutate(file, end, max - sizeof(trailer)) + sizeof(trailer);
		memcpy(file + size - sizeof(trailer), trailer, sizeof(trailer));
	}
	seal(file, size, what != 12 && prng_below(prng, 16) > 0);
	return size;
}

/* The shard that the trailer tells of is that of the index. */
static void follow_index(const struct input *in, uint8_t *file)
{
	struct ckpt_index *index = NULL;

	if (in->file_size < CKPT_ENCODED_TRAILER ||
		ckpt_index_decode(in->index, in->index_size, FUZZ_FILE, NULL, &index) < 0)
		return;
	uint8_t *trailer = file + in->file_size - CKPT_ENCODED_TRAILER;
	put_le(trailer + T_BYTES, index->layout->bytes, 8);
	put_le(trailer + T_CHUNKS, index->layout->chunk_count, 8);
	seal(file, in->file_size, true);
	ckpt_index_free(index);
}

static size_t mutate_index(
	uint8_t *data, size_t size, size_t max, const struct input *in, struct prng *prng)
{
	size_t room = max - size + in->index_size;
	uint8_t *index = malloc(room + 1);
	struct input now;

	FUZZ_CHECK(index);
	memcpy(index, in->index, in->index_size);
	size_t length = fuzz_mutate_index(index, in->index_size, room, prng);
	memmove(data + FRONT + length, in->file, in->file_size);
	memcpy(data + FRONT, index, length);
	free(index);
	put_le(data, length, FRONT);
	size = FRONT + length + in->file_size;
	if (split(data, size, &now))
		follow_index(&now, data + FRONT + length);
	return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};
	struct input in;

	if (!split(data, size, &in) || prng_below(&prng, 32) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 8) == 0)
		return mutate_index(data, size, max, &in, &prng);
	size_t front = FRONT + in.index_size;
	return front + mutate_file(data + front, in.file_size, max - front, &prng);
}
