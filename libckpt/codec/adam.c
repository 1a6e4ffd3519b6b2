/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/adam.h"

#include <math.h>
#include <string.h>

#include <ckpt/error.h>

enum { FLAG_FUSED = 1, FLAG_BF16_GRADIENT = 2, FLAG_LERP = 4, FLAGS = 7 };

#define TERMS (sizeof(struct ckpt_adam_terms) / sizeof(float))

void ckpt_adam_write(const struct ckpt_adam_model *model, uint8_t out[CKPT_ADAM_HEAD])
{
	uint32_t terms[TERMS];

	out[0] = (uint8_t)((model->order == CKPT_ADAM_FUSED ? FLAG_FUSED : 0) |
			   (model->order == CKPT_ADAM_LERP ? FLAG_LERP : 0) |
			   (model->bf16_gradient ? FLAG_BF16_GRADIENT : 0));
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

bool ckpt_adam_has(const struct ckpt_chunk *chunk)
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
	const struct ckpt_chunk *chunk, const void *gradient, size_t from, size_t count, void *out)
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
	const struct ckpt_chunk *chunk = &sample->chunk;
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

/* Tries the orders of operations, and both gradients, and takes what predicts more elements exactly than `*best`. */
static void try_orders(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	const struct ckpt_adam_terms *terms, size_t count, size_t *best,
	struct ckpt_adam_model *ret_model)
{
	const struct ckpt_chunk *chunk = &sample->chunk;
	struct ckpt_adam_model model = {.terms = *terms};

	for (unsigned i = 0; i < 2 * CKPT_ADAM_ORDERS; i++) {
		size_t equal;

		model.order = (enum ckpt_adam_order)(i / 2);
		model.bf16_gradient = i % 2;
		/* A first moment is predicted from a bf16 gradient alone, and a second one from either. */
		if (chunk->role == CKPT_ADAM_M ? !model.bf16_gradient
					       : model.order == CKPT_ADAM_LERP)
			continue;
		if (chunk->role == CKPT_ADAM_W && model.bf16_gradient)
			continue;
		if (chunk->role == CKPT_ADAM_M)
			codec->kernels->adam_gradient(terms, model.order, sample->data, chunk->base,
				count, codec->gradient);
		ckpt_adam_predict(
			codec, &model, chunk, codec->gradient, 0, count, codec->predicted);
		equal = count_equal(sample->data, codec->predicted, count);
		if (equal > *best) {
			*best = equal;
			*ret_model = model;
		}
	}
}

bool ckpt_adam_fit(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	struct ckpt_adam_model *ret_model)
{
	const struct ckpt_chunk *chunk = &sample->chunk;
	/* A few lines tell the models apart. */
	size_t count = ckpt_min_u64(chunk->count, (uint64_t)4 * CKPT_LINE);
	size_t best = 0;
	struct ckpt_adam_terms terms;

	if (!chunk->adam || !ckpt_adam_has(chunk))
		return false;
	terms = terms_of(chunk->adam);
	*ret_model = (struct ckpt_adam_model){
		.terms = terms, .bf16_gradient = chunk->role == CKPT_ADAM_M};
	try_orders(codec, sample, &terms, count, &best, ret_model);
	if (chunk->role == CKPT_ADAM_W && 2 * best < count && fit_weights(sample, &terms))
		try_orders(codec, sample, &terms, count, &best, ret_model);
	return true;
}
