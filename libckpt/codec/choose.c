/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/choose.h"

#include <string.h>

#include "codec/plane.h"

#define WORTH 0.98 /* of the raw size: what is not smaller is stored as it is */
#define GOOD_MODEL                                                                                 \
	4.0 /* bits an element; what AdamW predicts so well is not compared with anything else */
#define UNTOUCHED 0.125 /* share of lines that are those of the base: worth a bitmap */

/* Up to CKPT_SAMPLE_LINES lines, evenly spread. A chunk shorter than a line is its own sample. */
static size_t sample_array(
	const struct ckpt_chunk *chunk, unsigned width, const void *array, uint8_t *out)
{
	size_t lines = chunk->count / CKPT_LINE;
	size_t line = CKPT_LINE * width;
	size_t taken = lines < CKPT_SAMPLE_LINES ? lines : CKPT_SAMPLE_LINES;

	if (lines == 0) {
		memcpy(out, array, chunk->count * width);
		return chunk->count;
	}
	for (size_t i = 0; i < taken; i++)
		memcpy(out + i * line, (const uint8_t *)array + i * lines / taken * line, line);
	return taken * CKPT_LINE;
}

static void take_sample(struct ckpt_codec *codec, const struct ckpt_chunk *chunk, const void *data,
	struct ckpt_sample *ret_sample)
{
	struct ckpt_chunk *s = &ret_sample->chunk;
	/* Those of AdamW and the master are fp32, whatever the chunk is. */
	struct {
		const void *from;
		unsigned width;
		const void **to;
	} arrays[] = {
		{data, chunk->width, &ret_sample->data},
		{chunk->base, chunk->width, &s->base},
		{chunk->master, 4, &s->master},
		{chunk->m, 4, &s->m},
		{chunk->m_base, 4, &s->m_base},
		{chunk->v, 4, &s->v},
	};
	uint8_t *room = codec->sample;

	*s = *chunk;
	for (size_t i = 0; i < CKPT_COUNT(arrays); i++) {
		*arrays[i].to = NULL;
		if (!arrays[i].from)
			continue;
		*arrays[i].to = room;
		s->count = sample_array(chunk, arrays[i].width, arrays[i].from, room);
		room += CKPT_SAMPLE * 8;
	}
}

/* Bits an element that the planes of the sample come to. */
static double planes_cost(struct ckpt_codec *codec, unsigned width, enum ckpt_transform transform,
	const void *data, const void *base, size_t count)
{
	uint32_t counts[256];
	double bits = 0;
	double zeros;

	codec->kernels->split(width, transform, data, base, count, codec->sample_planes);
	for (unsigned k = 0; k < width; k++) {
		double entropy;

		codec->kernels->histogram(codec->sample_planes[k], count, 1, counts);
		entropy = ckpt_plane_entropy(codec, counts, &zeros);
		bits += entropy > CKPT_PLANE_NOISE ? 8 : entropy;
	}
	return bits;
}

static double mode_cost(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_sample *sample)
{
	const struct ckpt_chunk *chunk = &sample->chunk;
	const void *base;
	double bits = 0;

	if (mode == CKPT_MODE_ADAM_M) {
		codec->kernels->adam_gradient(&model->terms, model->order, sample->data,
			chunk->base, chunk->count, codec->gradient);
		bits = planes_cost(
			codec, 2, CKPT_TRANSFORM_ROTATE, codec->gradient, NULL, chunk->count);
	}
	base = ckpt_predict(codec, mode, model, chunk, codec->gradient, 0, chunk->count);
	return bits + planes_cost(codec, chunk->width, ckpt_mode_transform(mode, chunk->kind),
			      sample->data, base, chunk->count);
}

/* The share of lines that are those of the base, as far as they were looked at. */
static double untouched_share(const struct ckpt_chunk *chunk, const void *data)
{
	size_t lines = chunk->count / CKPT_LINE;
	size_t line = CKPT_LINE * chunk->width;
	size_t looked = lines < 64 ? lines : 64;
	size_t untouched = 0;
	const uint8_t *x = data;
	const uint8_t *base = chunk->base;

	/* In less than that a bitmap and what goes with it gain nothing. */
	if (lines < 64 || !base)
		return 0;
	for (size_t i = 0; i < looked; i++) {
		size_t at = i * lines / looked * line;

		untouched += memcmp(x + at, base + at, line) == 0;
	}
	return (double)untouched / (double)looked;
}

static enum ckpt_chunk_mode mode_of_role(enum ckpt_adam_role role)
{
	return role == CKPT_ADAM_M   ? CKPT_MODE_ADAM_M
	       : role == CKPT_ADAM_V ? CKPT_MODE_ADAM_V
				     : CKPT_MODE_ADAM_W;
}

enum ckpt_chunk_mode ckpt_choose(struct ckpt_codec *codec, const struct ckpt_chunk *chunk,
	const void *data, bool whole, struct ckpt_adam_model *ret_model)
{
	static const enum ckpt_chunk_mode others[] = {CKPT_MODE_DELTA, CKPT_MODE_CAST};
	struct ckpt_sample sample;
	enum ckpt_chunk_mode best = CKPT_MODE_INTRA;
	enum ckpt_chunk_mode adam = CKPT_MODE_END;
	double cost;
	double least;
	double adam_cost = 0;
	double untouched;

	take_sample(codec, chunk, data, &sample);
	if (ckpt_adam_fit(codec, &sample, ret_model)) {
		adam = mode_of_role(chunk->role);
		adam_cost = mode_cost(codec, adam, ret_model, &sample);
		if (adam_cost < GOOD_MODEL)
			return adam;
	}
	untouched = whole ? untouched_share(chunk, data) : 0;
	/* Masked, at least the lines that are left have to be stored; AdamW may know them better. */
	if (untouched >= UNTOUCHED && adam == CKPT_MODE_END)
		return CKPT_MODE_MASK;
	least = mode_cost(codec, CKPT_MODE_INTRA, NULL, &sample);
	for (size_t i = 0; i < CKPT_COUNT(others); i++) {
		if (!ckpt_mode_possible(others[i], chunk))
			continue;
		cost = mode_cost(codec, others[i], NULL, &sample);
		/* The rounding of what the step itself has makes no chain. */
		if (cost < least * (others[i] == CKPT_MODE_CAST ? 1 : 1 - codec->margin)) {
			least = cost;
			best = others[i];
		}
	}
	if (adam != CKPT_MODE_END && adam_cost < least * (1 - codec->margin) * (1 - untouched)) {
		least = adam_cost;
		best = adam;
	} else if (untouched >= UNTOUCHED) {
		return CKPT_MODE_MASK;
	}
	return least > 8.0 * chunk->width * WORTH ? CKPT_MODE_RAW : best;
}
