/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lossless encoding of chunks: a run of elements of one tensor, at most CKPT_CODEC_CHUNK_BYTES. FORMAT.md has the bytes.
 *
 * An encoded chunk holds what its prediction leaves: the elements of the same chunk in an earlier step (its base),
 * the rounding of fp32 weights, or what AdamW would have made of the earlier step. The prediction only decides how
 * small the chunk gets. The difference is stored whatever it is, so a wrong prediction loses nothing.
 *
 * Pure functions of their arguments. A codec is scratch memory that one thread uses at a time.
 */
#ifndef CKPT_CODEC_CODEC_H
#define CKPT_CODEC_CODEC_H

#include "codec/chunk.h"

struct ckpt_codec;

/* Instructions that a codec may use. */
enum ckpt_simd { CKPT_SIMD_PLAIN, CKPT_SIMD_AVX2, CKPT_SIMD_AVX512, CKPT_SIMD_BEST };

/*
 * About 7 MiB of scratch, and two zstd contexts. NULL: no memory, or the processor lacks `simd`. On one machine all
 * instruction sets encode to the same bytes. Another machine may choose otherwise where two modes are equally good, for
 * its logarithm may differ in the last bit.
 */
struct ckpt_codec *ckpt_codec_open(enum ckpt_simd simd);
void ckpt_codec_close(struct ckpt_codec *codec);

/*
 * A difference to the base has to be smaller than the chunk by itself by this share: near 0 where the base is in
 * memory anyway, more where a stored base makes a chain. 0.01 at first.
 */
void ckpt_codec_set_margin(struct ckpt_codec *codec, double margin);

/* Rounds fp32 values as CAST does; `kind` is BF16 or F16. */
void ckpt_codec_round(
	enum ckpt_chunk_kind kind, const void *values, size_t count, void *ret_rounded);

/* Room that any chunk of `bytes` bytes can be encoded into. */
size_t ckpt_encode_room(size_t bytes);

/*
 * Encodes `data` into `out`, which has ckpt_encode_room() bytes; returns the length. It cannot fail.
 * The same elements may be encoded to other bytes elsewhere or later: do not compare encoded chunks, nor use a digest of
 * one to say that elements are the same.
 */
size_t ckpt_encode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const void *data,
	uint8_t *out);

/*
 * Decodes exactly `length` bytes into `out`, which has room for the chunk's elements. `in` may be hostile.
 * 0, or CKPT_EINTEGRITY: it is not an encoded chunk, or it needs something that `chunk` does not have. What is in `out`
 * is undefined then. Whether the elements are the right ones is for the caller's digest to say.
 */
CKPT_MUST_CHECK int ckpt_decode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t *in, size_t length, void *out);

#endif
