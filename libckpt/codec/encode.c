/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codec.h"

#include <fenv.h>
#include <string.h>

#include "codec/choose.h"
#include "codec/plane.h"

size_t ckpt_encode_room(size_t bytes)
{
	/* ADAM_M may come to one and a half before it is seen to be too large; a plane may be written beyond that. */
	return 2 * bytes + ckpt_plane_room(CKPT_CHUNK_BYTES) + 4096;
}

static size_t encode_raw(const struct ckpt_chunk *chunk, const void *data, uint8_t *out)
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

/* The difference between the elements and what the mode predicts. */
static size_t encode_difference(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_chunk *chunk, const uint8_t *data,
	uint8_t *out)
{
	uint8_t *planes[CKPT_PLANES];
	uint8_t *at[CKPT_PLANES];

	ckpt_codec_planes(codec, chunk->width, chunk->count, planes);
	for (size_t from = 0; from < chunk->count; from += CKPT_BLOCK) {
		size_t count = ckpt_min_u64(CKPT_BLOCK, chunk->count - from);
		const void *base =
			ckpt_predict(codec, mode, model, chunk, codec->gradient, from, count);

		for (unsigned k = 0; k < chunk->width; k++)
			at[k] = planes[k] + from;
		codec->kernels->split(chunk->width, ckpt_mode_transform(mode, chunk->kind),
			data + from * chunk->width, base, count, at);
	}
	return write_planes(codec, planes, chunk->width, chunk->count, out);
}

static size_t encode_adam(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_chunk *chunk, const uint8_t *data,
	uint8_t *out)
{
	uint8_t *planes[CKPT_PLANES];
	size_t size = CKPT_ADAM_HEAD;

	ckpt_adam_write(model, out);
	if (mode == CKPT_MODE_ADAM_M) {
		codec->kernels->adam_gradient(&model->terms, model->order, data, chunk->base,
			chunk->count, codec->gradient);
		ckpt_codec_planes(codec, 2, chunk->count, planes);
		codec->kernels->split(
			2, CKPT_TRANSFORM_ROTATE, codec->gradient, NULL, chunk->count, planes);
		size += write_planes(codec, planes, 2, chunk->count, out + size);
	}
	return size + encode_difference(codec, mode, model, chunk, data, out + size);
}

/* In a mode that is no mask. */
static size_t encode_as(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_chunk *chunk, const uint8_t *data,
	uint8_t *out)
{
	size_t size = 1;

	out[0] = (uint8_t)mode;
	switch (mode) {
	case CKPT_MODE_RAW:
		return encode_raw(chunk, data, out);
	case CKPT_MODE_ADAM_M:
	case CKPT_MODE_ADAM_V:
	case CKPT_MODE_ADAM_W:
		size += encode_adam(codec, mode, model, chunk, data, out + 1);
		break;
	default:
		size += encode_difference(codec, mode, NULL, chunk, data, out + 1);
	}
	return size > chunk->count * chunk->width ? encode_raw(chunk, data, out) : size;
}

/* The lines that differ from the base, as a chunk of their own. The last line may be short. */
static size_t encode_mask(
	struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const uint8_t *data, uint8_t *out)
{
	const uint8_t *base = chunk->base;
	size_t bytes = chunk->count * chunk->width;
	size_t line = CKPT_LINE * chunk->width;
	size_t lines = (bytes + line - 1) / line;
	size_t bitmap = (lines + 7) / 8;
	size_t kept = 0;
	struct ckpt_chunk rest = {.width = chunk->width, .kind = chunk->kind};
	struct ckpt_adam_model model = {0};
	enum ckpt_chunk_mode mode;

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
	mode = ckpt_choose(codec, &rest, codec->lines, false, &model);
	return bitmap + encode_as(codec, mode, &model, &rest, codec->lines, out + bitmap);
}

/* All elements are the rounding of the fp32 values. */
static bool is_rounding(
	struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const uint8_t *data)
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

static size_t encode_whole(
	struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const uint8_t *data, uint8_t *out)
{
	struct ckpt_adam_model model = {0};
	enum ckpt_chunk_mode mode;
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
	mode = ckpt_choose(codec, chunk, data, true, &model);
	if (mode != CKPT_MODE_MASK)
		return encode_as(codec, mode, &model, chunk, data, out);
	out[0] = CKPT_MODE_MASK;
	size = 1 + encode_mask(codec, chunk, data, out + 1);
	return size > chunk->count * chunk->width ? encode_raw(chunk, data, out) : size;
}

size_t ckpt_encode(
	struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const void *data, uint8_t *out)
{
	fenv_t callers;
	size_t size;

	CKPT_ASSERT(
		chunk->width == 1 || chunk->width == 2 || chunk->width == 4 || chunk->width == 8);
	CKPT_ASSERT(chunk->count <= CKPT_CHUNK_BYTES / chunk->width);
	/* Rounding and subnormal numbers as IEEE 754 has them, whatever the program has set. */
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	size = encode_whole(codec, chunk, data, out);
	fesetenv(&callers);
	return size;
}
