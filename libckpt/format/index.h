/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: one rank's description of its shard. It is logical, so that it does not depend on how the shard is stored.
 * FORMAT.md has the bytes.
 */
#ifndef CKPT_FORMAT_INDEX_H
#define CKPT_FORMAT_INDEX_H

#include "base/buf.h"
#include "format/layout.h"

#define CKPT_INDEX_MAX   (UINT64_C(1) << 30)
#define CKPT_META_MAX    (UINT64_C(64) << 20)
/* Most values in meta, checked when it is given and when it is read. */
#define CKPT_META_VALUES 4000000
#define CKPT_META_DEPTH  32

struct ckpt_index {
	struct ckpt_layout *layout; /* with digests, without header */
	char *meta;                 /* JSON given by the caller; NUL-terminated; NULL: none */
	size_t meta_bytes;
	uint32_t rank;
};

/*
 * Appends the encoded index. The layout's digests must be set, and meta must have passed ckpt_json_scan(). -ENOMEM,
 * -E2BIG.
 */
int ckpt_index_encode(const struct ckpt_layout *layout, uint32_t rank, const char *meta,
	size_t meta_bytes, struct ckpt_buf *out, struct ckpt_error *err);

/*
 * Decodes an index. Checks every size, count, overlap and depth before using it, and that the chunk boundaries follow
 * the rule. Uses less memory than four times the length. CKPT_EINTEGRITY (the digest differs), CKPT_EFORMAT,
 * CKPT_EVERSION, -ENOMEM. `file` is for messages.
 */
int ckpt_index_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_index **ret_index);
void ckpt_index_free(struct ckpt_index *index);

/*
 * Compares the header chunk of a plain shard (the bytes as read) with the index: same tensors, types, shapes, offsets;
 * else CKPT_EFORMAT. For verification.
 */
int ckpt_index_check_header(const struct ckpt_index *index, const void *header, size_t length,
	const char *file, struct ckpt_error *err);

#endif
