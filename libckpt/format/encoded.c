/* SPDX-License-Identifier: Apache-2.0 */
/* Table and trailer of an encoded shard, written and read. What is read may be hostile. */
#include "format/encoded.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/index.h"
#include "format/index_head.h"
#include "format/naming.h"
#include "format/sealed.h"

#define MAGIC       "CKPTENC"
#define MAGIC_BYTES 8
#define MAJOR       1
#define MAJOR_BASED 2 /* of a file that has bases */
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
enum { AT_LENGTH = 8, AT_KIND = 12, AT_BASE = 13, AT_REFS = 14, AT_STORED_DIGEST = 16 };

/* Where the fields of a base are. */
enum { AT_STEP = 8, AT_ATTEMPT = 16, AT_INDEX_BYTES = 24, AT_INDEX_DIGEST = 32 };

static void put_le16(struct ckpt_buf *buf, uint16_t value)
{
	const unsigned char bytes[2] = {(unsigned char)value, (unsigned char)(value >> 8)};

	ckpt_buf_put(buf, bytes, sizeof(bytes));
}

static uint16_t le16(const unsigned char *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static void put_base(struct ckpt_buf *buf, const struct ckpt_encoded_base *base)
{
	ckpt_buf_put_le64(buf, base->generation);
	ckpt_buf_put_le64(buf, base->step);
	ckpt_buf_put_le64(buf, base->attempt);
	ckpt_buf_put_le64(buf, base->index_bytes);
	ckpt_buf_put(buf, base->index_digest.bytes, CKPT_DIGEST_SIZE);
}

void ckpt_encoded_put(const struct ckpt_encoded *encoded, struct ckpt_buf *buf)
{
	size_t table = buf->len;
	size_t refs = 0;

	for (size_t i = 0; i < encoded->chunk_count; i++) {
		const struct ckpt_encoded_chunk *c = &encoded->chunks[i];

		ckpt_buf_put_le64(buf, c->offset);
		ckpt_buf_put_le32(buf, c->length);
		put_le16(buf, (uint16_t)(c->kind | c->base << 8));
		put_le16(buf, c->ref_count);
		ckpt_buf_put(buf, c->digest.bytes, CKPT_DIGEST_SIZE);
		refs += c->ref_count;
	}
	CKPT_ASSERT(refs == encoded->ref_count);
	for (size_t i = 0; i < refs; i++)
		ckpt_buf_put_le32(buf, encoded->refs[i]);
	for (unsigned i = 0; i < encoded->base_count; i++)
		put_base(buf, &encoded->bases[i]);
	if (buf->failed)
		return;
	struct ckpt_digest digest = ckpt_digest_of(buf->data + table, buf->len - table);
	size_t trailer = buf->len;
	ckpt_buf_put(buf, MAGIC, MAGIC_BYTES);
	ckpt_buf_put_le32(buf, encoded->base_count > 0 ? MAJOR_BASED : MAJOR);
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
	uint32_t major = ckpt_le32(at + AT_MAJOR);
	struct ckpt_digest digest = ckpt_digest_of(at, AT_DIGEST);
	struct ckpt_encoded_trailer t = {
		.based = major == MAJOR_BASED,
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
	if (major != MAJOR && major != MAJOR_BASED)
		return ckpt_fail_at(err, CKPT_EVERSION, &(struct ckpt_where){.file = file},
			"%s is an encoded shard of version %u; this library reads versions up to "
			"%u: use a newer libckpt",
			file, major, MAJOR_BASED);
	if (ckpt_le64(at + AT_BYTES) != layout->bytes ||
		ckpt_le64(at + AT_CHUNKS) != layout->chunk_count)
		return ckpt_fail_at(err, CKPT_EINTEGRITY, &(struct ckpt_where){.file = file},
			"%s holds a shard of %llu bytes in %llu chunks, its index describes %llu "
			"bytes in %zu: it is another file; put the file back from a copy, or use "
			"another step",
			file, (unsigned long long)ckpt_le64(at + AT_BYTES),
			(unsigned long long)ckpt_le64(at + AT_CHUNKS),
			(unsigned long long)layout->bytes, layout->chunk_count);
	if (t.based) {
		records += CKPT_ENCODED_BASE;
		most += UINT64_C(1) * CKPT_ENCODED_BASES_MAX * CKPT_ENCODED_BASE;
	}
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

/* Returns how many references the chunks have together, perhaps more than there are in the table. */
static uint64_t read_records(struct ckpt_encoded *e, const unsigned char *at)
{
	uint64_t refs = 0;

	for (size_t i = 0; i < e->chunk_count; i++, at += CKPT_ENCODED_RECORD) {
		struct ckpt_encoded_chunk *c = &e->chunks[i];

		c->offset = ckpt_le64(at);
		c->length = ckpt_le32(at + AT_LENGTH);
		c->kind = at[AT_KIND];
		c->base = at[AT_BASE];
		c->ref_count = le16(at + AT_REFS);
		/* At most 2^24 chunks and 2^16 refs of each: the sum is compared as it is, before any is used. */
		c->first_ref = (uint32_t)ckpt_min_u64(refs, UINT32_MAX);
		refs += c->ref_count;
		memcpy(c->digest.bytes, at + AT_STORED_DIGEST, CKPT_DIGEST_SIZE);
	}
	return refs;
}

static void read_refs(struct ckpt_encoded *e, const unsigned char *at)
{
	for (size_t i = 0; i < e->ref_count; i++, at += 4)
		e->refs[i] = ckpt_le32(at);
}

static void read_bases(struct ckpt_encoded *e, const unsigned char *at)
{
	for (unsigned i = 0; i < e->base_count; i++, at += CKPT_ENCODED_BASE) {
		struct ckpt_encoded_base *b = &e->bases[i];

		b->generation = ckpt_le64(at);
		b->step = ckpt_le64(at + AT_STEP);
		b->attempt = ckpt_le64(at + AT_ATTEMPT);
		b->index_bytes = ckpt_le64(at + AT_INDEX_BYTES);
		memcpy(b->index_digest.bytes, at + AT_INDEX_DIGEST, CKPT_DIGEST_SIZE);
	}
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

/* Of a chunk that has no bytes of its own. */
static bool same_is_good(const struct ckpt_encoded_chunk *c)
{
	static const struct ckpt_digest none;

	return c->base > 0 && c->offset == 0 && c->length == 0 && c->ref_count == 0 &&
	       ckpt_digest_equal(&c->digest, &none);
}

/* Why a record cannot be; NULL: it can. */
static const char *bad_record(
	const struct ckpt_encoded *e, const struct ckpt_layout *layout, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &e->chunks[chunk];
	uint32_t length = layout->chunks[chunk].length;

	if (c->kind >= CKPT_ENCODED_KIND_END)
		return "stored in an unknown way";
	if (c->base > e->base_count || (c->base > 0 && c->kind == CKPT_ENCODED_PLAIN) ||
		(c->base > 0 && c->ref_count > 0))
		return "decoded with a base that it cannot have";
	if (c->kind == CKPT_ENCODED_SAME)
		return same_is_good(c) ? NULL : "that of a base, and stored all the same";
	if (c->kind == CKPT_ENCODED_PLAIN ? c->length != length || c->ref_count != 0
					  : c->length == 0 || c->length >= length)
		return "stored with an impossible length";
	if (c->offset > e->table_offset || c->length > e->table_offset - c->offset)
		return "stored outside of the file";
	return refs_are_good(e, chunk) ? NULL
				       : "decoded from chunks that it cannot be decoded from";
}

/* They are steps of one lineage, and ascend. */
static bool bases_are_good(const struct ckpt_encoded *e)
{
	for (unsigned i = 0; i < e->base_count; i++) {
		const struct ckpt_encoded_base *b = &e->bases[i];

		if (b->generation < 1 || b->generation > CKPT_GENERATION_MAX ||
			b->step > CKPT_STEP_MAX || b->index_bytes < 1 ||
			b->index_bytes > CKPT_INDEX_MAX)
			return false;
		if (i > 0 && (b->step <= b[-1].step || b->generation < b[-1].generation))
			return false;
	}
	return true;
}

static int check_refs(const struct ckpt_encoded *e, const char *file, struct ckpt_error *err)
{
	for (size_t i = 0; i < e->chunk_count; i++)
		if (e->chunks[i].ref_count > CKPT_ENCODED_REFS_MAX)
			return refuse(
				err, CKPT_EFORMAT, file, "has a chunk with too many references");
	return 0;
}

static int check_table(const struct ckpt_encoded *e, const struct ckpt_layout *layout,
	const char *file, struct ckpt_error *err)
{
	if (!bases_are_good(e))
		return refuse(
			err, CKPT_EFORMAT, file, "names steps that it needs, which it cannot need");
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

/* How many bases are behind so many references. False: the table has another length. */
static bool count_bases(const struct ckpt_encoded_trailer *trailer, size_t records, uint64_t refs,
	unsigned *ret_count)
{
	uint64_t left = trailer->table_bytes - records;

	*ret_count = 0;
	if (refs > left / 4)
		return false;
	left -= refs * 4;
	if (!trailer->based)
		return left == 0;
	*ret_count = (unsigned)ckpt_min_u64(left / CKPT_ENCODED_BASE, UINT32_MAX);
	return left % CKPT_ENCODED_BASE == 0 && *ret_count >= 1 &&
	       *ret_count <= CKPT_ENCODED_BASES_MAX;
}

/* Of a table that is as it was written. CKPT_EFORMAT, -ENOMEM: see ckpt_encoded_decode(). */
static int decode_table(struct ckpt_encoded *e, const unsigned char *table,
	const struct ckpt_encoded_trailer *trailer, const char *file, struct ckpt_error *err)
{
	size_t records = e->chunk_count * CKPT_ENCODED_RECORD;
	uint64_t refs = read_records(e, table);
	int r = check_refs(e, file, err);

	if (r < 0)
		return r;
	if (!count_bases(trailer, records, refs, &e->base_count))
		return refuse(err, CKPT_EFORMAT, file,
			"has a table that is longer or shorter than what its chunks refer to");
	e->ref_count = (size_t)refs;
	e->refs = ckpt_alloc_array(e->ref_count + 1, sizeof(*e->refs));
	if (!e->refs)
		return ckpt_fail(err, -ENOMEM, "out of memory for the table of %s", file);
	read_refs(e, table + records);
	read_bases(e, table + records + e->ref_count * 4);
	return 0;
}

int ckpt_encoded_decode(const void *table, const struct ckpt_encoded_trailer *trailer,
	const struct ckpt_layout *layout, const char *file, struct ckpt_error *err,
	struct ckpt_encoded **ret_encoded)
{
	struct ckpt_digest digest = ckpt_digest_of(table, trailer->table_bytes);
	struct ckpt_encoded *e;
	int r;

	if (!ckpt_digest_equal(&digest, &trailer->table_digest))
		return refuse(err, CKPT_EINTEGRITY, file,
			"has a table that differs from its digest: it is damaged");
	CKPT_ASSERT(trailer->table_bytes >= layout->chunk_count * CKPT_ENCODED_RECORD);
	e = ckpt_alloc(sizeof(*e));
	if (e) {
		e->bytes = layout->bytes;
		e->table_offset = trailer->table_offset;
		e->chunk_count = layout->chunk_count;
		e->chunks = ckpt_alloc_array(e->chunk_count, sizeof(*e->chunks));
	}
	if (!e || !e->chunks) {
		ckpt_encoded_free(e);
		return ckpt_fail(err, -ENOMEM, "out of memory for the table of %s", file);
	}
	r = decode_table(e, table, trailer, file, err);
	if (r == 0)
		r = check_table(e, layout, file, err);
	if (r < 0) {
		ckpt_encoded_free(e);
		return r;
	}
	*ret_encoded = e;
	return 0;
}

void ckpt_encoded_free(struct ckpt_encoded *encoded)
{
	if (!encoded)
		return;
	ckpt_free(encoded->chunks);
	ckpt_free(encoded->refs);
	ckpt_free(encoded);
}
