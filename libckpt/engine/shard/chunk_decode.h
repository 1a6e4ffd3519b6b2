/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding of the chunks of an encoded shard (FORMAT.md, section 23). Pure: what is decoded is in memory, and may be
 * hostile. A decoder is scratch memory that one thread uses at a time.
 */
#ifndef CKPT_ENGINE_SHARD_CHUNK_DECODE_H
#define CKPT_ENGINE_SHARD_CHUNK_DECODE_H

#include <stdatomic.h>
#include "engine/shard/chain.h"
#include "engine/shard/chunk_parts.h"

/* The stored bytes of a chunk. */
struct ckpt_stored_chunk {
	size_t chunk;
	unsigned file;        /* 0: the shard's; else that of a base, see engine/shard/chain.h */
	const uint8_t *bytes; /* as many as its table says; NULL: they could not be read */
};

/* What chunks are decoded from. */
struct ckpt_stored_chunks {
	const struct ckpt_layout *layout;
	const struct ckpt_encoded *encoded;
	const struct ckpt_chain *chain;        /* of the shard and its bases; NULL: it has none */
	const struct ckpt_stored_chunk *items; /* by file, and of a file by chunk */
	size_t count;
	const atomic_bool *stopped; /* decoding ends early; NULL: never */
	/*
	 * Who has just encoded the chunk has the fp32 elements of the shard that it was rounded from. Where they are; NULL: these
	 * are none. The function NULL: the chunks that it refers to are decoded.
	 */
	const void *(*masters)(void *user, uint64_t offset, size_t length, void *room);
	void *user;
};

struct ckpt_chunk_decoder;

/* The table of a file. */
static inline const struct ckpt_encoded *ckpt_stored_table(
	const struct ckpt_chain *chain, const struct ckpt_encoded *shard, unsigned file)
{
	return file > 0 ? chain->files[file] : shard;
}

/* About 9 MiB. NULL: no memory, or the library was built without the codec. */
struct ckpt_chunk_decoder *ckpt_chunk_decoder_open(void);
/*
 * Makes it one for the shard of this number, not 0, whose chunks have up to so many bytes: it has room for three of
 * them, and for five if the shard has bases (`based`). It keeps the last two chunks of its files that were referred to.
 * -ENOMEM: it is for none.
 */
int ckpt_chunk_decoder_aim(
	struct ckpt_chunk_decoder *decoder, uint64_t shard, uint64_t chunk_bytes, bool based);
bool ckpt_chunk_decoder_is_for(const struct ckpt_chunk_decoder *decoder, uint64_t shard);
void ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder);

/*
 * Decodes a chunk of `stored`, which also has those that it refers to, unless it has `masters`, and of all of them what is in
 * the bases; and compares it with its digest in the layout.
 * `out` has room for the chunk; NULL: it is decoded into memory of the decoder. With `masters` and `out`, without bases, the
 * decoder need not be for a shard. *ret_bytes is where it is, until the
 * next call. CKPT_EINTEGRITY: it is damaged, or it was stopped. CKPT_EFORMAT: chunks that it refers to would be decoded
 * more than CKPT_REF_DECODES_MAX times.
 */
CKPT_MUST_CHECK int ckpt_chunk_decode(struct ckpt_chunk_decoder *decoder,
	const struct ckpt_stored_chunks *stored, size_t chunk, char *out, const char **ret_bytes);
/* After CKPT_EINTEGRITY: the file whose stored bytes are missing or damaged. 0: the shard's, or it is not known. */
unsigned ckpt_chunk_decoder_bad_file(const struct ckpt_chunk_decoder *decoder);

#endif
