/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/adam.h"

#include <math.h>
#include <string.h>

#include <ckpt/error.h>

enum { FLAG_FUSED = 1, FLAG_BF16_GRADIENT = 2, FLAG_LERP = 4, FLAG_RELATIVE = 8, FLAGS = 15 };

/* Of the sampled elements, a model that is good fails at a 16th at most, and none is good that predicts fewer than that. */
#define FAIR 16
#define POOR 16

#define TERMS (sizeof(struct ckpt_adam_terms) / sizeof(float))

void ckpt_adam_write(const struct ckpt_adam_model *model, uint8_t out[CKPT_ADAM_HEAD])
{
	uint32_t terms[TERMS];

	out[0] = (uint8_t)((model->order == CKPT_ADAM_FUSED ? FLAG_FUSED : 0) |
			   (model->order == CKPT_ADAM_LERP ? FLAG_LERP : 0) |
			   (model->bf16_gradient ? FLAG_BF16_GRADIENT : 0) |
			   (model->relative ? FLAG_RELATIVE : 0));
	memcpy(terms, &model->terms, sizeof(terms));
	for (size_t i = 0; i < TERMS; i++) {
		for (unsigned k = 0; k < 4; k++)
			out[1 + 4 * i + k] = (uint8_t)(terms[i] >> (8 * k));
	}
}

int ckpt_adam_read(const uint8_t in[CKPT_ADAM_HEAD], struct ckpt_adam_model *ret_model)
{
	uint32_t terms[TERMS] = {0};

	if (in[0] & ~FLAGS || (in[0] & FLAG_FUSED && in[0] & FLAG_LERP))
		return CKPT_EINTEGRITY;
	for (size_t i = 0; i < TERMS; i++) {
		for (unsigned k = 0; k < 4; k++)
			terms[i] |= (uint32_t)in[1 + 4 * i + k] << (8 * k);
	}
	memcpy(&ret_model->terms, terms, sizeof(terms));
	ret_model->order = in[0] & FLAG_FUSED  ? CKPT_ADAM_FUSED
			   : in[0] & FLAG_LERP ? CKPT_ADAM_LERP
					       : CKPT_ADAM_SEPARATE;
	ret_model->bf16_gradient = in[0] & FLAG_BF16_GRADIENT;
	ret_model->relative = in[0] & FLAG_RELATIVE;
	return 0;
}

/* As PyTorch's optimizers do it: in double, then rounded to what the tensors are. */
static struct ckpt_adam_terms terms_of(const struct ckpt_adam_step *step)
{
	double t = (double)step->step;

	return (struct ckpt_adam_terms){
		.beta1 = (float)step->beta1,
		.beta2 = (float)step->beta2,
		.rest1 = (float)(1 - step->beta1),
		.rest2 = (float)(1 - step->beta2),
		.decay = (float)(1 - step->lr * step->weight_decay),
		.step = (float)(-step->lr / (1 - pow(step->beta1, t))),
		.root = (float)sqrt(1 - pow(step->beta2, t)),
		.eps = (float)step->eps,
	};
}

bool ckpt_adam_has(const struct ckpt_codec_chunk *chunk)
{
	if (chunk->width != 4 || chunk->kind != CKPT_KIND_FLOAT || !chunk->base)
		return false;
	switch (chunk->role) {
	case CKPT_ADAM_M:
		return true;
	case CKPT_ADAM_V:
		return chunk->m && chunk->m_base;
	case CKPT_ADAM_W:
		return chunk->m && chunk->v;
	default:
		return false;
	}
}

static const void *at(const void *array, size_t from)
{
	return array ? (const uint8_t *)array + 4 * from : NULL;
}

void ckpt_adam_predict(const struct ckpt_codec *codec, const struct ckpt_adam_model *model,
	const struct ckpt_codec_chunk *chunk, const void *gradient, size_t from, size_t count,
	void *out)
{
	const struct ckpt_kernels *kernels = codec->kernels;
	const void *base = at(chunk->base, from);
	const void *m = at(chunk->m, from);

	switch (chunk->role) {
	case CKPT_ADAM_M:
		kernels->adam_m(&model->terms, model->order, base, gradient, count, out);
		break;
	case CKPT_ADAM_V:
		kernels->adam_v(&model->terms, model->order, model->bf16_gradient, m,
			at(chunk->m_base, from), base, count, out);
		break;
	default:
		kernels->adam_w(
			&model->terms, model->order, base, m, at(chunk->v, from), count, out);
	}
}

void ckpt_adam_split_gradient(const struct ckpt_codec *codec, const struct ckpt_adam_model *model,
	const struct ckpt_codec_chunk *chunk, uint8_t *const planes[2])
{
	if (model->relative)
		codec->kernels->split_gradient(
			chunk->v_base, codec->gradient, chunk->count, planes);
	else
		codec->kernels->split(
			2, CKPT_TRANSFORM_ROTATE, codec->gradient, NULL, chunk->count, planes);
}

static size_t count_equal(const void *a, const void *b, size_t count)
{
	const uint8_t *x = a;
	const uint8_t *y = b;
	size_t equal = 0;

	for (size_t i = 0; i < count; i++)
		equal += memcmp(x + 4 * i, y + 4 * i, 4) == 0;
	return equal;
}

static float f32(const void *array, size_t i)
{
	float value;

	memcpy(&value, (const uint8_t *)array + 4 * i, sizeof(value));
	return value;
}

/*
 * The rate and the decay that lead from the earlier weights to these, by least squares: what the optimizer was given
 * may have changed since (a scheduler), or is not known to the last bit. False: the sample does not say.
 */
static bool fit_weights(const struct ckpt_sample *sample, struct ckpt_adam_terms *terms)
{
	const struct ckpt_codec_chunk *chunk = &sample->chunk;
	double ww = 0;
	double wu = 0;
	double uu = 0;
	double wd = 0;
	double ud = 0;
	double det;
	float decay;
	float step;

	for (size_t i = 0; i < chunk->count; i++) {
		double w = f32(chunk->base, i);
		double d = f32(sample->data, i) - w;
		double u = f32(chunk->m, i) /
			   (sqrt((double)f32(chunk->v, i)) / terms->root + (double)terms->eps);

		ww += w * w;
		wu += w * u;
		uu += u * u;
		wd += w * d;
		ud += u * d;
	}
	det = ww * uu - wu * wu;
	decay = (float)(1 + (wd * uu - ud * wu) / det);
	step = (float)((ud * ww - wd * wu) / det);
	if (!isfinite(decay) || !isfinite(step))
		return false;
	terms->decay = decay;
	terms->step = step;
	return true;
}

/* The orders of operations, each with either gradient. */
#define MODELS (2u * CKPT_ADAM_ORDERS)

static struct ckpt_adam_model numbered(const struct ckpt_adam_terms *terms, unsigned number)
{
	return (struct ckpt_adam_model){.terms = *terms,
		.order = (enum ckpt_adam_order)(number / 2),
		.bf16_gradient = number % 2};
}

/* A first moment is predicted from a bf16 gradient alone, and a second one from either. */
static bool suits(const struct ckpt_adam_model *model, enum ckpt_adam_role role)
{
	if (role == CKPT_ADAM_M)
		return model->bf16_gradient;
	if (model->order == CKPT_ADAM_LERP)
		return false;
	return role == CKPT_ADAM_V || !model->bf16_gradient;
}

/* How many of the first `count` elements the model predicts exactly. */
static size_t try_model(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	const struct ckpt_adam_model *model, size_t count)
{
	const struct ckpt_codec_chunk *chunk = &sample->chunk;

	if (chunk->role == CKPT_ADAM_M)
		codec->kernels->adam_gradient(&model->terms, model->order, sample->data,
			chunk->base, count, codec->gradient);
	ckpt_adam_predict(codec, model, chunk, codec->gradient, 0, count, codec->predicted);
	return count_equal(sample->data, codec->predicted, count);
}

/* Takes what predicts more elements exactly than `*best`; returns its number, or `otherwise`. */
static unsigned try_models(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	const struct ckpt_adam_terms *terms, size_t count, size_t *best, unsigned otherwise)
{
	unsigned found = otherwise;

	for (unsigned i = 0; i < MODELS; i++) {
		struct ckpt_adam_model model = numbered(terms, i);
		size_t equal;

		if (!suits(&model, sample->chunk.role))
			continue;
		equal = try_model(codec, sample, &model, count);
		if (equal > *best) {
			*best = equal;
			found = i;
		}
	}
	return found;
}

/* It predicts nearly all, or as little as all others did before. */
static bool hint_holds(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	const struct ckpt_adam_terms *terms, size_t count)
{
	const struct ckpt_adam_hint *hint = sample->chunk.hint;
	struct ckpt_adam_model model;
	size_t equal;

	if (!hint || hint->order == 0 || hint->order > MODELS)
		return false;
	model = numbered(terms, hint->order - 1u);
	if (!suits(&model, sample->chunk.role))
		return false;
	equal = try_model(codec, sample, &model, count);
	return hint->poor ? POOR * equal < count : FAIR * (count - equal) <= count;
}

bool ckpt_adam_fit(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	struct ckpt_adam_model *ret_model)
{
	const struct ckpt_codec_chunk *chunk = &sample->chunk;
	/* A few lines tell the models apart. */
	size_t count = ckpt_min_u64(chunk->count, (uint64_t)4 * CKPT_LINE);
	size_t best = 0;
	unsigned found;
	struct ckpt_adam_terms terms;

	if (!chunk->adam || !ckpt_adam_has(chunk))
		return false;
	terms = terms_of(chunk->adam);
	if (hint_holds(codec, sample, &terms, count)) {
		*ret_model = numbered(&terms, chunk->hint->order - 1u);
		return true;
	}
	found = try_models(codec, sample, &terms, count, &best, chunk->role == CKPT_ADAM_M);
	*ret_model = numbered(&terms, found);
	if (chunk->hint)
		*chunk->hint = (struct ckpt_adam_hint){
			.order = (uint8_t)(found + 1),
			.poor = chunk->role == CKPT_ADAM_M && POOR * best < count,
		};
	if (chunk->role == CKPT_ADAM_W && 2 * best < count && fit_weights(sample, &terms)) {
		size_t before = best;

		found = try_models(codec, sample, &terms, count, &best, found);
		if (best > before)
			*ret_model = numbered(&terms, found);
	}
	return true;
}
