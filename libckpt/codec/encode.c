/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codec.h"

#include <fenv.h>
#include <string.h>

#include "codec/choose.h"
#include "codec/plane.h"

size_t ckpt_encode_room(size_t bytes)
{
	/* ADAM_M may come to one and a half before it is seen to be too large; a plane may be written beyond that. */
	return 2 * bytes + ckpt_plane_room(CKPT_CODEC_CHUNK_BYTES) + 4096;
}

static size_t encode_raw(const struct ckpt_codec_chunk *chunk, const void *data, uint8_t *out)
{
	out[0] = CKPT_MODE_RAW;
	memcpy(out + 1, data, chunk->count * chunk->width);
	return 1 + chunk->count * chunk->width;
}

static size_t write_planes(struct ckpt_codec *codec, uint8_t *const planes[], unsigned width,
	size_t count, uint8_t *out)
{
	size_t size = 0;

	for (unsigned k = 0; k < width; k++)
		size += ckpt_plane_write(codec, planes[k], count, out + size);
	return size;
}

/* Where the elements of a chunk go. */
struct split {
	unsigned width;
	const uint8_t *data;
	uint8_t *planes[CKPT_PLANES];
};

static void split_block(struct ckpt_codec *codec, const struct ckpt_block *block, void *arg)
{
	const struct split *split = arg;
	uint8_t *at[CKPT_PLANES];

	for (unsigned k = 0; k < split->width; k++)
		at[k] = split->planes[k] + block->from;
	codec->kernels->split(split->width, block->transform,
		split->data + block->from * split->width, block->predicted, block->count, at);
}

/* The planes, each in the groups of the base. */
static size_t write_groups(struct ckpt_codec *codec, const struct ckpt_grouping *grouping,
	const struct ckpt_codec_chunk *chunk, uint8_t *const planes[], uint8_t *out)
{
	size_t sizes[CKPT_GROUPS];
	size_t size = CKPT_GROUP_HEAD;

	out[0] = (uint8_t)grouping->first;
	out[1] = (uint8_t)grouping->groups;
	ckpt_group_find(codec, grouping, chunk, sizes);
	for (unsigned k = 0; k < chunk->width; k++) {
		const uint8_t *at = codec->grouped;

		ckpt_group_gather(codec, planes[k], sizes, chunk->count);
		for (unsigned g = 0; g < grouping->groups; at += sizes[g++]) {
			if (sizes[g] > 0)
				size += ckpt_plane_write(codec, at, sizes[g], out + size);
		}
	}
	return size;
}

/* The difference between the elements and what the mode predicts. */
static size_t encode_difference(struct ckpt_codec *codec, const struct ckpt_choice *choice,
	const struct ckpt_codec_chunk *chunk, const uint8_t *data, uint8_t *out)
{
	struct split split = {.width = chunk->width, .data = data};

	ckpt_codec_planes(codec, chunk->width, chunk->count, split.planes);
	ckpt_each_block(codec, choice->mode, &choice->model, chunk, split_block, &split);
	if (choice->mode == CKPT_MODE_GROUPED)
		return write_groups(codec, &choice->grouping, chunk, split.planes, out);
	return write_planes(codec, split.planes, chunk->width, chunk->count, out);
}

static size_t encode_adam(struct ckpt_codec *codec, const struct ckpt_choice *choice,
	const struct ckpt_codec_chunk *chunk, const uint8_t *data, uint8_t *out)
{
	const struct ckpt_adam_model *model = &choice->model;
	uint8_t *planes[CKPT_PLANES];
	size_t size = CKPT_ADAM_HEAD;

	ckpt_adam_write(model, out);
	if (choice->mode == CKPT_MODE_ADAM_M) {
		codec->kernels->adam_gradient(&model->terms, model->order, data, chunk->base,
			chunk->count, codec->gradient);
		ckpt_codec_planes(codec, 2, chunk->count, planes);
		ckpt_adam_split_gradient(codec, model, chunk, planes);
		size += write_planes(codec, planes, 2, chunk->count, out + size);
	}
	return size + encode_difference(codec, choice, chunk, data, out + size);
}

/* In a mode that is no mask. */
static size_t encode_as(struct ckpt_codec *codec, const struct ckpt_choice *choice,
	const struct ckpt_codec_chunk *chunk, const uint8_t *data, uint8_t *out)
{
	size_t size = 1;

	out[0] = (uint8_t)choice->mode;
	switch (choice->mode) {
	case CKPT_MODE_RAW:
		return encode_raw(chunk, data, out);
	case CKPT_MODE_ADAM_M:
	case CKPT_MODE_ADAM_V:
	case CKPT_MODE_ADAM_W:
		size += encode_adam(codec, choice, chunk, data, out + 1);
		break;
	default:
		size += encode_difference(codec, choice, chunk, data, out + 1);
	}
	return size > chunk->count * chunk->width ? encode_raw(chunk, data, out) : size;
}

/* The lines that differ from the base, as a chunk of their own. The last line may be short. */
static size_t encode_mask(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t *data, uint8_t *out)
{
	const uint8_t *base = chunk->base;
	size_t bytes = chunk->count * chunk->width;
	size_t line = CKPT_LINE * chunk->width;
	size_t lines = (bytes + line - 1) / line;
	size_t bitmap = (lines + 7) / 8;
	size_t kept = 0;
	struct ckpt_codec_chunk rest = {.width = chunk->width, .kind = chunk->kind};
	struct ckpt_choice choice = {.mode = CKPT_MODE_RAW};

	CKPT_ASSERT(base);
	memset(out, 0, bitmap);
	for (size_t i = 0; i < lines; i++) {
		size_t at = i * line;
		size_t size = ckpt_min_u64(line, bytes - at);

		if (memcmp(data + at, base + at, size) == 0)
			continue;
		out[i / 8] |= (uint8_t)(1u << (i % 8));
		memcpy(codec->lines + kept, data + at, size);
		memcpy(codec->base_lines + kept, base + at, size);
		kept += size;
	}
	rest.count = kept / chunk->width;
	rest.base = codec->base_lines;
	ckpt_choose(codec, &rest, codec->lines, false, &choice);
	return bitmap + encode_as(codec, &choice, &rest, codec->lines, out + bitmap);
}

/* All elements are the rounding of the fp32 values. */
static bool is_rounding(
	struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const uint8_t *data)
{
	if (!ckpt_mode_possible(CKPT_MODE_CAST, chunk))
		return false;
	for (size_t from = 0; from < chunk->count; from += CKPT_BLOCK) {
		size_t count = ckpt_min_u64(CKPT_BLOCK, chunk->count - from);
		const void *rounded =
			ckpt_predict(codec, CKPT_MODE_CAST, NULL, chunk, NULL, from, count);

		if (memcmp(data + 2 * from, rounded, 2 * count) != 0)
			return false;
	}
	return true;
}

static size_t encode_whole(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const uint8_t *data, uint8_t *out)
{
	struct ckpt_choice choice = {.mode = CKPT_MODE_RAW};
	size_t size;

	if (chunk->count == 0)
		return encode_raw(chunk, data, out);
	if (chunk->base && memcmp(data, chunk->base, chunk->count * chunk->width) == 0) {
		out[0] = CKPT_MODE_SAME;
		return 1;
	}
	if (is_rounding(codec, chunk, data)) {
		out[0] = CKPT_MODE_CAST;
		return 1;
	}
	ckpt_choose(codec, chunk, data, true, &choice);
	if (choice.mode != CKPT_MODE_MASK)
		return encode_as(codec, &choice, chunk, data, out);
	out[0] = CKPT_MODE_MASK;
	size = 1 + encode_mask(codec, chunk, data, out + 1);
	return size > chunk->count * chunk->width ? encode_raw(chunk, data, out) : size;
}

size_t ckpt_encode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const void *data,
	uint8_t *out)
{
	fenv_t callers;
	size_t size;

	CKPT_ASSERT(
		chunk->width == 1 || chunk->width == 2 || chunk->width == 4 || chunk->width == 8);
	CKPT_ASSERT(chunk->count <= CKPT_CODEC_CHUNK_BYTES / chunk->width);
	/* Rounding and subnormal numbers as IEEE 754 has them, whatever the program has set. */
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	size = encode_whole(codec, chunk, data, out);
	fesetenv(&callers);
	return size;
}
