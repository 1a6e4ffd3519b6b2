/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lossless encoding of chunks: a run of elements of one tensor, at most CKPT_CHUNK_BYTES. FORMAT.md has the bytes.
 *
 * An encoded chunk holds what its prediction leaves: the elements of the same chunk in an earlier step (its base),
 * the rounding of fp32 weights, or what AdamW would have made of the earlier step. The prediction only decides how
 * small the chunk gets. The difference is stored whatever it is, so a wrong prediction loses nothing.
 *
 * Pure functions of their arguments. A codec is scratch memory that one thread uses at a time.
 */
#ifndef CKPT_CODEC_CODEC_H
#define CKPT_CODEC_CODEC_H

#include "base/compiler.h"

#define CKPT_CHUNK_BYTES ((size_t)1 << 20)

/* The first byte of an encoded chunk. */
enum ckpt_chunk_mode {
	CKPT_MODE_RAW = 0,     /* the bytes as they are */
	CKPT_MODE_SAME = 1,    /* those of the base */
	CKPT_MODE_CAST = 2,    /* fp32 values, rounded to this type */
	CKPT_MODE_INTRA = 3,   /* without a prediction */
	CKPT_MODE_DELTA = 4,   /* the difference to the base */
	CKPT_MODE_MASK = 5,    /* most lines are those of the base */
	CKPT_MODE_ADAM_M = 6,  /* the first moment, by way of a bf16 gradient */
	CKPT_MODE_ADAM_V = 7,  /* the second moment, from the first */
	CKPT_MODE_ADAM_W = 8,  /* the weight, from the moments */
	CKPT_MODE_GROUPED = 9, /* the difference to the base, by the base's exponents */
	CKPT_MODE_END
};

enum ckpt_chunk_kind {
	CKPT_KIND_INT, /* integers, and whatever has no sign bit of its own */
	CKPT_KIND_FLOAT,
	CKPT_KIND_BF16, /* a float that CAST knows */
	CKPT_KIND_F16,  /* likewise */
};

/* What an element of an AdamW state is. */
enum ckpt_adam_role { CKPT_ADAM_NONE, CKPT_ADAM_M, CKPT_ADAM_V, CKPT_ADAM_W };

/* Hyper-parameters of one step of AdamW, as the optimizer was given them. */
struct ckpt_adam_step {
	double beta1;
	double beta2;
	double lr;
	double weight_decay;
	double eps;
	uint64_t step; /* that leads from the base to the chunk; 1 is the first */
};

/*
 * What the encoder has found of an optimizer in the chunks of one role, for those that follow: their order of
 * operations is tried first. All 0 at first. It belongs to the caller, and to one call at a time.
 * With a hint the encoded bytes also depend on the chunks that were encoded before with the same hint.
 */
struct ckpt_adam_hint {
	uint8_t order; /* 0: none yet */
	bool poor;     /* no order predicted anything */
};

/*
 * A chunk and what it may be predicted from. All arrays have `count` elements, need no alignment, and are borrowed
 * for the call. What is NULL is not there. None of them overlaps what is encoded or decoded, nor what that is written to.
 */
struct ckpt_chunk {
	size_t count;
	unsigned width; /* bytes of an element: 1, 2, 4 or 8 */
	enum ckpt_chunk_kind kind;
	const void *base;   /* the same elements one or more steps earlier */
	const void *master; /* fp32 values that these are the rounding of */
	/* AdamW, fp32 only, and only where the base is exactly one step earlier. */
	enum ckpt_adam_role role;
	const struct ckpt_adam_step *adam; /* for encoding; a decoder finds it in the chunk */
	struct ckpt_adam_hint *hint;       /* for encoding */
	const void *m;                     /* V and W: the first moment of the step itself */
	const void *m_base;                /* V: the first moment of the base */
	const void *v_base;                /* M: the second moment of the base; makes it smaller */
	const void *v;                     /* W: the second moment of the step itself */
};

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

/* Room that any chunk of `bytes` bytes can be encoded into. */
size_t ckpt_encode_room(size_t bytes);

/*
 * Encodes `data` into `out`, which has ckpt_encode_room() bytes; returns the length. It cannot fail.
 * The same elements may be encoded to other bytes elsewhere or later: do not compare encoded chunks, nor use a digest of
 * one to say that elements are the same.
 */
size_t ckpt_encode(
	struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const void *data, uint8_t *out);

/*
 * Decodes exactly `length` bytes into `out`, which has room for the chunk's elements. `in` may be hostile.
 * 0, or CKPT_EINTEGRITY: it is not an encoded chunk, or it needs something that `chunk` does not have. What is in `out`
 * is undefined then. Whether the elements are the right ones is for the caller's digest to say.
 */
CKPT_MUST_CHECK int ckpt_decode(struct ckpt_codec *codec, const struct ckpt_chunk *chunk,
	const uint8_t *in, size_t length, void *out);

#endif
