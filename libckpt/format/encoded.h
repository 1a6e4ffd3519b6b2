/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of an encoded shard: where the stored bytes of each chunk are in the file, and which chunks are decoded
 * first. The chunks are those of the shard's index. FORMAT.md, section 23, has the bytes. Pure.
 */
#ifndef CKPT_FORMAT_ENCODED_H
#define CKPT_FORMAT_ENCODED_H

#include "base/buf.h"
#include "format/layout.h"

#define CKPT_ENCODED_TRAILER   80 /* bytes, at the end of the file */
#define CKPT_ENCODED_RECORD    32
#define CKPT_ENCODED_REFS_MAX  64 /* of a chunk */
#define CKPT_ENCODED_BASE      48 /* bytes */
#define CKPT_ENCODED_BASES_MAX 16 /* of a file */

enum ckpt_encoded_kind {
	CKPT_ENCODED_PLAIN = 0, /* the stored bytes are the chunk */
	CKPT_ENCODED_PARTS = 1, /* parts, see engine/shard/chunk_parts.h */
	CKPT_ENCODED_SAME = 2,  /* none: the chunk is that of its base */
	CKPT_ENCODED_KIND_END
};

struct ckpt_encoded_chunk {
	uint64_t offset; /* in the file */
	uint32_t length; /* of the stored bytes; never more than the chunk's */
	uint8_t kind;
	uint8_t base; /* 1 for the first of `bases`; 0: it is decoded without one, and else without refs */
	uint16_t ref_count;
	uint32_t first_ref;        /* in `refs`; the decoder counts it, and so does append */
	struct ckpt_digest digest; /* of the stored bytes */
};

/* The shard of the same rank in an earlier step, as the manifest of that step has it. */
struct ckpt_encoded_base {
	uint64_t generation;
	uint64_t step;
	uint64_t attempt; /* its name, as a number */
	uint64_t index_bytes;
	struct ckpt_digest index_digest;
};

struct ckpt_encoded {
	uint64_t bytes;        /* of the shard, decoded */
	uint64_t table_offset; /* in the file; all stored chunks are before it */
	struct ckpt_encoded_chunk *chunks;
	size_t chunk_count;
	uint32_t *refs; /* of all chunks in order: numbers of chunks */
	size_t ref_count;
	/* By step, ascending. All that a chunk may need: a base's own bases are among them. */
	struct ckpt_encoded_base bases[CKPT_ENCODED_BASES_MAX];
	unsigned base_count;
};

/* What the trailer says of the table. */
struct ckpt_encoded_trailer {
	bool based; /* the table names bases */
	uint64_t table_offset;
	uint64_t table_bytes;
	struct ckpt_digest table_digest;
};

/* Appends table and trailer, which belong at encoded->table_offset of the file and end it. */
void ckpt_encoded_put(const struct ckpt_encoded *encoded, struct ckpt_buf *buf);

/*
 * The last CKPT_ENCODED_TRAILER bytes of a file of `file_bytes`, read by somebody who knows the shard's layout.
 * CKPT_EINCOMPLETE: the file does not end with a trailer. CKPT_EINTEGRITY, CKPT_EVERSION, CKPT_EFORMAT. After success
 * the table is within the file, and as long as a table of the layout's chunks can be.
 */
int ckpt_encoded_read_trailer(const void *data, uint64_t file_bytes,
	const struct ckpt_layout *layout, const char *file, struct ckpt_error *err,
	struct ckpt_encoded_trailer *ret_trailer);
/* The table that the trailer says, of trailer->table_bytes. CKPT_EINTEGRITY, CKPT_EFORMAT, -ENOMEM. */
int ckpt_encoded_decode(const void *table, const struct ckpt_encoded_trailer *trailer,
	const struct ckpt_layout *layout, const char *file, struct ckpt_error *err,
	struct ckpt_encoded **ret_encoded);
/* One that ckpt_encoded_decode() gave. NULL is ignored. */
void ckpt_encoded_free(struct ckpt_encoded *encoded);

#endif
