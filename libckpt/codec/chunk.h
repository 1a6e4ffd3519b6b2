/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk, and what it may be predicted from. */
#ifndef CKPT_CODEC_CHUNK_H
#define CKPT_CODEC_CHUNK_H

#include "base/compiler.h"

#define CKPT_CODEC_CHUNK_BYTES ((size_t)1 << 20)

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
struct ckpt_codec_chunk {
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

#endif
