/* SPDX-License-Identifier: Apache-2.0 */
/* Writing an index. */
#include "format/index.h"

#include <ckpt/version.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "format/dtype.h"
#include "format/index_head.h"
#include "format/index_tensors.h"
#include "format/json_put.h"
#include "format/manifest.h"

static void put_digest(struct ckpt_buf *out, const struct ckpt_digest *digest)
{
	char hex[CKPT_DIGEST_HEX];

	ckpt_digest_hex(digest, hex);
	ckpt_buf_puts(out, ",\"digest\":\"");
	ckpt_buf_puts(out, hex);
	ckpt_buf_put(out, "\"", 1);
}

static void put_tensor(
	struct ckpt_buf *out, const struct ckpt_layout *layout, const struct ckpt_entry *e)
{
	CKPT_ASSERT(e->global_shape || !e->global_start);
	ckpt_buf_puts(out, "{\"name\":");
	ckpt_put_name(out, e->name);
	ckpt_buf_puts(out, ",\"dtype\":\"");
	ckpt_buf_puts(out, ckpt_dtype_name(e->dtype));
	ckpt_buf_puts(out, "\",\"shape\":");
	ckpt_put_dims(out, e->shape, e->ndim);
	ckpt_buf_puts(out, ",\"offset\":");
	ckpt_put_u64(out, e->offset);
	if (e->global_shape) {
		ckpt_buf_puts(out, ",\"global_shape\":");
		ckpt_put_dims(out, e->global_shape, e->ndim);
	}
	if (e->global_start) {
		ckpt_buf_puts(out, ",\"global_start\":");
		ckpt_put_dims(out, e->global_start, e->ndim);
	}
	if (e->own)
		put_digest(out, &layout->digests[e->own - 1]);
	if (e->varies)
		ckpt_buf_puts(out, ",\"varies\":1");
	ckpt_buf_put(out, "}", 1);
}

void ckpt_index_put_tensors(struct ckpt_buf *out, const struct ckpt_layout *layout)
{
	ckpt_buf_puts(out, "{\"tensors\":[");
	for (size_t i = 0; i < layout->entry_count; i++) {
		if (i > 0)
			ckpt_buf_put(out, ",", 1);
		put_tensor(out, layout, &layout->entries[i]);
	}
	ckpt_buf_puts(out, "],\"aliases\":[");
	for (size_t i = 0; i < layout->alias_count; i++) {
		ckpt_buf_puts(out, i > 0 ? ",{\"name\":" : "{\"name\":");
		ckpt_put_name(out, layout->aliases[i].name);
		ckpt_buf_puts(out, ",\"target\":");
		ckpt_put_name(out, layout->aliases[i].target);
		ckpt_buf_put(out, "}", 1);
	}
	ckpt_buf_puts(out, "]}");
}

static void put_head(struct ckpt_buf *out, const struct ckpt_index_head *head)
{
	ckpt_buf_put(out, CKPT_INDEX_MAGIC, CKPT_INDEX_MAGIC_BYTES);
	ckpt_buf_put_le32(out, head->major);
	ckpt_buf_put_le32(out, head->minor);
	ckpt_buf_put_le32(out, head->head_bytes);
	ckpt_buf_put_le32(out, head->rank);
	ckpt_buf_put_le64(out, head->shard_bytes);
	ckpt_buf_put_le64(out, head->header_bytes);
	ckpt_buf_put_le64(out, head->chunk_bytes);
	ckpt_buf_put_le64(out, head->tensors_bytes);
	ckpt_buf_put_le64(out, head->meta_bytes);
	ckpt_buf_put_le64(out, head->chunk_count);
}

static void put_chunk(struct ckpt_buf *out, const struct ckpt_chunk *chunk)
{
	unsigned char record[CKPT_INDEX_RECORD];

	for (unsigned i = 0; i < 8; i++)
		record[i] = (unsigned char)(chunk->offset >> (8 * i));
	for (unsigned i = 0; i < 4; i++)
		record[8 + i] = (unsigned char)(chunk->length >> (8 * i));
	memcpy(record + 12, chunk->digest.bytes, CKPT_DIGEST_SIZE);
	ckpt_buf_put(out, record, sizeof(record));
}

int ckpt_index_encode(const struct ckpt_layout *layout, uint32_t rank, const char *meta,
	size_t meta_bytes, struct ckpt_buf *out, struct ckpt_error *err)
{
	struct ckpt_index_head head = {.major = CKPT_FORMAT_MAJOR,
		.minor = CKPT_FORMAT_MINOR,
		.head_bytes = CKPT_INDEX_HEAD_BYTES,
		.rank = rank,
		.shard_bytes = layout->bytes,
		.header_bytes = layout->header_bytes,
		.chunk_bytes = layout->chunk_bytes,
		.meta_bytes = meta_bytes,
		.chunk_count = layout->chunk_count};
	struct ckpt_buf tensors = {0};
	struct ckpt_digest digest;
	size_t begin = out->len;

	CKPT_ASSERT(rank < CKPT_WORLD_MAX);
	CKPT_ASSERT(layout->chunk_count > 0 && layout->chunk_count <= CKPT_CHUNKS_MAX);
	if (meta_bytes > CKPT_META_MAX)
		return ckpt_fail(err, -E2BIG, "meta has %zu bytes, but at most %llu are allowed",
			meta_bytes, (unsigned long long)CKPT_META_MAX);
	ckpt_index_put_tensors(&tensors, layout);
	head.tensors_bytes = tensors.len;
	put_head(out, &head);
	ckpt_buf_put(out, tensors.data, tensors.len);
	out->failed = out->failed || tensors.failed;
	ckpt_buf_free(&tensors);
	ckpt_buf_put(out, meta, meta_bytes);
	for (size_t i = 0; i < layout->chunk_count; i++)
		put_chunk(out, &layout->chunks[i]);
	if (out->failed)
		return ckpt_fail(err, -ENOMEM, "out of memory for the index of %zu tensors",
			layout->entry_count);
	digest = ckpt_digest_of(out->data + begin, out->len - begin);
	ckpt_buf_put(out, digest.bytes, sizeof(digest.bytes));
	if (out->failed)
		return ckpt_fail(err, -ENOMEM, "out of memory for the index of %zu tensors",
			layout->entry_count);
	if (out->len - begin > CKPT_INDEX_MAX)
		return ckpt_fail(err, -E2BIG,
			"the index of %zu tensors, %zu aliases and %zu chunks has %zu bytes; at "
			"most %llu are read back: save fewer names, or use larger chunks",
			layout->entry_count, layout->alias_count, layout->chunk_count,
			out->len - begin, (unsigned long long)CKPT_INDEX_MAX);
	return 0;
}
