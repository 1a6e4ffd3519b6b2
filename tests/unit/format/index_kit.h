/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes made by hand: every field as the test wants it, and a digest that fits. */
#ifndef CKPT_TEST_INDEX_KIT_H
#define CKPT_TEST_INDEX_KIT_H

#include "format_kit.h"

#include <stdlib.h>

#include <ckpt/version.h>
#include "base/buf.h"
#include "format/index.h"

#define KIT_AUTO UINT64_MAX

struct forgery {
	uint32_t major;
	uint32_t minor;
	uint32_t head_bytes;
	uint32_t rank;
	uint64_t shard_bytes;
	uint64_t header_bytes;
	uint64_t chunk_bytes;
	uint64_t tensors_bytes; /* KIT_AUTO: as many as there are */
	uint64_t meta_bytes;
	uint64_t chunk_count;
	const char *tensors;
	const char *meta;
	/* Records: those that the rule gives for a shard of one run of bytes behind its header. */
	size_t records;
	const char *tail; /* behind the records; NULL: nothing */
};

/* A good one: tensor "a" of ten bytes. */
#define FORGERY                                                                                    \
	{                                                                                          \
		.major = CKPT_FORMAT_MAJOR, .minor = CKPT_FORMAT_MINOR, .head_bytes = 72,          \
		.shard_bytes = 4106, .header_bytes = 4096, .chunk_bytes = 4096,                    \
		.tensors_bytes = KIT_AUTO, .meta_bytes = KIT_AUTO, .chunk_count = KIT_AUTO,        \
		.tensors = "{\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[10],"        \
			   "\"offset\":4096}],\"aliases\":[]}",                                    \
		.meta = "", .records = 2                                                           \
	}

KIT void kit_seal_index(struct ckpt_buf *out)
{
	struct ckpt_digest digest = ckpt_digest_of(out->data, out->len);

	ckpt_buf_put(out, digest.bytes, sizeof(digest.bytes));
}

KIT struct ckpt_buf kit_forge(const struct forgery *f)
{
	struct ckpt_buf out = {0};
	uint64_t tensors = strlen(f->tensors);
	uint64_t meta = strlen(f->meta);
	uint64_t start = 0;

	ckpt_buf_put(&out, "CKPTIDX", 8);
	ckpt_buf_put_le32(&out, f->major);
	ckpt_buf_put_le32(&out, f->minor);
	ckpt_buf_put_le32(&out, f->head_bytes);
	ckpt_buf_put_le32(&out, f->rank);
	ckpt_buf_put_le64(&out, f->shard_bytes);
	ckpt_buf_put_le64(&out, f->header_bytes);
	ckpt_buf_put_le64(&out, f->chunk_bytes);
	ckpt_buf_put_le64(&out, f->tensors_bytes == KIT_AUTO ? tensors : f->tensors_bytes);
	ckpt_buf_put_le64(&out, f->meta_bytes == KIT_AUTO ? meta : f->meta_bytes);
	ckpt_buf_put_le64(&out, f->chunk_count == KIT_AUTO ? f->records : f->chunk_count);
	if (f->head_bytes > 72 && f->head_bytes < 8192)
		ckpt_buf_fill(&out, 'h', f->head_bytes - 72);
	ckpt_buf_put(&out, f->tensors, tensors);
	ckpt_buf_put(&out, f->meta, meta);
	for (size_t i = 0; i < f->records; i++) {
		uint64_t end = start < f->header_bytes ? f->header_bytes : f->shard_bytes;
		uint64_t length = ckpt_min_u64(end - start, f->chunk_bytes);

		ckpt_buf_put_le64(&out, start);
		ckpt_buf_put_le32(&out, (uint32_t)length);
		ckpt_buf_fill(&out, (char)i, CKPT_DIGEST_SIZE);
		start += length;
	}
	ckpt_buf_puts(&out, f->tail ? f->tail : "");
	kit_seal_index(&out);
	assert_false(out.failed);
	return out;
}

/* Decodes from memory of exactly that size, so that a sanitizer sees a byte too many. */
KIT int kit_decode(
	const void *data, size_t length, struct ckpt_error *err, struct ckpt_index **ret_index)
{
	char *copy = malloc(length ? length : 1);
	int r;

	assert_non_null(copy);
	if (length)
		memcpy(copy, data, length);
	r = ckpt_index_decode(copy, length, "x.index", err, ret_index);
	free(copy);
	return r;
}

#endif
