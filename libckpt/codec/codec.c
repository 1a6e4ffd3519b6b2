/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codec.h"

#include <math.h>

#include "base/alloc.h"
#include "codec/plane.h"
#include "codec/predict.h"

/* What the loops write, or read without using it, beyond the end of an array. */
#define SLACK 64

struct room {
	uint8_t **to;
	size_t size;
};

static const struct ckpt_kernels *kernels_of(enum ckpt_simd simd)
{
	const struct ckpt_kernels *avx2 = ckpt_kernels_avx2();
	const struct ckpt_kernels *avx512 = ckpt_kernels_avx512();

	switch (simd) {
	case CKPT_SIMD_PLAIN:
		return &ckpt_kernels_plain;
	case CKPT_SIMD_AVX2:
		return avx2;
	case CKPT_SIMD_AVX512:
		return avx512;
	default:
		return avx512 ? avx512 : avx2 ? avx2 : &ckpt_kernels_plain;
	}
}

static bool open_rooms(struct ckpt_codec *codec)
{
	const size_t chunk = CKPT_CODEC_CHUNK_BYTES + SLACK;
	const struct room rooms[] = {
		/* Planes are a line apart. */
		{&codec->planes[0], CKPT_CODEC_CHUNK_BYTES + CKPT_PLANES * CKPT_LINE + SLACK},
		{&codec->predicted, CKPT_BLOCK * 8},
		{&codec->gradient, chunk / 2 + SLACK},
		{&codec->lines, chunk},
		{&codec->base_lines, chunk},
		{&codec->packed[0], chunk},
		{&codec->packed[1], chunk / 8 + SLACK},
		{&codec->groups, chunk / 2},
		{&codec->grouped, chunk / 2},
		{&codec->bitmap[0], chunk / 8 + SLACK},
		{&codec->bitmap[1], chunk / 64 + SLACK},
		{&codec->frame, chunk},
		{&codec->bitmap_coded, ckpt_plane_room(chunk / 8)},
		{&codec->sample, (size_t)CKPT_SAMPLE_ARRAYS * CKPT_SAMPLE * 8},
		{&codec->sample_planes[0], (size_t)CKPT_PLANES * CKPT_SAMPLE},
	};

	for (size_t i = 0; i < CKPT_COUNT(rooms); i++) {
		*rooms[i].to = ckpt_alloc(rooms[i].size);
		if (!*rooms[i].to)
			return false;
	}
	for (size_t k = 1; k < CKPT_PLANES; k++)
		codec->sample_planes[k] = codec->sample_planes[0] + k * CKPT_SAMPLE;
	return true;
}

struct ckpt_codec *ckpt_codec_open(enum ckpt_simd simd)
{
	const struct ckpt_kernels *kernels = kernels_of(simd);
	struct ckpt_codec *codec = kernels ? ckpt_alloc(sizeof(*codec)) : NULL;

	if (!codec)
		return NULL;
	codec->kernels = kernels;
	codec->margin = 0.01;
	codec->compressor = ZSTD_createCCtx();
	codec->decompressor = ZSTD_createDCtx();
	if (!codec->compressor || !codec->decompressor || !open_rooms(codec)) {
		ckpt_codec_close(codec);
		return NULL;
	}
	for (unsigned n = 1; n < CKPT_LOGS; n++)
		codec->logs[n] = (float)(n * log2(n));
	return codec;
}

void ckpt_codec_close(struct ckpt_codec *codec)
{
	if (!codec)
		return;
	ZSTD_freeCCtx(codec->compressor);
	ZSTD_freeDCtx(codec->decompressor);
	ckpt_free(codec->planes[0]);
	ckpt_free(codec->predicted);
	ckpt_free(codec->gradient);
	ckpt_free(codec->lines);
	ckpt_free(codec->base_lines);
	ckpt_free(codec->packed[0]);
	ckpt_free(codec->packed[1]);
	ckpt_free(codec->groups);
	ckpt_free(codec->grouped);
	ckpt_free(codec->bitmap[0]);
	ckpt_free(codec->bitmap[1]);
	ckpt_free(codec->bitmap_coded);
	ckpt_free(codec->frame);
	ckpt_free(codec->sample);
	ckpt_free(codec->sample_planes[0]);
	ckpt_free(codec);
}

void ckpt_codec_round(
	enum ckpt_chunk_kind kind, const void *values, size_t count, void *ret_rounded)
{
	CKPT_ASSERT(kind == CKPT_KIND_BF16 || kind == CKPT_KIND_F16);
	(kind == CKPT_KIND_BF16 ? ckpt_kernels_plain.round_bf16 : ckpt_kernels_plain.round_f16)(
		values, count, ret_rounded);
}

void ckpt_codec_set_margin(struct ckpt_codec *codec, double margin)
{
	codec->margin = margin;
}
