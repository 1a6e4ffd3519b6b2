/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes a chunk of a shard (FORMAT.md, section 23). A pure function of the shard's bytes, but for what the codec may
 * choose. Nothing of it can fail.
 */
#ifndef CKPT_ENGINE_SHARD_CHUNK_ENCODE_H
#define CKPT_ENGINE_SHARD_CHUNK_ENCODE_H

#include "codec/codec.h"
#include "format/encoded.h"

/* A shard in memory. */
struct ckpt_chunk_source {
	const struct ckpt_layout *layout;
	/*
	 * For each entry of the layout: offset in the shard of the fp32 tensor that it is the rounding of, 0 if there is
	 * none. A wrong one costs space and nothing else. NULL: no entry has one.
	 */
	const uint64_t *masters;
	/* The bytes of the shard from `offset` on. If they are not contiguous in memory, they are copied to `room`. */
	const void *(*bytes)(void *user, uint64_t offset, size_t length, void *room);
	/*
	 * The same of an earlier shard with this layout, and the number that the table has for the file with its bytes of the
	 * chunk. NULL: the chunk is encoded without a base.
	 */
	const void *(*base_bytes)(void *user, uint64_t offset, size_t length, void *room);
	uint8_t base;
	void *user;
};

/* Memory of one thread at a time. */
struct ckpt_chunk_scratch {
	struct ckpt_codec *codec;
	void *part;   /* CKPT_CODEC_CHUNK_BYTES */
	void *master; /* twice that: fp32 elements of a part of 16 bits */
	void *base;   /* CKPT_CODEC_CHUNK_BYTES of the base; NULL: no chunk has one */
};

/* -ENOMEM: nothing is left. */
int ckpt_chunk_scratch_open(struct ckpt_chunk_scratch *scratch);
/* Chunks may have a base. -ENOMEM: they may not. */
int ckpt_chunk_scratch_add_base(struct ckpt_chunk_scratch *scratch);
void ckpt_chunk_scratch_close(struct ckpt_chunk_scratch *scratch);

/* Room that a chunk of `bytes` bytes is encoded in; what it comes to is never more than `bytes`. */
size_t ckpt_chunk_encode_room(size_t bytes);

/*
 * Encodes chunk number `chunk` into `out`. Sets all of *ret_stored but the offset, which stays 0 for a chunk that is
 * wholly that of the base; `refs` has room for CKPT_ENCODED_REFS_MAX numbers.
 */
void ckpt_chunk_encode(const struct ckpt_chunk_scratch *scratch,
	const struct ckpt_chunk_source *source, size_t chunk, uint8_t *out, uint32_t *refs,
	struct ckpt_encoded_chunk *ret_stored);

#endif
