/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codec.h"

#include <fenv.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/group.h"
#include "codec/plane.h"
#include "codec/predict.h"

static int read_planes(struct ckpt_codec *codec, unsigned width, size_t count, const uint8_t **in,
	const uint8_t *end, const uint8_t *ret_planes[CKPT_PLANES])
{
	uint8_t *rooms[CKPT_PLANES];
	int r = 0;

	ckpt_codec_planes(codec, width, count, rooms);
	for (unsigned k = 0; k < width && r == 0; k++)
		r = ckpt_plane_read(codec, in, end, count, rooms[k], &ret_planes[k]);
	return r;
}

/* A plane that is written in groups of these sizes. */
static int read_grouped_plane(struct ckpt_codec *codec, const size_t sizes[CKPT_GROUPS],
	size_t count, const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	uint8_t *at = codec->grouped;

	for (unsigned g = 0; g < CKPT_GROUPS; at += sizes[g++]) {
		const uint8_t *bytes = at;
		int r = sizes[g] ? ckpt_plane_read(codec, in, end, sizes[g], at, &bytes) : 0;

		if (r < 0)
			return r;
		if (bytes != at)
			memcpy(at, bytes, sizes[g]);
	}
	ckpt_group_scatter(codec, sizes, count, out);
	return 0;
}

static int read_groups(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t **in, const uint8_t *end, const uint8_t *ret_planes[CKPT_PLANES])
{
	struct ckpt_grouping grouping;
	size_t sizes[CKPT_GROUPS];
	uint8_t *rooms[CKPT_PLANES];
	int r = 0;

	if (end - *in < CKPT_GROUP_HEAD)
		return CKPT_EINTEGRITY;
	grouping = (struct ckpt_grouping){.first = (*in)[0], .groups = (*in)[1]};
	if (grouping.groups == 0 || grouping.groups > CKPT_GROUPS)
		return CKPT_EINTEGRITY;
	*in += CKPT_GROUP_HEAD;
	ckpt_group_find(codec, &grouping, chunk, sizes);
	ckpt_codec_planes(codec, chunk->width, chunk->count, rooms);
	for (unsigned k = 0; k < chunk->width && r == 0; k++) {
		r = read_grouped_plane(codec, sizes, chunk->count, in, end, rooms[k]);
		ret_planes[k] = rooms[k];
	}
	return r;
}

/* Where the elements of a chunk come from. */
struct merge {
	unsigned width;
	uint8_t *out;
	const uint8_t *planes[CKPT_PLANES];
};

static void merge_block(struct ckpt_codec *codec, const struct ckpt_block *block, void *arg)
{
	const struct merge *merge = arg;
	const uint8_t *at[CKPT_PLANES];

	for (unsigned k = 0; k < merge->width; k++)
		at[k] = merge->planes[k] + block->from;
	codec->kernels->merge(merge->width, block->transform,
		merge->out + block->from * merge->width, block->predicted, block->count, at);
}

static int decode_difference(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_codec_chunk *chunk,
	const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	struct merge merge = {.width = chunk->width};
	int r = mode == CKPT_MODE_GROUPED
			? read_groups(codec, chunk, in, end, merge.planes)
			: read_planes(codec, chunk->width, chunk->count, in, end, merge.planes);

	if (r < 0)
		return r;
	merge.out = out;
	ckpt_each_block(codec, mode, model, chunk, merge_block, &merge);
	return 0;
}

static int decode_adam(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_codec_chunk *chunk, const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	const uint8_t *planes[CKPT_PLANES];
	struct ckpt_adam_model model;
	int r;

	if (end - *in < CKPT_ADAM_HEAD)
		return CKPT_EINTEGRITY;
	r = ckpt_adam_read(*in, &model);
	if (r < 0)
		return r;
	if ((model.order == CKPT_ADAM_LERP || model.relative) && mode != CKPT_MODE_ADAM_M)
		return CKPT_EINTEGRITY;
	if (model.relative && !chunk->v_base)
		return CKPT_EINTEGRITY;
	*in += CKPT_ADAM_HEAD;
	if (mode == CKPT_MODE_ADAM_M) {
		r = read_planes(codec, 2, chunk->count, in, end, planes);
		if (r < 0)
			return r;
		if (model.relative)
			codec->kernels->merge_gradient(
				chunk->v_base, planes, chunk->count, codec->gradient);
		else
			codec->kernels->merge(2, CKPT_TRANSFORM_ROTATE, codec->gradient, NULL,
				chunk->count, planes);
	}
	return decode_difference(codec, mode, &model, chunk, in, end, out);
}

/* The mode, which has to be one that can be decoded with what the chunk has. */
static int read_mode(const struct ckpt_codec_chunk *chunk, const uint8_t **in, const uint8_t *end,
	enum ckpt_chunk_mode *ret_mode)
{
	if (*in == end)
		return CKPT_EINTEGRITY;
	*ret_mode = *(*in)++;
	return ckpt_mode_possible(*ret_mode, chunk) ? 0 : CKPT_EINTEGRITY;
}

/* What can also be left of a mask. */
static int decode_as(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_codec_chunk *chunk, const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	size_t bytes = chunk->count * chunk->width;

	switch (mode) {
	case CKPT_MODE_RAW:
		if ((size_t)(end - *in) < bytes)
			return CKPT_EINTEGRITY;
		memcpy(out, *in, bytes);
		*in += bytes;
		return 0;
	case CKPT_MODE_ADAM_M:
	case CKPT_MODE_ADAM_V:
	case CKPT_MODE_ADAM_W:
		return decode_adam(codec, mode, chunk, in, end, out);
	case CKPT_MODE_CAST:
	case CKPT_MODE_INTRA:
	case CKPT_MODE_DELTA:
	case CKPT_MODE_GROUPED:
		return decode_difference(codec, mode, NULL, chunk, in, end, out);
	default:
		return CKPT_EINTEGRITY;
	}
}

static int decode_mask(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	const uint8_t *base = chunk->base;
	const uint8_t *bitmap = *in;
	size_t bytes = chunk->count * chunk->width;
	size_t line = CKPT_LINE * chunk->width;
	size_t lines = (bytes + line - 1) / line;
	size_t kept = 0;
	struct ckpt_codec_chunk rest = {.width = chunk->width, .kind = chunk->kind};
	enum ckpt_chunk_mode mode;
	int r;

	if ((size_t)(end - *in) < (lines + 7) / 8)
		return CKPT_EINTEGRITY;
	*in += (lines + 7) / 8;
	if (lines % 8 && bitmap[lines / 8] >> (lines % 8))
		return CKPT_EINTEGRITY;
	for (size_t i = 0; i < lines; i++) {
		size_t at = i * line;
		size_t size = ckpt_min_u64(line, bytes - at);

		if (!(bitmap[i / 8] >> (i % 8) & 1))
			continue;
		memcpy(codec->base_lines + kept, base + at, size);
		kept += size;
	}
	rest.count = kept / chunk->width;
	rest.base = codec->base_lines;
	r = read_mode(&rest, in, end, &mode);
	if (r == 0)
		r = decode_as(codec, mode, &rest, in, end, codec->lines);
	if (r < 0)
		return r;
	kept = 0;
	for (size_t i = 0; i < lines; i++) {
		size_t at = i * line;
		size_t size = ckpt_min_u64(line, bytes - at);
		bool differs = bitmap[i / 8] >> (i % 8) & 1;

		memcpy(out + at, differs ? codec->lines + kept : base + at, size);
		kept += differs ? size : 0;
	}
	return 0;
}

static int decode_whole(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t **in, const uint8_t *end, uint8_t *out)
{
	enum ckpt_chunk_mode mode;
	int r = read_mode(chunk, in, end, &mode);

	if (r < 0)
		return r;
	if (mode == CKPT_MODE_MASK)
		return decode_mask(codec, chunk, in, end, out);
	if (mode != CKPT_MODE_SAME)
		return decode_as(codec, mode, chunk, in, end, out);
	memcpy(out, chunk->base, chunk->count * chunk->width);
	return 0;
}

/* All elements are roundings: nothing follows. */
static void decode_rounding(
	struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, uint8_t *out)
{
	if (chunk->kind == CKPT_KIND_BF16)
		codec->kernels->round_bf16(chunk->master, chunk->count, out);
	else
		codec->kernels->round_f16(chunk->master, chunk->count, out);
}

int ckpt_decode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const uint8_t *in,
	size_t length, void *out)
{
	const uint8_t *end = in + length;
	fenv_t callers;
	int r;

	CKPT_ASSERT(
		chunk->width == 1 || chunk->width == 2 || chunk->width == 4 || chunk->width == 8);
	CKPT_ASSERT(chunk->count <= CKPT_CODEC_CHUNK_BYTES / chunk->width);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	if (length == 1 && in[0] == CKPT_MODE_CAST && ckpt_mode_possible(CKPT_MODE_CAST, chunk)) {
		decode_rounding(codec, chunk, out);
		r = 0;
		in = end;
	} else {
		r = decode_whole(codec, chunk, &in, end, out);
	}
	fesetenv(&callers);
	return r < 0 ? r : in == end ? 0 : CKPT_EINTEGRITY;
}
