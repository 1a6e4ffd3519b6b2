/* SPDX-License-Identifier: Apache-2.0 */
/* A codec: the loops that it uses, and its memory. Private to this folder. */
#ifndef CKPT_CODEC_CODEC_MEMORY_H
#define CKPT_CODEC_CODEC_MEMORY_H

#include <zstd.h>

#include "codec/chunk.h"
#include "codec/kernels.h"

/* Lines of a chunk that are looked at before it is encoded. */
#define CKPT_SAMPLE_LINES  ((size_t)32)
#define CKPT_SAMPLE        (CKPT_SAMPLE_LINES * CKPT_LINE)
#define CKPT_SAMPLE_ARRAYS 7
#define CKPT_LOGS          8192
/* A bitmap of a sparse plane may be a sparse plane itself, whose bitmap is not. */
#define CKPT_SPARSE_LEVELS 2

/* What a chunk is predicted from and what it is, as far as sampled. NULL where the chunk has none. */
struct ckpt_sample {
	struct ckpt_codec_chunk chunk; /* of `count` elements, with all its arrays in the scratch */
	const void *data;
};

struct ckpt_codec {
	const struct ckpt_kernels *kernels;
	double margin;
	ZSTD_CCtx *compressor;
	ZSTD_DCtx *decompressor;
	float logs[CKPT_LOGS]; /* n * log2(n) */

	/* Each has room for a chunk, and for what the loops read and write beyond it. */
	uint8_t *planes[CKPT_PLANES]; /* one buffer */
	uint8_t *predicted;
	uint8_t *gradient;
	uint8_t *lines; /* those that differ from the base */
	uint8_t *base_lines;
	uint8_t *packed[CKPT_SPARSE_LEVELS];
	uint8_t *groups;  /* the group of each element */
	uint8_t *grouped; /* a plane, one group after another */
	uint8_t *bitmap[CKPT_SPARSE_LEVELS];
	uint8_t *bitmap_coded;
	uint8_t *frame;  /* that is decoded, with its magic number */
	uint8_t *sample; /* of each array that a chunk may have */
	uint8_t *sample_planes[CKPT_PLANES];
};

/* The planes for elements of one width: plane k of `count` bytes. */
static inline void ckpt_codec_planes(
	struct ckpt_codec *codec, unsigned width, size_t count, uint8_t *ret_planes[CKPT_PLANES])
{
	/* A line apart, so that no two planes begin in the same set of the cache. */
	for (unsigned k = 0; k < width; k++)
		ret_planes[k] = codec->planes[0] + k * (count + CKPT_LINE);
}

#endif
