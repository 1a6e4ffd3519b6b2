/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes an index, from untrusted bytes. */
#include "format/index.h"

#include <ckpt/version.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/index_head.h"
#include "format/index_tensors.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "format/sealed.h"

static int refuse(struct ckpt_error *err, int code, const char *file, const char *why)
{
	return ckpt_fail_at(err, code, &(struct ckpt_where){.file = file}, "%s %s", file, why);
}

/*
 * Checks what every version has: the magic, the major version, the digest at the end. The digest is checked first, so
 * that a damaged version is reported as damage.
 */
static int check_frame(
	const unsigned char *data, size_t length, const char *file, struct ckpt_error *err)
{
	struct ckpt_digest digest;

	if (length > CKPT_INDEX_MAX)
		return refuse(err, CKPT_EFORMAT, file, "is longer than an index may be");
	if (length < CKPT_INDEX_HEAD_BYTES + CKPT_DIGEST_SIZE)
		return refuse(err, CKPT_EFORMAT, file, "is too short to be an index");
	if (memcmp(data, CKPT_INDEX_MAGIC, CKPT_INDEX_MAGIC_BYTES) != 0)
		return refuse(err, CKPT_EFORMAT, file, "does not begin with the magic of an index");
	digest = ckpt_digest_of(data, length - CKPT_DIGEST_SIZE);
	if (memcmp(digest.bytes, data + length - CKPT_DIGEST_SIZE, CKPT_DIGEST_SIZE) != 0)
		return refuse(err, CKPT_EINTEGRITY, file,
			"differs from the digest at its end: it is damaged or cut short");
	return ckpt_format_check(ckpt_le32(data + 8), ckpt_le32(data + 12), file, err);
}

static struct ckpt_index_head read_head(const unsigned char *data)
{
	return (struct ckpt_index_head){
		.major = ckpt_le32(data + 8),
		.minor = ckpt_le32(data + 12),
		.head_bytes = ckpt_le32(data + 16),
		.rank = ckpt_le32(data + 20),
		.shard_bytes = ckpt_le64(data + 24),
		.header_bytes = ckpt_le64(data + 32),
		.chunk_bytes = ckpt_le64(data + 40),
		.tensors_bytes = ckpt_le64(data + 48),
		.meta_bytes = ckpt_le64(data + 56),
		.chunk_count = ckpt_le64(data + 64),
	};
}

/* Subtracts `count` times `size` bytes from `left`; false if there are fewer. */
static bool take(uint64_t *left, uint64_t count, uint64_t size)
{
	if (count > *left / size)
		return false;
	*left -= count * size;
	return true;
}

/* Why the head is invalid; NULL: it is valid. */
static const char *bad_head(const struct ckpt_index_head *h, size_t length)
{
	bool newer = h->minor > CKPT_FORMAT_MINOR;
	uint64_t left = length - CKPT_DIGEST_SIZE;

	/* A newer minor version may have more in its head, and after its chunks. */
	if (h->head_bytes < CKPT_INDEX_HEAD_BYTES || h->head_bytes > CKPT_INDEX_HEAD_MAX ||
		(!newer && h->head_bytes != CKPT_INDEX_HEAD_BYTES) ||
		!take(&left, h->head_bytes, 1))
		return "has a head of a wrong length";
	if (h->rank >= CKPT_WORLD_MAX)
		return "has an impossible rank";
	if (h->shard_bytes > CKPT_SHARD_BYTES_MAX || h->header_bytes > h->shard_bytes)
		return "has an impossible shard size";
	if (h->header_bytes == 0 || h->header_bytes % CKPT_HEADER_ALIGN != 0 ||
		h->header_bytes - 8 > CKPT_HEADER_MAX)
		return "has an impossible header size";
	if (h->chunk_bytes == 0 || h->chunk_bytes > CKPT_CHUNK_BYTES_MAX)
		return "has an impossible chunk size";
	if (h->meta_bytes > CKPT_META_MAX)
		return "has too much meta";
	if (h->chunk_count > CKPT_CHUNKS_MAX)
		return "has more chunks than a shard may have";
	if (!take(&left, h->tensors_bytes, 1) || !take(&left, h->meta_bytes, 1) ||
		!take(&left, h->chunk_count, CKPT_INDEX_RECORD) || (!newer && left != 0))
		return "has parts whose lengths do not add up to its size";
	return NULL;
}

/* Reads the digests; the chunks must be those of the rule. */
static int read_chunks(struct ckpt_layout *layout, const unsigned char *records, uint64_t count,
	const char *file, struct ckpt_error *err)
{
	int r;

	/* Counted first: `count` is limited by the file's length. */
	if (ckpt_layout_cuts(layout) != count)
		return refuse(
			err, CKPT_EFORMAT, file, "has another number of chunks than its shard");
	r = ckpt_layout_cut(layout, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < count; i++, records += CKPT_INDEX_RECORD) {
		struct ckpt_chunk *chunk = &layout->chunks[i];

		if (ckpt_le64(records) != chunk->offset || ckpt_le32(records + 8) != chunk->length)
			return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
				"%s has chunk %zu at a wrong place", file, i);
		memcpy(chunk->digest.bytes, records + 12, CKPT_DIGEST_SIZE);
	}
	return 0;
}

static int read_meta(struct ckpt_index *index, const char *meta, size_t length, const char *file,
	struct ckpt_error *err)
{
	int r;

	if (length == 0)
		return 0;
	r = ckpt_json_scan(meta, length, CKPT_META_VALUES, CKPT_META_DEPTH, file, err);
	if (r < 0)
		return r;
	/* Allocated memory is zeroed, so the text is NUL-terminated. */
	index->meta = ckpt_alloc(length + 1);
	if (!index->meta)
		return ckpt_fail(err, -ENOMEM, "out of memory for the meta of %s", file);
	memcpy(index->meta, meta, length);
	index->meta_bytes = length;
	return 0;
}

static int read_parts(struct ckpt_index *index, const unsigned char *data,
	const struct ckpt_index_head *h, const char *file, struct ckpt_error *err)
{
	const char *tensors = (const char *)data + h->head_bytes;
	const char *meta = tensors + h->tensors_bytes;
	const unsigned char *records = (const unsigned char *)meta + h->meta_bytes;
	struct ckpt_layout *layout = index->layout;
	int r;

	layout->bytes = h->shard_bytes;
	layout->header_bytes = h->header_bytes;
	layout->chunk_bytes = h->chunk_bytes;
	index->rank = h->rank;
	r = ckpt_index_read_tensors(layout, tensors, h->tensors_bytes, h->head_bytes, file, err);
	if (r == 0)
		r = read_chunks(layout, records, h->chunk_count, file, err);
	if (r == 0)
		r = read_meta(index, meta, h->meta_bytes, file, err);
	return r;
}

int ckpt_index_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_index **ret_index)
{
	struct ckpt_index_head head;
	struct ckpt_index *index;
	const char *bad;
	int r;

	r = check_frame(data, length, file, err);
	if (r < 0)
		return r;
	head = read_head(data);
	bad = bad_head(&head, length);
	if (bad)
		return refuse(err, CKPT_EFORMAT, file, bad);
	index = ckpt_alloc(sizeof(*index));
	if (!index)
		return ckpt_fail(err, -ENOMEM, "out of memory for %s", file);
	index->layout = ckpt_alloc(sizeof(*index->layout));
	if (index->layout)
		r = read_parts(index, data, &head, file, err);
	else
		r = ckpt_fail(err, -ENOMEM, "out of memory for %s", file);
	if (r < 0) {
		ckpt_index_free(index);
		return r;
	}
	*ret_index = index;
	return 0;
}

void ckpt_index_free(struct ckpt_index *index)
{
	if (!index)
		return;
	ckpt_layout_free(index->layout);
	ckpt_free(index->meta);
	ckpt_free(index);
}

int ckpt_index_check_header(const struct ckpt_index *index, const void *header, size_t length,
	const char *file, struct ckpt_error *err)
{
	return ckpt_safetensors_check(index->layout, header, length, file, err);
}
