/* SPDX-License-Identifier: Apache-2.0 */
/* Table and trailer of an encoded shard, written and read. What is read may be hostile. */
#include "format/encoded.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/index_head.h"
#include "format/sealed.h"

#define MAGIC       "CKPTENC"
#define MAGIC_BYTES 8
#define MAJOR       1
#define MINOR       0

/* Where the fields of the trailer are. */
enum {
	AT_MAJOR = 8,
	AT_MINOR = 12,
	AT_BYTES = 16,
	AT_CHUNKS = 24,
	AT_TABLE_OFFSET = 32,
	AT_TABLE_BYTES = 40,
	AT_TABLE_DIGEST = 48,
	AT_DIGEST = 64,
};

/* Where the fields of a record are. */
enum { AT_LENGTH = 8, AT_KIND = 12, AT_REFS = 14, AT_STORED_DIGEST = 16 };

static void put_le16(struct ckpt_buf *buf, uint16_t value)
{
	const unsigned char bytes[2] = {(unsigned char)value, (unsigned char)(value >> 8)};

	ckpt_buf_put(buf, bytes, sizeof(bytes));
}

static uint16_t le16(const unsigned char *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

void ckpt_encoded_put(const struct ckpt_encoded *encoded, struct ckpt_buf *buf)
{
	size_t table = buf->len;
	size_t refs = 0;

	for (size_t i = 0; i < encoded->chunk_count; i++) {
		const struct ckpt_encoded_chunk *c = &encoded->chunks[i];

		ckpt_buf_put_le64(buf, c->offset);
		ckpt_buf_put_le32(buf, c->length);
		put_le16(buf, c->kind);
		put_le16(buf, c->ref_count);
		ckpt_buf_put(buf, c->digest.bytes, CKPT_DIGEST_SIZE);
		refs += c->ref_count;
	}
	CKPT_ASSERT(refs == encoded->ref_count);
	for (size_t i = 0; i < refs; i++)
		ckpt_buf_put_le32(buf, encoded->refs[i]);
	if (buf->failed)
		return;
	struct ckpt_digest digest = ckpt_digest_of(buf->data + table, buf->len - table);
	size_t trailer = buf->len;
	ckpt_buf_put(buf, MAGIC, MAGIC_BYTES);
	ckpt_buf_put_le32(buf, MAJOR);
	ckpt_buf_put_le32(buf, MINOR);
	ckpt_buf_put_le64(buf, encoded->bytes);
	ckpt_buf_put_le64(buf, encoded->chunk_count);
	ckpt_buf_put_le64(buf, encoded->table_offset);
	ckpt_buf_put_le64(buf, trailer - table);
	ckpt_buf_put(buf, digest.bytes, CKPT_DIGEST_SIZE);
	if (buf->failed)
		return;
	digest = ckpt_digest_of(buf->data + trailer, buf->len - trailer);
	ckpt_buf_put(buf, digest.bytes, CKPT_DIGEST_SIZE);
}

static int refuse(struct ckpt_error *err, int code, const char *file, const char *why)
{
	return ckpt_fail_at(err, code, &(struct ckpt_where){.file = file},
		"%s %s; put the file back from a copy, or use another step", file, why);
}

int ckpt_encoded_read_trailer(const void *data, uint64_t file_bytes,
	const struct ckpt_layout *layout, const char *file, struct ckpt_error *err,
	struct ckpt_encoded_trailer *ret_trailer)
{
	const unsigned char *at = data;
	uint64_t records = (uint64_t)layout->chunk_count * CKPT_ENCODED_RECORD;
	uint64_t most = records + (uint64_t)layout->chunk_count * CKPT_ENCODED_REFS_MAX * 4;
	struct ckpt_digest digest = ckpt_digest_of(at, AT_DIGEST);
	struct ckpt_encoded_trailer t = {
		.table_offset = ckpt_le64(at + AT_TABLE_OFFSET),
		.table_bytes = ckpt_le64(at + AT_TABLE_BYTES),
	};

	CKPT_ASSERT(file_bytes >= CKPT_ENCODED_TRAILER);
	if (memcmp(at, MAGIC, MAGIC_BYTES) != 0)
		return refuse(err, CKPT_EINCOMPLETE, file,
			"does not end as an encoded shard does: it was cut short or added to");
	if (memcmp(digest.bytes, at + AT_DIGEST, CKPT_DIGEST_SIZE) != 0)
		return refuse(err, CKPT_EINTEGRITY, file,
			"ends with a trailer that differs from its digest: it is damaged");
	if (ckpt_le32(at + AT_MAJOR) != MAJOR)
		return ckpt_fail_at(err, CKPT_EVERSION, &(struct ckpt_where){.file = file},
			"%s is an encoded shard of version %u; this library reads version %u: use "
			"a "
			"newer libckpt",
			file, ckpt_le32(at + AT_MAJOR), MAJOR);
	if (ckpt_le64(at + AT_BYTES) != layout->bytes ||
		ckpt_le64(at + AT_CHUNKS) != layout->chunk_count)
		return ckpt_fail_at(err, CKPT_EINTEGRITY, &(struct ckpt_where){.file = file},
			"%s holds a shard of %llu bytes in %llu chunks, its index describes %llu "
			"bytes in %zu: it is another file; put the file back from a copy, or use "
			"another step",
			file, (unsigned long long)ckpt_le64(at + AT_BYTES),
			(unsigned long long)ckpt_le64(at + AT_CHUNKS),
			(unsigned long long)layout->bytes, layout->chunk_count);
	if (t.table_bytes < records || t.table_bytes > most || (t.table_bytes - records) % 4 != 0)
		return refuse(err, CKPT_EFORMAT, file, "has a table of an impossible size");
	if (t.table_offset > file_bytes ||
		file_bytes - t.table_offset != t.table_bytes + CKPT_ENCODED_TRAILER)
		return refuse(err, CKPT_EINCOMPLETE, file,
			"has its table at another place than its trailer says: it was cut or "
			"added to");
	memcpy(t.table_digest.bytes, at + AT_TABLE_DIGEST, CKPT_DIGEST_SIZE);
	*ret_trailer = t;
	return 0;
}

static void read_records(struct ckpt_encoded *e, const unsigned char *at)
{
	uint64_t refs = 0;

	for (size_t i = 0; i < e->chunk_count; i++, at += CKPT_ENCODED_RECORD) {
		struct ckpt_encoded_chunk *c = &e->chunks[i];

		c->offset = ckpt_le64(at);
		c->length = ckpt_le32(at + AT_LENGTH);
		c->kind = le16(at + AT_KIND);
		c->ref_count = le16(at + AT_REFS);
		/* At most 2^24 chunks and 2^16 refs of each: the sum is compared as it is, before any is used. */
		c->first_ref = (uint32_t)ckpt_min_u64(refs, UINT32_MAX);
		refs += c->ref_count;
		memcpy(c->digest.bytes, at + AT_STORED_DIGEST, CKPT_DIGEST_SIZE);
	}
	for (size_t i = 0; i < e->ref_count; i++, at += 4)
		e->refs[i] = ckpt_le32(at);
}

static bool refs_are_good(const struct ckpt_encoded *e, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &e->chunks[chunk];

	for (size_t i = 0; i < c->ref_count; i++) {
		uint32_t ref = e->refs[c->first_ref + i];

		if (ref >= e->chunk_count || ref == chunk || e->chunks[ref].ref_count != 0)
			return false;
		if (i > 0 && ref <= e->refs[c->first_ref + i - 1])
			return false;
	}
	return true;
}

/* Why a record cannot be; NULL: it can. */
static const char *bad_record(
	const struct ckpt_encoded *e, const struct ckpt_layout *layout, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &e->chunks[chunk];
	uint32_t length = layout->chunks[chunk].length;

	if (c->kind >= CKPT_ENCODED_KIND_END)
		return "stored in an unknown way";
	if (c->kind == CKPT_ENCODED_PLAIN ? c->length != length || c->ref_count != 0
					  : c->length == 0 || c->length >= length)
		return "stored with an impossible length";
	if (c->offset > e->table_offset || c->length > e->table_offset - c->offset)
		return "stored outside of the file";
	return refs_are_good(e, chunk) ? NULL
				       : "decoded from chunks that it cannot be decoded from";
}

static int check_table(const struct ckpt_encoded *e, const struct ckpt_layout *layout,
	const char *file, struct ckpt_error *err)
{
	uint64_t refs = 0;

	for (size_t i = 0; i < e->chunk_count; i++) {
		refs += e->chunks[i].ref_count;
		if (e->chunks[i].ref_count > CKPT_ENCODED_REFS_MAX || refs > e->ref_count)
			return refuse(
				err, CKPT_EFORMAT, file, "has a chunk with too many references");
	}
	if (refs != e->ref_count)
		return refuse(err, CKPT_EFORMAT, file, "has references of no chunk");
	for (size_t i = 0; i < e->chunk_count; i++) {
		const char *why = bad_record(e, layout, i);

		if (why)
			return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
				"%s has a malformed table: chunk %zu is %s; put the file back "
				"from a copy, or use another step",
				file, i, why);
	}
	return 0;
}

int ckpt_encoded_decode(const void *table, const struct ckpt_encoded_trailer *trailer,
	const struct ckpt_layout *layout, const char *file, struct ckpt_error *err,
	struct ckpt_encoded **ret_encoded)
{
	struct ckpt_digest digest = ckpt_digest_of(table, trailer->table_bytes);
	size_t records = layout->chunk_count * CKPT_ENCODED_RECORD;
	struct ckpt_encoded *e;
	int r;

	if (!ckpt_digest_equal(&digest, &trailer->table_digest))
		return refuse(err, CKPT_EINTEGRITY, file,
			"has a table that differs from its digest: it is damaged");
	CKPT_ASSERT(trailer->table_bytes >= records);
	e = ckpt_alloc(sizeof(*e));
	if (!e)
		goto no_memory;
	e->bytes = layout->bytes;
	e->table_offset = trailer->table_offset;
	e->chunk_count = layout->chunk_count;
	e->ref_count = (trailer->table_bytes - records) / 4;
	e->chunks = ckpt_alloc_array(e->chunk_count, sizeof(*e->chunks));
	e->refs = ckpt_alloc_array(e->ref_count + 1, sizeof(*e->refs));
	if (!e->chunks || !e->refs)
		goto no_memory;
	read_records(e, table);
	r = check_table(e, layout, file, err);
	if (r < 0) {
		ckpt_encoded_free(e);
		return r;
	}
	*ret_encoded = e;
	return 0;
no_memory:
	ckpt_encoded_free(e);
	return ckpt_fail(err, -ENOMEM, "out of memory for the table of %s", file);
}

void ckpt_encoded_free(struct ckpt_encoded *encoded)
{
	if (!encoded)
		return;
	ckpt_free(encoded->chunks);
	ckpt_free(encoded->refs);
	ckpt_free(encoded);
}
