/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/choose.h"

#include <string.h>

#include "codec/plane.h"

/* Of the raw size: what is not smaller is stored as it is. */
#define WORTH      0.98
/* Bits an element: what AdamW predicts so well is not compared with anything else. */
#define GOOD_MODEL 4.0
/* Groups are used where a difference has few bits, of the raw size, and of the size without groups. */
#define FEW_BITS   0.5
#define GROUPED    0.95
/* What a group adds to a plane: a code's description, sizes, streams that end. */
#define GROUP_BITS 120.0
/* Share of lines that are those of the base: worth a bitmap. */
#define UNTOUCHED  0.125

/* Up to CKPT_SAMPLE_LINES lines, evenly spread. A chunk shorter than a line is its own sample. */
static size_t sample_array(
	const struct ckpt_codec_chunk *chunk, unsigned width, const void *array, uint8_t *out)
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

static void take_sample(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const void *data, struct ckpt_sample *ret_sample)
{
	struct ckpt_codec_chunk *s = &ret_sample->chunk;
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
		{chunk->v_base, 4, &s->v_base},
	};
	uint8_t *room = codec->sample;

	_Static_assert(CKPT_COUNT(arrays) == CKPT_SAMPLE_ARRAYS, "each array has its room");
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

/* Bits that so many bytes come to. */
static double bytes_cost(struct ckpt_codec *codec, const uint32_t counts[256], size_t count)
{
	double zeros;
	double entropy = ckpt_plane_entropy(codec, counts, &zeros);

	return (double)count * (entropy > CKPT_PLANE_NOISE ? 8 : entropy);
}

/* Bits an element that planes of the sample come to. */
static double planes_cost(struct ckpt_codec *codec, unsigned width, size_t count)
{
	uint32_t counts[256];
	double bits = 0;

	for (unsigned k = 0; k < width; k++) {
		codec->kernels->histogram(codec->sample_planes[k], count, 1, counts);
		bits += bytes_cost(codec, counts, count);
	}
	return bits / (double)count;
}

/* The same in groups, of a sample that has been split. `whole` is the chunk's own number of elements. */
static double groups_cost(struct ckpt_codec *codec, const struct ckpt_grouping *grouping,
	const struct ckpt_codec_chunk *sample, size_t whole)
{
	size_t sizes[CKPT_GROUPS];
	double bits = 0;

	ckpt_group_find(codec, grouping, sample, sizes);
	for (unsigned k = 0; k < sample->width; k++) {
		const uint8_t *at = codec->grouped;

		ckpt_group_gather(codec, codec->sample_planes[k], sizes, sample->count);
		for (unsigned g = 0; g < grouping->groups; at += sizes[g++]) {
			uint32_t counts[256] = {0};

			for (size_t i = 0; i < sizes[g]; i++)
				counts[at[i]]++;
			bits += bytes_cost(codec, counts, sizes[g]);
		}
	}
	return bits / (double)sample->count +
	       (double)(grouping->groups - 1) * sample->width * GROUP_BITS / (double)whole;
}

static double mode_cost(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_sample *sample)
{
	const struct ckpt_codec_chunk *chunk = &sample->chunk;
	const void *base =
		ckpt_predict(codec, mode, model, chunk, codec->gradient, 0, chunk->count);

	codec->kernels->split(chunk->width, ckpt_mode_transform(mode, chunk->kind), sample->data,
		base, chunk->count, codec->sample_planes);
	return planes_cost(codec, chunk->width, chunk->count);
}

static double gradient_cost(struct ckpt_codec *codec, const struct ckpt_adam_model *model,
	const struct ckpt_sample *sample)
{
	ckpt_adam_split_gradient(codec, model, &sample->chunk, codec->sample_planes);
	return planes_cost(codec, 2, sample->chunk.count);
}

/* Of the mode of the chunk's role. Finds which way to code gradients is shorter. */
static double adam_mode_cost(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_sample *sample, struct ckpt_adam_model *model)
{
	double bits;
	double relative;

	if (mode != CKPT_MODE_ADAM_M)
		return mode_cost(codec, mode, model, sample);
	codec->kernels->adam_gradient(&model->terms, model->order, sample->data, sample->chunk.base,
		sample->chunk.count, codec->gradient);
	bits = gradient_cost(codec, model, sample);
	if (sample->chunk.v_base) {
		model->relative = true;
		relative = gradient_cost(codec, model, sample);
		model->relative = relative < bits;
		bits = relative < bits ? relative : bits;
	}
	return bits + mode_cost(codec, mode, model, sample);
}

/* The share of lines that are those of the base, as far as they were looked at. */
static double untouched_share(const struct ckpt_codec_chunk *chunk, const void *data)
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

/* The better one of DELTA and GROUPED, as both have the same planes. */
static enum ckpt_chunk_mode delta_cost(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	size_t whole, struct ckpt_grouping *ret_grouping, double *ret_cost)
{
	double grouped;

	*ret_cost = mode_cost(codec, CKPT_MODE_DELTA, NULL, sample);
	if (!ckpt_group_possible(&sample->chunk) ||
		*ret_cost > 8.0 * sample->chunk.width * FEW_BITS)
		return CKPT_MODE_DELTA;
	*ret_grouping = ckpt_group_fit(&sample->chunk, whole);
	grouped = groups_cost(codec, ret_grouping, &sample->chunk, whole);
	if (grouped > *ret_cost * GROUPED)
		return CKPT_MODE_DELTA;
	*ret_cost = grouped;
	return CKPT_MODE_GROUPED;
}

void ckpt_choose(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const void *data,
	bool whole, struct ckpt_choice *ret_choice)
{
	struct ckpt_sample sample;
	enum ckpt_chunk_mode best = CKPT_MODE_INTRA;
	enum ckpt_chunk_mode adam = CKPT_MODE_END;
	double cost;
	double least;
	double adam_cost = 0;
	double untouched;

	take_sample(codec, chunk, data, &sample);
	if (ckpt_adam_fit(codec, &sample, &ret_choice->model)) {
		adam = mode_of_role(chunk->role);
		adam_cost = adam_mode_cost(codec, adam, &sample, &ret_choice->model);
		ret_choice->mode = adam;
		if (adam_cost < GOOD_MODEL)
			return;
	}
	untouched = whole ? untouched_share(chunk, data) : 0;
	/* Masked, at least the lines that are left have to be stored; AdamW may know them better. */
	ret_choice->mode = CKPT_MODE_MASK;
	if (untouched >= UNTOUCHED && adam == CKPT_MODE_END)
		return;
	least = mode_cost(codec, CKPT_MODE_INTRA, NULL, &sample);
	if (ckpt_mode_possible(CKPT_MODE_DELTA, chunk)) {
		enum ckpt_chunk_mode delta =
			delta_cost(codec, &sample, chunk->count, &ret_choice->grouping, &cost);

		if (cost < least * (1 - codec->margin)) {
			least = cost;
			best = delta;
		}
	}
	/* The rounding of what the step itself has makes no chain. */
	if (ckpt_mode_possible(CKPT_MODE_CAST, chunk)) {
		cost = mode_cost(codec, CKPT_MODE_CAST, NULL, &sample);
		if (cost < least) {
			least = cost;
			best = CKPT_MODE_CAST;
		}
	}
	if (adam != CKPT_MODE_END && adam_cost < least * (1 - codec->margin) * (1 - untouched)) {
		least = adam_cost;
		best = adam;
	} else if (untouched >= UNTOUCHED) {
		return;
	}
	ret_choice->mode = least > 8.0 * chunk->width * WORTH ? CKPT_MODE_RAW : best;
}
