/* SPDX-License-Identifier: Apache-2.0 */
#include "adam_states.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next(struct states *s)
{
	uint64_t a = s->random[0], b = s->random[1] ^ a, sum = s->random[0] + s->random[1];

	s->random[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
	s->random[1] = b << 37 | b >> 27;
	return sum;
}

/* Nearly normal: the sum of eight uniform numbers, in integers but for its scale. */
static float normal(struct states *s)
{
	uint64_t a = next(s), b = next(s);
	int32_t sum = 0;

	for (int k = 0; k < 4; k++)
		sum += (int32_t)(a >> 16 * k & 0xffff) + (int32_t)(b >> 16 * k & 0xffff);
	return (float)(sum - 262140) * (1.0f / 53510.0f);
}

static uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static uint16_t bf16(float x)
{
	return (uint16_t)((bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16);
}

/* 2^x, by a polynomial that is the same everywhere. */
static float power_of_two(float x)
{
	int whole = (int)x - (x < (float)(int)x);
	float part = x - (float)whole;
	float y = 1 +
		  part * (0.69314718f +
				 part * (0.24022651f + part * (0.05550411f + part * 0.00961813f)));

	return float_of(bits_of(y) + ((uint32_t)whole << 23));
}

static int allocate(struct states *s)
{
	s->master = calloc(s->count, sizeof(float));
	s->m = calloc(s->count, sizeof(float));
	s->v = calloc(s->count, sizeof(float));
	s->w = calloc(s->count, sizeof(uint16_t));
	return s->master && s->m && s->v && s->w ? 0 : -1;
}

int states_open(struct states *s, size_t rows, size_t columns)
{
	*s = (struct states){
		.count = rows * columns,
		.rows = rows,
		.columns = columns,
		.hyper =
			{.beta1 = 0.9, .beta2 = 0.95, .lr = 1e-3, .weight_decay = 0.1, .eps = 1e-8},
		.random = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xd1b54a32d192ed03)},
	};
	s->mean = calloc(s->count, sizeof(float));
	s->row = calloc(rows, sizeof(float));
	s->column = calloc(columns, sizeof(float));
	if (allocate(s) < 0 || !s->mean || !s->row || !s->column)
		return -1;
	for (size_t i = 0; i < s->count; i++) {
		s->master[i] = 0.02f * normal(s);
		s->mean[i] = 0.25f * normal(s);
	}
	for (size_t i = 0; i < rows; i++)
		s->row[i] = power_of_two(-12 + 1.2f * normal(s));
	for (size_t i = 0; i < columns; i++)
		s->column[i] = power_of_two(0.9f * normal(s));
	return 0;
}

void states_close(struct states *s)
{
	free(s->master);
	free(s->m);
	free(s->v);
	free(s->w);
	free(s->mean);
	free(s->row);
	free(s->column);
}

/* In the order of operations of PyTorch's AdamW on a CPU, whose first moment is averaged in either way. */
void states_step(struct states *s)
{
	struct ckpt_adam_step *h = &s->hyper;
	double correction1, correction2;
	float beta1 = (float)h->beta1, beta2 = (float)h->beta2, eps = (float)h->eps;
	float rest1 = (float)(1 - h->beta1), rest2 = (float)(1 - h->beta2);
	float decay = (float)(1 - h->lr * h->weight_decay), step, root;

	h->step++;
	correction1 = 1 - pow(h->beta1, (double)h->step);
	correction2 = 1 - pow(h->beta2, (double)h->step);
	step = (float)(-h->lr / correction1);
	root = (float)sqrt(correction2);
	for (size_t i = 0; i < s->count; i++) {
		float g = s->row[i / s->columns] * s->column[i % s->columns] *
			  (s->mean[i] + normal(s));
		volatile float kept, scaled, added;

		/* Some rows are not used in a step, as of an embedding. */
		if (s->lerp && i / s->columns % 8 == s->hyper.step % 8)
			g = 0;
		if (s->bf16_gradients)
			g = float_of((uint32_t)bf16(g) << 16);
		if (s->lerp) {
			added = g - s->m[i];
			s->m[i] = fmaf(rest1, added, s->m[i]);
		} else if (s->fused) {
			kept = s->m[i] * beta1;
			s->m[i] = fmaf(rest1, g, kept);
		} else {
			kept = s->m[i] * beta1;
			scaled = rest1 * g;
			s->m[i] = kept + scaled;
		}
		kept = s->v[i] * beta2;
		scaled = rest2 * g;
		added = scaled * g;
		s->v[i] = s->fused ? fmaf(scaled, g, kept) : kept + added;
		kept = s->master[i] * decay;
		added = sqrtf(s->v[i]) / root;
		added = added + eps;
		if (s->fused) {
			scaled = s->m[i] / added;
			s->master[i] = fmaf(step, scaled, kept);
		} else {
			scaled = step * s->m[i];
			added = scaled / added;
			s->master[i] = kept + added;
		}
		s->w[i] = bf16(s->master[i]);
	}
}

int states_copy(const struct states *s, struct states *ret_copy)
{
	*ret_copy = (struct states){.count = s->count};
	if (allocate(ret_copy) < 0)
		return -1;
	memcpy(ret_copy->master, s->master, s->count * sizeof(float));
	memcpy(ret_copy->m, s->m, s->count * sizeof(float));
	memcpy(ret_copy->v, s->v, s->count * sizeof(float));
	memcpy(ret_copy->w, s->w, s->count * sizeof(uint16_t));
	return 0;
}

/* Numbers that a half has as normal ones, cut off. */
static uint16_t cut_to_half(float x)
{
	uint32_t bits = bits_of(x);

	return (uint16_t)((bits >> 16 & 0x8000) |
			  ((bits & 0x7fffffff) < 0x38800000
					  ? 0
					  : ((bits & 0x7fffffff) - 0x38000000) >> 13));
}

void states_fine_tune(bool half, size_t count, uint16_t *ret_base, uint16_t *ret_now)
{
	struct states s = {.random = {UINT64_C(0x9e3779b97f4a7c15), 5}};

	for (size_t i = 0; i < count; i++) {
		float w = 0.02f * normal(&s);
		float later = w + (half ? 1e-6f : 1e-5f) * normal(&s);

		ret_base[i] = half ? cut_to_half(w) : bf16(w);
		ret_now[i] = half ? cut_to_half(later) : bf16(later);
	}
}
