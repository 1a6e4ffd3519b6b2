/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks come back bit for bit, whatever they hold and whatever they are predicted from; every instruction set gives
 * the same bytes; none is larger than raw by more than a byte; and no input makes the decoder go astray.
 */
#include "lib/test.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/codec_memory.h"
#include "lib/prng.h"
#include "adam_states.h"

#define LEVELS 3

static struct ckpt_codec *codecs[LEVELS];
static unsigned seen[CKPT_MODE_END];
static unsigned seen_flags[16]; /* of the modes of ADAM */

static int set_up(void **state)
{
	static const enum ckpt_simd levels[LEVELS] = {
		CKPT_SIMD_PLAIN, CKPT_SIMD_AVX2, CKPT_SIMD_AVX512};

	(void)state;
	for (size_t i = 0; i < LEVELS; i++) {
		codecs[i] = ckpt_codec_open(levels[i]);
		if (!codecs[i])
			print_message("this processor lacks level %zu: not tested\n", i);
	}
	return codecs[0] ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	for (size_t i = 0; i < LEVELS; i++)
		ckpt_codec_close(codecs[i]);
	return 0;
}

/* What is beside the elements is as it was. */
static void check_decode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk,
	const void *data, const uint8_t *encoded, size_t size)
{
	size_t bytes = chunk->count * chunk->width;
	uint8_t *room = malloc(bytes + 3), *exact = malloc(size);

	assert_true(room && exact);
	memset(room, 0x5a, bytes + 3);
	memcpy(exact, encoded, size); /* a sanitizer sees what is read behind it */
	assert_int_equal(ckpt_decode(codec, chunk, exact, size, room + 1), 0);
	assert_memory_equal(room + 1, data, bytes);
	assert_true(room[0] == 0x5a && room[bytes + 1] == 0x5a && room[bytes + 2] == 0x5a);
	if (size > 1)
		assert_int_equal(
			ckpt_decode(codec, chunk, exact, size - 1, room + 1), CKPT_EINTEGRITY);
	free(room);
	free(exact);
}

/* Returns the encoded chunk, of `*ret_size` bytes. */
static uint8_t *check(const struct ckpt_codec_chunk *chunk, const void *data, size_t *ret_size)
{
	size_t bytes = chunk->count * chunk->width, size = 0;
	uint8_t *first = malloc(ckpt_encode_room(bytes)), *other = malloc(ckpt_encode_room(bytes));
	struct ckpt_codec_chunk refs = *chunk;

	assert_true(first && other);
	refs.adam = NULL; /* a decoder does not know it */
	for (size_t i = 0; i < LEVELS; i++) {
		if (!codecs[i])
			continue;
		if (i == 0) {
			size = ckpt_encode(codecs[i], chunk, data, first);
		} else {
			assert_int_equal(ckpt_encode(codecs[i], chunk, data, other), size);
			assert_memory_equal(first, other, size);
		}
		check_decode(codecs[i], &refs, data, first, size);
	}
	assert_true(size <= bytes + 1);
	assert_true(first[0] < CKPT_MODE_END);
	seen[first[0]]++;
	if (first[0] >= CKPT_MODE_ADAM_M && first[0] <= CKPT_MODE_ADAM_W)
		seen_flags[first[1] & 15]++;
	/* What follows a chunk is not passed over. */
	first[size] = 0;
	assert_int_equal(ckpt_decode(codecs[0], &refs, first, size + 1, other), CKPT_EINTEGRITY);
	free(other);
	*ret_size = size;
	return first;
}

static void check_only(const struct ckpt_codec_chunk *chunk, const void *data)
{
	size_t size;

	free(check(chunk, data, &size));
}

enum pattern { RANDOM, CONSTANT, ZERO, BELL, SPECIAL, COUNTING, FEW, PATTERNS };

static uint64_t normal_bits(struct prng *prng, unsigned width)
{
	double sum = -6;
	float value;
	uint32_t bits;
	uint64_t wide;

	for (int i = 0; i < 12; i++)
		sum += (double)prng_below(prng, 1 << 20) / (1 << 20);
	sum *= 0.02;
	value = (float)sum;
	memcpy(&bits, &value, sizeof(bits));
	memcpy(&wide, &sum, sizeof(wide));
	return width == 8 ? wide : width == 4 ? bits : width == 2 ? bits >> 16 : bits >> 24;
}

/* Zeros, infinities, numbers that are none, the smallest and the largest ones. */
static uint64_t special_bits(struct prng *prng, unsigned width)
{
	static const uint64_t wide[] = {0, UINT64_C(1) << 63, UINT64_C(0x7ff) << 52,
		UINT64_C(0xfff) << 52, UINT64_C(0x7ff8) << 48, UINT64_C(0x7ff4dead) << 32, 1,
		UINT64_C(0x000fffffffffffff), UINT64_C(0x7fefffffffffffff)};
	static const uint32_t half[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
		0x7fa0dead, 1, 0x7fffff, 0x7f7fffff};
	size_t i = prng_below(prng, COUNT(half));

	return width == 8 ? wide[i] : width == 4 ? half[i] : half[i] >> (32 - 8 * width);
}

static void draw(
	struct prng *prng, enum pattern pattern, unsigned width, size_t count, uint8_t *out)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t x = pattern == RANDOM      ? prng_next(prng)
			     : pattern == CONSTANT  ? UINT64_C(0x3f8012345678abcd)
			     : pattern == ZERO      ? 0
			     : pattern == BELL      ? normal_bits(prng, width)
			     : pattern == SPECIAL   ? special_bits(prng, width)
			     : pattern == COUNTING  ? i / 3
			     : prng_below(prng, 50) ? 0
						    : prng_next(prng);

		memcpy(out + i * width, &x, width);
	}
}

/* None; the same; a few lines changed; every element by little; another one. */
enum { NO_BASE, SAME_BASE, NEAR_BASE, CLOSE_BASE, OTHER_BASE, BASES };

static const void *draw_base(struct prng *prng, unsigned which, unsigned width, size_t count,
	const uint8_t *data, uint8_t *out)
{
	size_t bytes = count * width;

	if (which == NO_BASE)
		return NULL;
	memcpy(out, data, bytes);
	for (size_t i = 0; bytes > 0 && which == NEAR_BASE && i < 1 + bytes / 20000; i++)
		out[prng_below(prng, bytes)] ^= (uint8_t)prng_next(prng);
	for (size_t i = 0; which == CLOSE_BASE && i < count; i++)
		out[i * width] ^= (uint8_t)(prng_next(prng) & 7);
	if (which == OTHER_BASE)
		draw(prng, (enum pattern)prng_below(prng, PATTERNS), width, count, out);
	return out;
}

static void test_chunks_come_back(void **state)
{
	static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, 4096, 4097, 20000};
	static const struct {
		unsigned width;
		enum ckpt_chunk_kind kind;
	} types[] = {
		{1, CKPT_KIND_INT},   /* bool, 8-bit integers, two fp4 */
		{1, CKPT_KIND_FLOAT}, /* fp8 */
		{2, CKPT_KIND_INT},
		{2, CKPT_KIND_BF16},
		{2, CKPT_KIND_F16},
		{4, CKPT_KIND_INT},
		{4, CKPT_KIND_FLOAT}, /* also complex64, in two */
		{8, CKPT_KIND_INT},
		{8, CKPT_KIND_FLOAT},
	};
	uint8_t *room = malloc(20000 * 8 + 8), *base = malloc(20000 * 8 + 8);
	struct prng prng = {3};

	(void)state;
	assert_true(room && base);
	for (size_t t = 0; t < COUNT(types); t++) {
		for (size_t i = 0; i < COUNT(sizes) * PATTERNS; i++) {
			unsigned shift = (unsigned)prng_below(&prng, 8), which = i % BASES;
			enum pattern pattern = (enum pattern)(i / COUNT(sizes));
			struct ckpt_codec_chunk chunk = {.count = sizes[i % COUNT(sizes)],
				.width = types[t].width,
				.kind = types[t].kind};

			draw(&prng, pattern, chunk.width, chunk.count, room + shift);
			chunk.base = draw_base(&prng, which, chunk.width, chunk.count, room + shift,
				base + 7 - shift);
			check_only(&chunk, room + shift);
		}
	}
	free(room);
	free(base);
}

/* The largest chunk of an element width, with all that is sampled and cut into blocks. */
static void check_largest(unsigned width)
{
	size_t count = CKPT_CODEC_CHUNK_BYTES / width, size;
	uint8_t *data = malloc(CKPT_CODEC_CHUNK_BYTES), *base = malloc(CKPT_CODEC_CHUNK_BYTES);
	struct ckpt_codec_chunk chunk = {
		.count = count, .width = width, .kind = CKPT_KIND_FLOAT, .base = base};
	struct prng prng = {4};

	assert_true(data && base);
	draw(&prng, BELL, width, count, data);
	memcpy(base, data, CKPT_CODEC_CHUNK_BYTES);
	/* A row of an embedding in a hundred was touched. */
	for (size_t i = 0; i < 40; i++)
		draw(&prng, BELL, width, 64, base + prng_below(&prng, count / 64) * 64 * width);
	free(check(&chunk, data, &size));
	assert_true(size < CKPT_CODEC_CHUNK_BYTES / 50);
	chunk.base = NULL;
	check_only(&chunk, data);
	/* Noise is as large as it is, and a byte. */
	draw(&prng, RANDOM, width, count, data);
	free(check(&chunk, data, &size));
	assert_int_equal(size, CKPT_CODEC_CHUNK_BYTES + 1);
	free(data);
	free(base);
}

static void test_largest_chunks(void **state)
{
	(void)state;
	for (unsigned width = 1; width <= 8; width *= 2)
		check_largest(width);
}

static double half_value(unsigned half)
{
	unsigned exponent = half >> 10 & 31, part = half & 1023;
	double size = exponent ? ldexp(1024 + part, (int)exponent - 25) : ldexp(part, -24);

	return half & 0x8000 ? -size : size;
}

/* Each half from its own value, and from those about the middle between it and the next: ties go to even. */
static void test_rounding_to_half(void **state)
{
	enum { HALVES = 0x7bff };
	float *values = calloc((size_t)HALVES * 4, sizeof(float));
	uint16_t *halves = calloc((size_t)HALVES * 4, sizeof(uint16_t));
	struct ckpt_codec_chunk chunk = {.width = 2, .kind = CKPT_KIND_F16};
	size_t n = 0;

	(void)state;
	assert_true(values && halves);
	for (unsigned h = 0; h < HALVES; h++) {
		float middle = (float)((half_value(h) + half_value(h + 1)) / 2);
		const float about[] = {(float)half_value(h), nextafterf(middle, 0), middle,
			nextafterf(middle, 1e9f)};
		const unsigned expected[] = {h, h, h + (h & 1), h + 1};

		for (size_t i = 0; i < 4; i++, n++) {
			values[n] = h & 4 ? -about[i] : about[i];
			halves[n] = (uint16_t)(expected[i] | (h & 4 ? 0x8000 : 0));
		}
	}
	chunk.count = n;
	chunk.master = values;
	for (size_t i = 0; i < LEVELS; i++) {
		uint8_t *out = malloc(ckpt_encode_room(2 * n));

		assert_non_null(out);
		if (codecs[i])
			assert_int_equal(ckpt_encode(codecs[i], &chunk, halves, out), 1);
		free(out);
	}
	check_only(&chunk, halves);
	free(values);
	free(halves);
}

static void test_weights_that_are_rounded(void **state)
{
	static uint32_t master[5000];
	static uint16_t weights[5000];
	struct ckpt_codec_chunk chunk = {
		.count = COUNT(weights), .width = 2, .kind = CKPT_KIND_BF16, .master = master};
	struct prng prng = {5};
	size_t size;

	(void)state;
	for (size_t i = 0; i < COUNT(master); i++) {
		uint32_t x = (uint32_t)(i % 100 ? normal_bits(&prng, 4) : special_bits(&prng, 4));

		master[i] = x;
		weights[i] = (uint16_t)((x & 0x7fffffff) > 0x7f800000
						? 0x7fc0
						: (x + 0x7fff + (x >> 16 & 1)) >> 16);
	}
	free(check(&chunk, weights, &size));
	assert_int_equal(size, 1);
	/* A few that are not the rounding cost little, and are kept. */
	weights[7] ^= 1;
	weights[4000] = 0x1234;
	free(check(&chunk, weights, &size));
	assert_true(size > 1 && size < 300);
	/* Without the values there is nothing to round. */
	chunk.master = NULL;
	assert_int_equal(
		ckpt_decode(codecs[0], &chunk, (const uint8_t *)"\2", 1, weights), CKPT_EINTEGRITY);
}

/* The smaller weights have changed more often: they are coded by exponents. */
static void test_fine_tuned_weights(void **state)
{
	enum { MOST = CKPT_CODEC_CHUNK_BYTES / 2 };
	static const size_t sizes[] = {1, 63, 500, 4097, 60001, MOST};
	static uint16_t base[MOST + 1], now[MOST + 1];

	(void)state;
	for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
		bool half = i % 2;
		struct ckpt_codec_chunk chunk = {.count = sizes[i / 2],
			.width = 2,
			.kind = half ? CKPT_KIND_F16 : CKPT_KIND_BF16,
			.base = (uint8_t *)base + 1};
		size_t size;
		uint8_t *encoded;

		states_fine_tune(half, chunk.count, base, now);
		memmove((uint8_t *)base + 1, base, 2 * chunk.count);
		encoded = check(&chunk, now, &size);
		if (chunk.count > 60000) {
			assert_int_equal(encoded[0], CKPT_MODE_GROUPED);
			/* No groups, more than there may be, and others. */
			for (unsigned groups = 0; groups < 256; groups += 17) {
				encoded[2] = (uint8_t)groups;
				assert_int_equal(ckpt_decode(codecs[0], &chunk, encoded, size, now),
					CKPT_EINTEGRITY);
			}
		}
		free(encoded);
	}
}

static void check_adam(
	const struct states *now, const struct states *base, const struct ckpt_adam_step *hyper)
{
	struct ckpt_codec_chunk m = {.count = now->count,
		.width = 4,
		.kind = CKPT_KIND_FLOAT,
		.base = base->m,
		.role = CKPT_ADAM_M,
		.adam = hyper,
		.v_base = base->v};
	struct ckpt_codec_chunk v = m, w = m;
	uint8_t *encoded, *scratch = malloc(4 * now->count);
	size_t size;

	assert_non_null(scratch);
	v.role = CKPT_ADAM_V;
	v.base = base->v;
	v.m_base = base->m;
	w.role = CKPT_ADAM_W;
	w.base = base->master;
	w.v = now->v;
	v.m = w.m = now->m;
	encoded = check(&m, now->m, &size);
	m.v_base = NULL;
	if (encoded[0] == CKPT_MODE_ADAM_M && encoded[1] & 8)
		assert_int_equal(
			ckpt_decode(codecs[0], &m, encoded, size, scratch), CKPT_EINTEGRITY);
	free(encoded);
	free(scratch);
	check_only(&m, now->m);
	check_only(&v, now->v);
	check_only(&w, now->master);
}

/* Right and wrong hyper-parameters, gradients of either type, moments that are not finite. */
static void test_adam_is_predicted(void **state)
{
	for (unsigned way = 0; way < 6; way++) {
		struct states s, base, now;
		struct ckpt_adam_step wrong;

		(void)state;
		assert_int_equal(states_open(&s, 40, 130), 0);
		s.bf16_gradients = way & 1;
		s.lerp = way == 2 || way == 3;
		s.fused = way >= 4;
		for (unsigned i = 0; i < 5; i++)
			states_step(&s);
		assert_int_equal(states_copy(&s, &base), 0);
		states_step(&s);
		assert_int_equal(states_copy(&s, &now), 0);
		check_adam(&now, &base, &s.hyper);
		wrong = (struct ckpt_adam_step){.beta1 = 1, .beta2 = NAN, .lr = INFINITY};
		check_adam(&now, &base, &wrong);
		now.m[17] = NAN;
		now.v[18] = INFINITY;
		now.v[19] = -1;
		base.m[20] = 1e-45f;
		check_adam(&now, &base, &s.hyper);
		states_close(&s);
		states_close(&base);
		states_close(&now);
	}
}

static unsigned tries;

static void count_tries(const struct ckpt_adam_terms *terms, enum ckpt_adam_order order,
	bool bf16_gradient, const void *m, const void *m_base, const void *v_base, size_t count,
	void *predicted)
{
	tries += count == 4 * CKPT_LINE; /* the elements that models are tried on */
	ckpt_kernels_plain.adam_v(terms, order, bf16_gradient, m, m_base, v_base, count, predicted);
}

/* The model of a stream is found once; a hint that is wrong costs a try, and no byte. */
static void test_hints(void **state)
{
	struct ckpt_codec *codec = ckpt_codec_open(CKPT_SIMD_PLAIN);
	struct ckpt_kernels counting = ckpt_kernels_plain;
	struct ckpt_adam_hint found = {0};
	struct states s, base;
	struct ckpt_codec_chunk v;
	uint8_t *first, *other;
	size_t size;

	(void)state;
	assert_non_null(codec);
	counting.adam_v = count_tries;
	codec->kernels = &counting;
	assert_int_equal(states_open(&s, 40, 130), 0);
	s.bf16_gradients = true;
	states_step(&s);
	assert_int_equal(states_copy(&s, &base), 0);
	states_step(&s);
	v = (struct ckpt_codec_chunk){.count = s.count,
		.width = 4,
		.kind = CKPT_KIND_FLOAT,
		.base = base.v,
		.role = CKPT_ADAM_V,
		.adam = &s.hyper,
		.hint = &found,
		.m = s.m,
		.m_base = base.m};
	first = malloc(ckpt_encode_room(4 * s.count));
	other = malloc(ckpt_encode_room(4 * s.count));
	assert_true(first && other);
	size = ckpt_encode(codec, &v, s.v, first);
	assert_int_equal(tries, 4);
	tries = 0;
	assert_int_equal(ckpt_encode(codec, &v, s.v, other), size);
	assert_memory_equal(first, other, size);
	assert_int_equal(tries, 1);
	for (unsigned order = 0; order < 256; order++) {
		struct ckpt_adam_hint hint = {.order = (uint8_t)order, .poor = order % 3 == 0};

		v.hint = &hint;
		assert_int_equal(ckpt_encode(codec, &v, s.v, other), size);
		assert_memory_equal(first, other, size);
		assert_true(hint.order == found.order && !hint.poor);
	}
	free(first);
	free(other);
	states_close(&s);
	states_close(&base);
	ckpt_codec_close(codec);
}

/* Every gradient, beside numbers of all kinds; a gradient of 0 has the code 0. */
static void test_gradients_beside_moments(void **state)
{
	enum { COUNT_OF = 65536 };
	static uint16_t gradients[COUNT_OF], back[COUNT_OF];
	static uint32_t v[COUNT_OF];
	static uint8_t planes[LEVELS][2][COUNT_OF];
	const struct ckpt_kernels *kernels[LEVELS] = {
		&ckpt_kernels_plain, ckpt_kernels_avx2(), ckpt_kernels_avx512()};
	struct prng prng = {8};

	(void)state;
	for (unsigned kind = 0; kind < 3; kind++) {
		for (size_t i = 0; i < COUNT_OF; i++) {
			gradients[i] = (uint16_t)i;
			v[i] = (uint32_t)(kind == 0   ? prng_next(&prng)
					  : kind == 1 ? special_bits(&prng, 4)
						      : normal_bits(&prng, 4));
		}
		for (size_t k = 0; k < LEVELS; k++) {
			uint8_t *to[2] = {planes[k][0], planes[k][1]};
			const uint8_t *from[2] = {planes[k][0], planes[k][1]};

			if (!kernels[k])
				continue;
			kernels[k]->split_gradient(v, gradients, COUNT_OF, to);
			assert_memory_equal(planes[k], planes[0], sizeof(planes[0]));
			kernels[k]->merge_gradient(v, from, COUNT_OF, back);
			assert_memory_equal(back, gradients, sizeof(back));
			assert_true(to[0][0] == 0 && to[1][0] == 0);
		}
	}
}

/* Subnormal numbers are taken for 0, and become 0, as PyTorch may have it set. */
static void flush_subnormals(bool on)
{
#if defined(__x86_64__)
	unsigned flags = __builtin_ia32_stmxcsr() & ~0x8040u;

	__builtin_ia32_ldmxcsr(flags | (on ? 0x8040u : 0));
#else
	(void)on;
#endif
}

/* Whatever the caller's thread rounds like, the bytes are the same, and its modes are what they were. */
static void test_modes_of_the_caller(void **state)
{
	struct states s, base;
	struct ckpt_codec_chunk v;
	uint8_t *out[2];
	size_t size[2];

	(void)state;
	assert_int_equal(states_open(&s, 20, 130), 0);
	states_step(&s);
	for (size_t i = 0; i < s.count; i += 3)
		s.v[i] *= 1e-36f; /* so that its square root is small, and it is subnormal itself */
	assert_int_equal(states_copy(&s, &base), 0);
	states_step(&s);
	v = (struct ckpt_codec_chunk){.count = s.count,
		.width = 4,
		.kind = CKPT_KIND_FLOAT,
		.base = base.v,
		.role = CKPT_ADAM_V,
		.adam = &s.hyper,
		.m = s.m,
		.m_base = base.m};
	for (size_t i = 0; i < 2; i++) {
		out[i] = malloc(ckpt_encode_room(4 * s.count));
		assert_non_null(out[i]);
		fesetround(i == 0 ? FE_TONEAREST : FE_UPWARD);
		flush_subnormals(i != 0);
		size[i] = ckpt_encode(codecs[0], &v, s.v, out[i]);
		assert_int_equal(fegetround(), i == 0 ? FE_TONEAREST : FE_UPWARD);
	}
	fesetround(FE_TONEAREST);
	flush_subnormals(false);
	assert_int_equal(out[0][0], CKPT_MODE_ADAM_V);
	assert_int_equal(size[0], size[1]);
	assert_memory_equal(out[0], out[1], size[0]);
	free(out[0]);
	free(out[1]);
	states_close(&s);
	states_close(&base);
}

/* Bytes changed, cut off, put in, exchanged: an answer, and nothing read or written that is not there. */
static void mutate(struct prng *prng, const struct ckpt_codec_chunk *chunk, const uint8_t *encoded,
	size_t size, uint8_t *room)
{
	size_t length = prng_below(prng, 4) ? size : prng_below(prng, size + 1);
	uint8_t *in = malloc(length ? length : 1); /* a sanitizer sees what is read behind it */
	size_t level = prng_below(prng, LEVELS);
	int r;

	assert_non_null(in);
	memcpy(in, encoded, length);
	for (size_t i = 0; i < 1 + prng_below(prng, 3) && length > 0; i++) {
		/* Heads are near the beginning. */
		size_t at = prng_below(prng, prng_below(prng, 2) && length > 48 ? 48 : length);

		in[at] = prng_below(prng, 2) ? (uint8_t)prng_below(prng, 10)
					     : (uint8_t)prng_next(prng);
	}
	r = ckpt_decode(codecs[level] ? codecs[level] : codecs[0], chunk, in, length, room);
	assert_true(r == 0 || r == CKPT_EINTEGRITY);
	free(in);
}

static void test_hostile_chunks(void **state)
{
	enum { COUNT_OF = 3000 };
	uint8_t *data = malloc(COUNT_OF * 8), *base = malloc(COUNT_OF * 8);
	uint8_t *room = malloc(COUNT_OF * 8);
	struct prng prng = {6};

	(void)state;
	assert_true(data && base && room);
	for (unsigned i = 0; i < 60; i++) {
		struct ckpt_codec_chunk chunk = {.count = COUNT_OF,
			.width = 1u << i % 4,
			.kind = i % 3 ? CKPT_KIND_FLOAT : CKPT_KIND_INT};
		uint8_t *encoded;
		size_t size;

		draw(&prng, (enum pattern)(i % PATTERNS), chunk.width, COUNT_OF, data);
		chunk.base = draw_base(&prng, i / 4 % BASES, chunk.width, COUNT_OF, data, base);
		encoded = check(&chunk, data, &size);
		/* Every mode finds something to predict from, whatever the chunk was encoded with. */
		chunk.base = base;
		chunk.master = NULL;
		chunk.kind = chunk.width == 2 ? CKPT_KIND_F16 : chunk.kind;
		chunk.role = chunk.width == 4 ? (enum ckpt_adam_role)(i / 4 % 4) : CKPT_ADAM_NONE;
		chunk.m = chunk.m_base = chunk.v = chunk.v_base = chunk.width == 4 ? base : NULL;
		for (unsigned k = 0; k < 100; k++)
			mutate(&prng, &chunk, encoded, size, room);
		free(encoded);
	}
	free(data);
	free(base);
	free(room);
}

/* Every mode, and every order of operations with either gradient and either coding of it. */
static void test_every_mode_was_there(void **state)
{
	static const uint8_t flags[] = {0, 1, 2, 3, 6, 10, 11, 14};

	(void)state;
	for (unsigned mode = 0; mode < CKPT_MODE_END; mode++)
		assert_true(seen[mode] > 0);
	for (size_t i = 0; i < COUNT(flags); i++) {
		if (seen_flags[flags[i]] == 0)
			fail_msg("no chunk has the flags %u", flags[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_come_back),
		cmocka_unit_test(test_largest_chunks),
		cmocka_unit_test(test_rounding_to_half),
		cmocka_unit_test(test_weights_that_are_rounded),
		cmocka_unit_test(test_fine_tuned_weights),
		cmocka_unit_test(test_adam_is_predicted),
		cmocka_unit_test(test_hints),
		cmocka_unit_test(test_gradients_beside_moments),
		cmocka_unit_test(test_modes_of_the_caller),
		cmocka_unit_test(test_hostile_chunks),
		cmocka_unit_test(test_every_mode_was_there),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
