/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of kernels.h in plain C. Included by each file that compiles them for an instruction set, within its
 * target. Floating point is IEEE 754 without contraction (-ffp-contract=off), so that all of them agree.
 */
#include <float.h>
#include <math.h>
#include <string.h>

/* No array of a loop overlaps another one. */
#if defined(__clang__)
#define APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define APART _Pragma("GCC ivdep")
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements and bits are little-endian");
_Static_assert(FLT_EVAL_METHOD == 0, "fp32 arithmetic is not done in a wider type");
#ifdef __FAST_MATH__
#error "-ffast-math changes what is predicted: build libckpt/codec without it"
#endif

/* Elements where they lie, aligned or not. */
typedef uint8_t any_u8;
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));
typedef float any_float __attribute__((aligned(1), may_alias));

/* NOLINTBEGIN(bugprone-macro-parentheses): the number is part of names. */
/*
 * For one width: the transforms, and the loops that split and merge. The order of floats as unsigned integers is
 * that of their values once a negative one has all its bits flipped and another one its sign bit set.
 */
#define WIDTH(bits, planes_of_width)                                                               \
	static inline uint##bits##_t ordered##bits(uint##bits##_t x)                               \
	{                                                                                          \
		uint##bits##_t negative = (uint##bits##_t) - (uint##bits##_t)(x >> (bits - 1));    \
		return (uint##bits##_t)(x ^ (negative | (uint##bits##_t)1 << (bits - 1)));         \
	}                                                                                          \
	static inline uint##bits##_t unordered##bits(uint##bits##_t x)                             \
	{                                                                                          \
		uint##bits##_t negative = (uint##bits##_t)((x >> (bits - 1)) - 1);                 \
		return (uint##bits##_t)(x ^ (negative | (uint##bits##_t)1 << (bits - 1)));         \
	}                                                                                          \
	static inline uint##bits##_t zigzag##bits(uint##bits##_t x)                                \
	{                                                                                          \
		return (uint##bits##_t)((uint##bits##_t)(x << 1) ^                                 \
					(uint##bits##_t) - (uint##bits##_t)(x >> (bits - 1)));     \
	}                                                                                          \
	static inline uint##bits##_t unzigzag##bits(uint##bits##_t x)                              \
	{                                                                                          \
		return (uint##bits##_t)((x >> 1) ^ (uint##bits##_t) - (uint##bits##_t)(x & 1));    \
	}                                                                                          \
	static inline __attribute__((always_inline)) uint##bits##_t forward##bits(                 \
		enum ckpt_transform transform, uint##bits##_t x, uint##bits##_t base)              \
	{                                                                                          \
		switch (transform) {                                                               \
		case CKPT_TRANSFORM_ROTATE:                                                        \
			return (uint##bits##_t)(x << 1 | x >> (bits - 1));                         \
		case CKPT_TRANSFORM_FLOAT:                                                         \
			return zigzag##bits(                                                       \
				(uint##bits##_t)(ordered##bits(x) - ordered##bits(base)));         \
		case CKPT_TRANSFORM_INT:                                                           \
			return zigzag##bits((uint##bits##_t)(x - base));                           \
		default:                                                                           \
			return x;                                                                  \
		}                                                                                  \
	}                                                                                          \
	static inline __attribute__((always_inline)) uint##bits##_t backward##bits(                \
		enum ckpt_transform transform, uint##bits##_t x, uint##bits##_t base)              \
	{                                                                                          \
		switch (transform) {                                                               \
		case CKPT_TRANSFORM_ROTATE:                                                        \
			return (uint##bits##_t)(x >> 1 | x << (bits - 1));                         \
		case CKPT_TRANSFORM_FLOAT:                                                         \
			return unordered##bits(                                                    \
				(uint##bits##_t)(unzigzag##bits(x) + ordered##bits(base)));        \
		case CKPT_TRANSFORM_INT:                                                           \
			return (uint##bits##_t)(unzigzag##bits(x) + base);                         \
		default:                                                                           \
			return x;                                                                  \
		}                                                                                  \
	}                                                                                          \
	static inline __attribute__((always_inline)) void split_by##bits(                          \
		enum ckpt_transform transform, const any_u##bits *x, const any_u##bits *base,      \
		size_t count, uint8_t *const planes[])                                             \
	{                                                                                          \
		uint8_t *restrict plane[8];                                                        \
		for (unsigned k = 0; k < planes_of_width; k++)                                     \
			plane[k] = planes[k];                                                      \
		APART for (size_t i = 0; i < count; i++)                                           \
		{                                                                                  \
			uint##bits##_t y = forward##bits(                                          \
				transform, x[i], transform >= CKPT_TRANSFORM_FLOAT ? base[i] : 0); \
			for (unsigned k = 0; k < planes_of_width; k++)                             \
				plane[k][i] = (uint8_t)(y >> (8 * k));                             \
		}                                                                                  \
	}                                                                                          \
	static inline __attribute__((always_inline)) void merge_by##bits(                          \
		enum ckpt_transform transform, any_u##bits *restrict x, const any_u##bits *base,   \
		size_t count, const uint8_t *const planes[])                                       \
	{                                                                                          \
		const uint8_t *plane[8];                                                           \
		for (unsigned k = 0; k < planes_of_width; k++)                                     \
			plane[k] = planes[k];                                                      \
		APART for (size_t i = 0; i < count; i++)                                           \
		{                                                                                  \
			uint##bits##_t y = 0;                                                      \
			for (unsigned k = 0; k < planes_of_width; k++)                             \
				y = (uint##bits##_t)(y | (uint##bits##_t)plane[k][i] << (8 * k));  \
			x[i] = backward##bits(                                                     \
				transform, y, transform >= CKPT_TRANSFORM_FLOAT ? base[i] : 0);    \
		}                                                                                  \
	}                                                                                          \
	static void split##bits(enum ckpt_transform transform, const void *data, const void *base, \
		size_t count, uint8_t *const planes[])                                             \
	{                                                                                          \
		switch (transform) {                                                               \
		case CKPT_TRANSFORM_ROTATE:                                                        \
			split_by##bits(CKPT_TRANSFORM_ROTATE, data, NULL, count, planes);          \
			break;                                                                     \
		case CKPT_TRANSFORM_FLOAT:                                                         \
			split_by##bits(CKPT_TRANSFORM_FLOAT, data, base, count, planes);           \
			break;                                                                     \
		case CKPT_TRANSFORM_INT:                                                           \
			split_by##bits(CKPT_TRANSFORM_INT, data, base, count, planes);             \
			break;                                                                     \
		default:                                                                           \
			split_by##bits(CKPT_TRANSFORM_NONE, data, NULL, count, planes);            \
		}                                                                                  \
	}                                                                                          \
	static void merge##bits(enum ckpt_transform transform, void *data, const void *base,       \
		size_t count, const uint8_t *const planes[])                                       \
	{                                                                                          \
		switch (transform) {                                                               \
		case CKPT_TRANSFORM_ROTATE:                                                        \
			merge_by##bits(CKPT_TRANSFORM_ROTATE, data, NULL, count, planes);          \
			break;                                                                     \
		case CKPT_TRANSFORM_FLOAT:                                                         \
			merge_by##bits(CKPT_TRANSFORM_FLOAT, data, base, count, planes);           \
			break;                                                                     \
		case CKPT_TRANSFORM_INT:                                                           \
			merge_by##bits(CKPT_TRANSFORM_INT, data, base, count, planes);             \
			break;                                                                     \
		default:                                                                           \
			merge_by##bits(CKPT_TRANSFORM_NONE, data, NULL, count, planes);            \
		}                                                                                  \
	}

WIDTH(8, 1)
WIDTH(16, 2)
WIDTH(32, 4)
WIDTH(64, 8)
#undef WIDTH
/* NOLINTEND(bugprone-macro-parentheses) */

static void split(unsigned width, enum ckpt_transform transform, const void *data, const void *base,
	size_t count, uint8_t *const planes[])
{
	switch (width) {
	case 1:
		split8(transform, data, base, count, planes);
		break;
	case 2:
		split16(transform, data, base, count, planes);
		break;
	case 4:
		split32(transform, data, base, count, planes);
		break;
	default:
		split64(transform, data, base, count, planes);
	}
}

static void merge(unsigned width, enum ckpt_transform transform, void *data, const void *base,
	size_t count, const uint8_t *const planes[])
{
	switch (width) {
	case 1:
		merge8(transform, data, base, count, planes);
		break;
	case 2:
		merge16(transform, data, base, count, planes);
		break;
	case 4:
		merge32(transform, data, base, count, planes);
		break;
	default:
		merge64(transform, data, base, count, planes);
	}
}

static void find_groups(unsigned shift, unsigned bits, unsigned first, unsigned last,
	const void *elements, size_t count, uint8_t *restrict groups)
{
	const any_u16 *x = elements;
	const uint16_t mask = (uint16_t)((1u << bits) - 1);

	for (size_t i = 0; i < count; i++) {
		uint16_t exponent = (uint16_t)(x[i] >> shift & mask);
		uint16_t group = (uint16_t)(exponent < first ? 0 : exponent - first);

		groups[i] = (uint8_t)(group > last ? last : group);
	}
}

#ifndef HAVE_GROUPS
static void gather_groups(
	const uint8_t *groups, const uint8_t *plane, size_t count, uint8_t *ends[CKPT_GROUPS])
{
	for (size_t i = 0; i < count; i++)
		*ends[groups[i]]++ = plane[i];
}

static void scatter_groups(
	const uint8_t *groups, const uint8_t *begins[CKPT_GROUPS], size_t count, uint8_t *plane)
{
	for (size_t i = 0; i < count; i++)
		plane[i] = *begins[groups[i]]++;
}
#endif

static inline uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* As PyTorch does: what is NaN becomes the one quiet NaN. */
static inline uint32_t bf16_of(uint32_t x)
{
	uint32_t rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;

	return (x & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

static void round_bf16(const void *values, size_t count, void *rounded)
{
	const any_u32 *x = values;
	any_u16 *restrict y = rounded;

	for (size_t i = 0; i < count; i++)
		y[i] = (uint16_t)bf16_of(x[i]);
}

/* Below the smallest normal half, adding 0.5 rounds at the place where the half's last bit is. */
static inline uint32_t f16_of(uint32_t x)
{
	uint32_t size = x & 0x7fffffff;
	uint32_t normal = (size + 0xc8000fff + ((size >> 13) & 1)) >> 13;
	uint32_t small = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
	uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
	uint32_t half = size < 0x38800000 ? small : size >= 0x47800000 ? large : normal;

	return half | ((x >> 16) & 0x8000);
}

static void round_f16(const void *values, size_t count, void *rounded)
{
	const any_u32 *x = values;
	any_u16 *restrict y = rounded;

	for (size_t i = 0; i < count; i++)
		y[i] = (uint16_t)f16_of(x[i]);
}

static inline float number(float value)
{
	return value == value ? value : 0.0f;
}

/* The gradient that has led from one first moment to the next. */
static inline float gradient_of(const struct ckpt_adam_terms *terms, float m, float m_base)
{
	return __builtin_fmaf(-terms->beta1, m_base, m) / terms->rest1;
}

static inline __attribute__((always_inline)) float moment_of(
	const struct ckpt_adam_terms *t, enum ckpt_adam_order order, float m_base, float g)
{
	if (order == CKPT_ADAM_LERP)
		return __builtin_fmaf(t->rest1, g - m_base, m_base);
	if (order == CKPT_ADAM_FUSED)
		return __builtin_fmaf(t->rest1, g, m_base * t->beta1);
	return m_base * t->beta1 + t->rest1 * g;
}

/*
 * In double, for a gradient may be small beside the moments that it is found from. A gradient of 0 looks like their
 * rounding: where 0 explains the moment, it is taken.
 */
static inline __attribute__((always_inline)) void adam_gradient_by(
	const struct ckpt_adam_terms *terms, enum ckpt_adam_order order, const any_float *m,
	const any_float *m_base, size_t count, any_u16 *restrict gradient)
{
	const struct ckpt_adam_terms t = *terms;

	for (size_t i = 0; i < count; i++) {
		double now = m[i];
		double before = m_base[i];
		double averaged = (now - t.beta1 * before) / t.rest1;
		double moved = before + (now - before) / t.rest1;
		float g = (float)(order == CKPT_ADAM_LERP ? moved : averaged);
		bool none = moment_of(&t, order, m_base[i], 0) == m[i];

		gradient[i] = none ? 0 : (uint16_t)bf16_of(bits_of(g));
	}
}

static void adam_gradient(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
	const void *m, const void *m_base, size_t count, void *gradient_bf16)
{
	if (order == CKPT_ADAM_LERP)
		adam_gradient_by(terms, CKPT_ADAM_LERP, m, m_base, count, gradient_bf16);
	else if (order == CKPT_ADAM_FUSED)
		adam_gradient_by(terms, CKPT_ADAM_FUSED, m, m_base, count, gradient_bf16);
	else
		adam_gradient_by(terms, CKPT_ADAM_SEPARATE, m, m_base, count, gradient_bf16);
}

/*
 * The size of a gradient is mostly near sqrt(v). Of the root, halving the exponent is enough: the sizes are integers of
 * 15 bits, and what is coded is their difference. 0 stays 0, and the others go round among themselves.
 */
#define SIZES  32767u /* but 0 */
#define MIDDLE 8192u  /* the code of the root's own size, less one */

/* 0 to SIZES. */
static inline uint32_t root_of(uint32_t v)
{
	return (v + (127u << 23)) >> 17;
}

/* Below three times SIZES. */
static inline uint32_t go_round(uint32_t x)
{
	x = x >= SIZES ? x - SIZES : x;
	return x >= SIZES ? x - SIZES : x;
}

static void split_gradient(
	const void *v_base, const void *gradient, size_t count, uint8_t *const planes[2])
{
	const any_u32 *v = v_base;
	const any_u16 *g = gradient;
	uint8_t *restrict low = planes[0];
	uint8_t *restrict high = planes[1];

	APART for (size_t i = 0; i < count; i++)
	{
		uint32_t size = g[i] & SIZES;
		uint32_t code = 1 + go_round(size + (SIZES - 1) + MIDDLE - root_of(v[i]));

		code = (size ? code : 0) << 1 | g[i] >> 15;
		low[i] = (uint8_t)code;
		high[i] = (uint8_t)(code >> 8);
	}
}

static void merge_gradient(
	const void *v_base, const uint8_t *const planes[2], size_t count, void *gradient)
{
	const any_u32 *v = v_base;
	const uint8_t *low = planes[0];
	const uint8_t *high = planes[1];
	any_u16 *restrict g = gradient;

	APART for (size_t i = 0; i < count; i++)
	{
		uint32_t code = low[i] | (uint32_t)high[i] << 8;
		uint32_t size = 1 + go_round((code >> 1) + (SIZES - 1) - MIDDLE + root_of(v[i]));

		g[i] = (uint16_t)((code >> 1 ? size : 0) | (code & 1) << 15);
	}
}

static inline __attribute__((always_inline)) void adam_m_by(const struct ckpt_adam_terms *terms,
	enum ckpt_adam_order order, const any_float *m_base, const any_u16 *gradient, size_t count,
	any_float *restrict m)
{
	const struct ckpt_adam_terms t = *terms;

	for (size_t i = 0; i < count; i++) {
		float g = float_of((uint32_t)gradient[i] << 16);

		m[i] = number(moment_of(&t, order, m_base[i], g));
	}
}

static void adam_m(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
	const void *m_base, const void *gradient_bf16, size_t count, void *predicted)
{
	if (order == CKPT_ADAM_LERP)
		adam_m_by(terms, CKPT_ADAM_LERP, m_base, gradient_bf16, count, predicted);
	else if (order == CKPT_ADAM_FUSED)
		adam_m_by(terms, CKPT_ADAM_FUSED, m_base, gradient_bf16, count, predicted);
	else
		adam_m_by(terms, CKPT_ADAM_SEPARATE, m_base, gradient_bf16, count, predicted);
}

static inline __attribute__((always_inline)) void adam_v_by(const struct ckpt_adam_terms *terms,
	bool fused, bool bf16_gradient, const any_float *m, const any_float *m_base,
	const any_float *v_base, size_t count, any_float *restrict v)
{
	const struct ckpt_adam_terms t = *terms;

	for (size_t i = 0; i < count; i++) {
		float g = gradient_of(&t, m[i], m_base[i]);
		float scaled;
		float kept = v_base[i] * t.beta2;

		g = bf16_gradient ? float_of(bf16_of(bits_of(g)) << 16) : g;
		scaled = t.rest2 * g;
		v[i] = number(fused ? __builtin_fmaf(scaled, g, kept) : scaled * g + kept);
	}
}

static void adam_v(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
	bool bf16_gradient, const void *m, const void *m_base, const void *v_base, size_t count,
	void *predicted)
{
	bool fused = order == CKPT_ADAM_FUSED;

	if (fused && bf16_gradient)
		adam_v_by(terms, true, true, m, m_base, v_base, count, predicted);
	else if (fused)
		adam_v_by(terms, true, false, m, m_base, v_base, count, predicted);
	else if (bf16_gradient)
		adam_v_by(terms, false, true, m, m_base, v_base, count, predicted);
	else
		adam_v_by(terms, false, false, m, m_base, v_base, count, predicted);
}

static inline __attribute__((always_inline)) void adam_w_by(const struct ckpt_adam_terms *terms,
	bool fused, const any_float *w_base, const any_float *m, const any_float *v, size_t count,
	any_float *restrict w)
{
	const struct ckpt_adam_terms t = *terms;

	for (size_t i = 0; i < count; i++) {
		float kept = w_base[i] * t.decay;
		float under = __builtin_sqrtf(v[i]) / t.root + t.eps;

		w[i] = number(fused ? __builtin_fmaf(t.step, m[i] / under, kept)
				    : t.step * m[i] / under + kept);
	}
}

static void adam_w(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
	const void *w_base, const void *m, const void *v, size_t count, void *predicted)
{
	if (order == CKPT_ADAM_FUSED)
		adam_w_by(terms, true, w_base, m, v, count, predicted);
	else
		adam_w_by(terms, false, w_base, m, v, count, predicted);
}

static void histogram(const uint8_t *plane, size_t length, size_t stride, uint32_t counts[256])
{
	uint32_t by_lane[4][256] = {{0}};
	uint8_t lowest = 255;
	uint8_t highest = 0;

	for (size_t i = 0; stride > 1 && i < length; i++) {
		lowest = plane[i] < lowest ? plane[i] : lowest;
		highest = plane[i] > highest ? plane[i] : highest;
	}
	for (size_t at = 0; at < length; at += stride * CKPT_LINE) {
		size_t n = length - at < CKPT_LINE ? length - at : CKPT_LINE;

		for (size_t i = 0; i < n; i++)
			by_lane[i & 3][plane[at + i]]++;
	}
	for (unsigned s = 0; s < 256; s++) {
		counts[s] = by_lane[0][s] + by_lane[1][s] + by_lane[2][s] + by_lane[3][s];
		if (stride > 1 && counts[s] == 0 && s >= lowest && s <= highest)
			counts[s] = 1;
	}
}

static bool is_constant(const uint8_t *plane, size_t length)
{
	uint8_t differs = 0;

	for (size_t at = 0; at < length && !differs; at += 4096) {
		size_t n = length - at < 4096 ? length - at : 4096;

		for (size_t i = 0; i < n; i++)
			differs |= plane[at + i] ^ plane[0];
	}
	return !differs;
}

#ifndef HAVE_PACK
static size_t pack(const uint8_t *plane, size_t length, uint8_t *bitmap, uint8_t *packed)
{
	size_t count = 0;

	memset(bitmap, 0, (length + 7) / 8);
	for (size_t i = 0; i < length; i++) {
		packed[count] = plane[i];
		bitmap[i / 8] |= (uint8_t)((plane[i] != 0) << (i % 8));
		count += plane[i] != 0;
	}
	return count;
}

static size_t unpack(const uint8_t *bitmap, const uint8_t *packed, size_t length, uint8_t *plane)
{
	const uint8_t *begin = packed;

	for (size_t i = 0; i < length; i++) {
		unsigned here = bitmap[i / 8] >> (i % 8) & 1;

		plane[i] = here ? *packed : 0;
		packed += here;
	}
	return (size_t)(packed - begin);
}
#endif

/* Bits on their way into a stream, the lowest first. */
struct bit_writer {
	uint8_t *out;
	uint64_t bits;
	unsigned count;
};

/* At most 56 bits at once. 8 bytes are written, of which as many count as are full. */
static inline __attribute__((always_inline)) void put_bits(
	struct bit_writer *w, uint64_t bits, unsigned count)
{
	w->bits |= bits << w->count;
	w->count += count;
	*(any_u64 *)w->out = w->bits;
	w->out += w->count / 8;
	w->bits >>= w->count & 56;
	w->count &= 7;
}

/* A 1 marks the end. */
static inline size_t close_bits(struct bit_writer *w, const uint8_t *begin)
{
	put_bits(w, 1, 1);
	return (size_t)(w->out - begin) + (w->count > 0);
}

#ifndef HAVE_HUFFMAN
/* Five codes, 55 bits at most, are joined before they are written. Gathers of AVX2 were half as fast as these loads. */
static size_t huffman(
	const struct ckpt_huffman *table, const uint8_t *symbols, size_t count, uint8_t *out)
{
	const uint32_t *entry = table->entry;
	struct bit_writer w = {.out = out};

	for (; count % 5; count--)
		put_bits(&w, entry[symbols[count - 1]] >> 8, entry[symbols[count - 1]] & 255);
	for (; count > 0; count -= 5) {
		const uint8_t *at = symbols + count - 5;
		uint32_t a = entry[at[4]];
		uint32_t b = entry[at[3]];
		uint32_t c = entry[at[2]];
		uint32_t d = entry[at[1]];
		uint32_t e = entry[at[0]];
		uint64_t ab = (uint64_t)(a >> 8) | (uint64_t)(b >> 8) << (a & 255);
		uint64_t cd = (uint64_t)(c >> 8) | (uint64_t)(d >> 8) << (c & 255);
		unsigned bits2 = (a & 255) + (b & 255);
		unsigned bits4 = bits2 + (c & 255) + (d & 255);

		put_bits(&w, ab | cd << bits2 | (uint64_t)(e >> 8) << bits4, bits4 + (e & 255));
	}
	return close_bits(&w, out);
}
#endif

#define KERNELS                                                                                    \
	{                                                                                          \
		.split = split, .merge = merge, .find_groups = find_groups,                        \
		.gather_groups = gather_groups, .scatter_groups = scatter_groups,                  \
		.round_bf16 = round_bf16, .round_f16 = round_f16, .adam_gradient = adam_gradient,  \
		.split_gradient = split_gradient, .merge_gradient = merge_gradient,                \
		.adam_m = adam_m, .adam_v = adam_v, .adam_w = adam_w, .histogram = histogram,      \
		.is_constant = is_constant, .pack = pack, .unpack = unpack, .huffman = huffman,    \
	}
