/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/predict.h"

#include "codec/group.h"

bool ckpt_mode_possible(enum ckpt_chunk_mode mode, const struct ckpt_codec_chunk *chunk)
{
	switch (mode) {
	case CKPT_MODE_RAW:
	case CKPT_MODE_INTRA:
		return true;
	case CKPT_MODE_SAME:
	case CKPT_MODE_DELTA:
	case CKPT_MODE_MASK:
		return chunk->base;
	case CKPT_MODE_CAST:
		return chunk->master && chunk->width == 2 &&
		       (chunk->kind == CKPT_KIND_BF16 || chunk->kind == CKPT_KIND_F16);
	case CKPT_MODE_GROUPED:
		return ckpt_group_possible(chunk);
	case CKPT_MODE_ADAM_M:
		return chunk->role == CKPT_ADAM_M && ckpt_adam_has(chunk);
	case CKPT_MODE_ADAM_V:
		return chunk->role == CKPT_ADAM_V && ckpt_adam_has(chunk);
	case CKPT_MODE_ADAM_W:
		return chunk->role == CKPT_ADAM_W && ckpt_adam_has(chunk);
	default:
		return false;
	}
}

enum ckpt_transform ckpt_mode_transform(enum ckpt_chunk_mode mode, enum ckpt_chunk_kind kind)
{
	if (mode == CKPT_MODE_INTRA)
		return kind == CKPT_KIND_INT ? CKPT_TRANSFORM_NONE : CKPT_TRANSFORM_ROTATE;
	return kind == CKPT_KIND_INT ? CKPT_TRANSFORM_INT : CKPT_TRANSFORM_FLOAT;
}

const void *ckpt_predict(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_codec_chunk *chunk,
	const uint8_t *gradient, size_t from, size_t count)
{
	const struct ckpt_kernels *kernels = codec->kernels;
	const uint8_t *master = chunk->master;

	CKPT_ASSERT(count <= CKPT_BLOCK);
	switch (mode) {
	case CKPT_MODE_DELTA:
	case CKPT_MODE_GROUPED:
		return (const uint8_t *)chunk->base + from * chunk->width;
	case CKPT_MODE_CAST:
		if (chunk->kind == CKPT_KIND_BF16)
			kernels->round_bf16(master + 4 * from, count, codec->predicted);
		else
			kernels->round_f16(master + 4 * from, count, codec->predicted);
		return codec->predicted;
	case CKPT_MODE_ADAM_M:
	case CKPT_MODE_ADAM_V:
	case CKPT_MODE_ADAM_W:
		ckpt_adam_predict(codec, model, chunk, gradient ? gradient + 2 * from : NULL, from,
			count, codec->predicted);
		return codec->predicted;
	default:
		return NULL;
	}
}

void ckpt_each_block(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_codec_chunk *chunk,
	void (*each)(struct ckpt_codec *codec, const struct ckpt_block *block, void *arg),
	void *arg)
{
	struct ckpt_block block = {.transform = ckpt_mode_transform(mode, chunk->kind)};

	for (; block.from < chunk->count; block.from += CKPT_BLOCK) {
		block.count = ckpt_min_u64(CKPT_BLOCK, chunk->count - block.from);
		block.predicted = ckpt_predict(
			codec, mode, model, chunk, codec->gradient, block.from, block.count);
		each(codec, &block, arg);
	}
}
