/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops over elements, compiled for several instruction sets from one source (kernels_body.h). All of them give
 * the same bytes. What they read and write needs no alignment.
 */
#ifndef CKPT_CODEC_KERNELS_H
#define CKPT_CODEC_KERNELS_H

#include "base/compiler.h"

#define CKPT_PLANES 8
/* Elements of a line: what samples and bitmaps are counted in. */
#define CKPT_LINE   ((size_t)64)

/* The most groups of a chunk. */
#define CKPT_GROUPS ((unsigned)16)

/* How an element becomes the integer whose bytes are stored. */
enum ckpt_transform {
	CKPT_TRANSFORM_NONE,
	CKPT_TRANSFORM_ROTATE, /* the sign becomes the lowest bit, so that the exponent fills a byte */
	CKPT_TRANSFORM_FLOAT, /* the difference of floats in their order, zigzag */
	CKPT_TRANSFORM_INT,   /* the difference of integers, zigzag */
	CKPT_TRANSFORM_END
};

/* How the predictor rounds. All are found in optimizers; which one it was is found by trying. */
enum ckpt_adam_order {
	CKPT_ADAM_SEPARATE = 0, /* each product is rounded */
	CKPT_ADAM_FUSED = 1,    /* multiply-add rounds once */
	CKPT_ADAM_LERP = 2, /* the first moment alone: a part of the way to the gradient, fused */
	CKPT_ADAM_ORDERS
};

/* What AdamW's arithmetic needs, in the precision in which it is done. Stored in the chunk. */
struct ckpt_adam_terms {
	float beta1, beta2;
	float rest1, rest2; /* 1 - beta */
	float decay;        /* 1 - lr * weight_decay */
	float step;         /* -lr / (1 - beta1^t) */
	float root;         /* sqrt(1 - beta2^t) */
	float eps;
};

/* A table of one Huffman code. Codes have at most 11 bits. */
struct ckpt_huffman {
	uint16_t code[256];
	uint8_t bits[256];
	uint32_t entry[256]; /* both: the code above the lowest eight bits */
	/* The same for the AVX-512 kernel: the low byte of the code; the rest of it above the bits. */
	uint8_t low[256];
	uint8_t high[256];
};

struct ckpt_kernels {
	/* Plane k gets byte k of each transformed element. */
	void (*split)(unsigned width, enum ckpt_transform transform, const void *data,
		const void *base, size_t count, uint8_t *const planes[]);
	/* The way back. */
	void (*merge)(unsigned width, enum ckpt_transform transform, void *data, const void *base,
		size_t count, const uint8_t *const planes[]);

	/*
	 * The group of each element of 2 bytes: the `bits` bits from `shift` on, less `first`, and neither below 0 nor
	 * above `last`.
	 */
	void (*find_groups)(unsigned shift, unsigned bits, unsigned first, unsigned last,
		const void *elements, size_t count, uint8_t *groups);
	/* Each byte of the plane goes to the end of its group's bytes, which moves on. */
	void (*gather_groups)(const uint8_t *groups, const uint8_t *plane, size_t count,
		uint8_t *ends[CKPT_GROUPS]);
	/* The way back. */
	void (*scatter_groups)(const uint8_t *groups, const uint8_t *begins[CKPT_GROUPS],
		size_t count, uint8_t *plane);

	/* fp32 values rounded to 16 bits, ties to even. */
	void (*round_bf16)(const void *values, size_t count, void *rounded);
	void (*round_f16)(const void *values, size_t count, void *rounded);

	/* Predictions, fp32. What is NaN is given as 0, for the payloads of NaN differ between processors. */
	void (*adam_gradient)(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
		const void *m, const void *m_base, size_t count, void *gradient_bf16);
	/* Two planes of gradients, whose sizes are told beside the root of the second moment; and the way back. */
	void (*split_gradient)(const void *v_base, const void *gradient_bf16, size_t count,
		uint8_t *const planes[2]);
	void (*merge_gradient)(const void *v_base, const uint8_t *const planes[2], size_t count,
		void *gradient_bf16);
	void (*adam_m)(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
		const void *m_base, const void *gradient_bf16, size_t count, void *predicted);
	void (*adam_v)(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
		bool bf16_gradient, const void *m, const void *m_base, const void *v_base,
		size_t count, void *predicted);
	void (*adam_w)(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
		const void *w_base, const void *m, const void *v, size_t count, void *predicted);

	/*
	 * How often each byte stands in every `stride`-th line. If lines are passed over, bytes from the lowest to the
	 * highest count at least once.
	 */
	void (*histogram)(const uint8_t *plane, size_t length, size_t stride, uint32_t counts[256]);
	bool (*is_constant)(const uint8_t *plane, size_t length);
	/* A bit for each byte that is not 0, and these bytes: returns how many. `packed` has 64 bytes of room more. */
	size_t (*pack)(const uint8_t *plane, size_t length, uint8_t *bitmap, uint8_t *packed);
	/* The way back; returns how many bytes were taken. `packed` may be read for 64 bytes beyond them. */
	size_t (*unpack)(
		const uint8_t *bitmap, const uint8_t *packed, size_t length, uint8_t *plane);
	/* One stream of zstd's Huffman coding, written forward, read backward. Returns its length. */
	size_t (*huffman)(const struct ckpt_huffman *table, const uint8_t *symbols, size_t count,
		uint8_t *out);
};

extern const struct ckpt_kernels ckpt_kernels_plain;
/* NULL: this processor, or this build, has none. */
const struct ckpt_kernels *ckpt_kernels_avx2(void);
const struct ckpt_kernels *ckpt_kernels_avx512(void);

#endif
