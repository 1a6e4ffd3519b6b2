/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: write_chunks DIR [small]: chunks of every mode, and what they are predicted from, for reader.py; small ones for
 * tests/golden/chunks.
 *
 * A file is a line "COUNT WIDTH KIND ROLE"; then for each array a line "NAME BYTES" and the bytes. In a line
 * "NAME BYTES COPIES" the array is so many copies of the bytes.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/prng.h"
#include "adam_states.h"

static const char *folder;
static struct ckpt_codec *codec;

static bool small;

static void write_array(FILE *f, const char *name, const void *data, size_t length, size_t copies)
{
	if (!data)
		return;
	if (copies > 1)
		fprintf(f, "%s %zu %zu\n", name, length / copies, copies);
	else
		fprintf(f, "%s %zu\n", name, length);
	fwrite(data, 1, length / copies, f);
}

/* The elements, and all that they are predicted from, are `copies` copies of what stands in the file. */
static void write_copies(
	const char *name, const struct ckpt_codec_chunk *chunk, const void *data, size_t copies)
{
	static const char *const kinds[] = {"int", "float", "bf16", "f16"};
	static const char *const roles[] = {"none", "m", "v", "w"};
	size_t count = chunk->count, size;
	uint8_t *out = malloc(ckpt_encode_room(count * chunk->width));
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "wb");
	if (!f || !out) {
		perror(path);
		exit(1);
	}
	size = ckpt_encode(codec, chunk, data, out);
	fprintf(f, "%zu %u %s %s\n", count, chunk->width, kinds[chunk->kind], roles[chunk->role]);
	write_array(f, "chunk", out, size, 1);
	write_array(f, "raw", data, count * chunk->width, copies);
	write_array(f, "base", chunk->base, count * chunk->width, copies);
	write_array(f, "master", chunk->master, count * 4, copies);
	write_array(f, "m", chunk->m, count * 4, copies);
	write_array(f, "m_base", chunk->m_base, count * 4, copies);
	write_array(f, "v", chunk->v, count * 4, copies);
	write_array(f, "v_base", chunk->v_base, count * 4, copies);
	if (ferror(f) || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
	free(out);
}

static void write_chunk(const char *name, const struct ckpt_codec_chunk *chunk, const void *data)
{
	write_copies(name, chunk, data, 1);
}

/* Subnormal numbers, the largest ones, infinities, NaN with several payloads, and zeros, from element `at` on. */
static void put_special(struct states *s, size_t at, bool only_v)
{
	static const uint32_t special[] = {1, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
		0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7fa0dead, 0xffc01234, 0x80000000};
	const size_t count = sizeof(special) / sizeof(special[0]);

	memcpy(s->v + at, special, sizeof(special));
	if (only_v)
		return;
	memcpy(s->m + at + count, special, sizeof(special));
	memcpy(s->master + at + 2 * count, special, sizeof(special));
}

static void repeat(float **array, size_t count, size_t copies)
{
	*array = realloc(*array, count * copies * sizeof(float));
	if (!*array)
		exit(1);
	for (size_t i = 1; i < copies; i++)
		memcpy(*array + i * count, *array, count * sizeof(float));
}

static void repeat_states(struct states *s, size_t copies)
{
	repeat(&s->master, s->count, copies);
	repeat(&s->m, s->count, copies);
	repeat(&s->v, s->count, copies);
	s->count *= copies;
}

struct way {
	const char *name;
	bool bf16_gradients;
	bool lerp;
	bool relative; /* the second moment of the base is there for the first moment */
	bool fused;
	bool special;
	bool special_v; /* few numbers are special, so that gradients are still coded relative to v */
	size_t copies; /* 0: one */
};

static void take_steps(const struct way *way, struct states *s, struct states *ret_base)
{
	/* With lerp the first row has no gradient in step 8: there small numbers stay small. */
	unsigned steps = way->special ? 7 : 5;

	if (states_open(s, small ? 3 : 9, 121) < 0)
		exit(1);
	s->bf16_gradients = way->bf16_gradients;
	s->lerp = way->lerp;
	s->fused = way->fused;
	for (unsigned i = 0; i < steps; i++)
		states_step(s);
	if (way->special) {
		put_special(s, 0, false);
		put_special(s, 125, false);
	}
	if (way->special_v)
		put_special(s, 125, true);
	if (states_copy(s, ret_base) < 0)
		exit(1);
	states_step(s);
	if (way->special)
		put_special(s, 250, false);
	repeat_states(s, way->copies ? way->copies : 1);
	repeat_states(ret_base, way->copies ? way->copies : 1);
}

static void write_adam(const struct way *way)
{
	struct states s, base;
	struct ckpt_codec_chunk m = {.width = 4, .kind = CKPT_KIND_FLOAT, .role = CKPT_ADAM_M}, v,
				w;

	take_steps(way, &s, &base);
	m.count = s.count;
	m.adam = &s.hyper;
	m.base = base.m;
	m.v_base = way->relative ? base.v : NULL;
	v = w = m;
	v.role = CKPT_ADAM_V;
	v.base = base.v;
	v.m_base = base.m;
	w.role = CKPT_ADAM_W;
	w.base = base.master;
	w.v = s.v;
	v.m = w.m = s.m;
	for (size_t i = 0; i < 3; i++) {
		const struct ckpt_codec_chunk *chunk = i == 0 ? &m : i == 1 ? &v : &w;
		const void *data = i == 0 ? s.m : i == 1 ? s.v : s.master;
		char name[100];

		snprintf(name, sizeof(name), "adam%zu-%s", i, way->name);
		write_copies(name, chunk, data, way->copies ? way->copies : 1);
	}
	states_close(&s);
	states_close(&base);
}

enum { MOST = 5000 };

static void name_of(char name[100], const char *what, unsigned width, enum ckpt_chunk_kind kind)
{
	snprintf(name, 100, "%s%u-%d", what, width, (int)kind);
}

/* Mostly the base. A chunk that is masked has at least 64 lines. */
static void write_mask(struct ckpt_codec_chunk *chunk, struct prng *prng, uint8_t *data)
{
	unsigned width = chunk->width;
	char name[100];

	if (small && width > 2)
		return;
	memcpy(data, chunk->base, (size_t)MOST * width);
	for (size_t i = 0; i < 700; i++)
		data[i % 350 * width] ^= (uint8_t)prng_below(prng, 4);
	name_of(name, "mask", width, chunk->kind);
	chunk->count = MOST;
	write_chunk(name, chunk, data);
}

/* Bells of one width after another: float and integer, alone, beside a base, and mostly the base. */
static void write_width(unsigned width, enum ckpt_chunk_kind kind, struct prng *prng)
{
	static uint8_t data[MOST * 8], base[MOST * 8];
	size_t count = small ? 400 : MOST;
	struct ckpt_codec_chunk chunk = {.count = count, .width = width, .kind = kind};
	char name[100];

	for (size_t i = 0; i < (size_t)MOST * width; i++) {
		base[i] = (uint8_t)(i % width == width - 1 ? 60 + prng_below(prng, 4)
				    : small                ? 7 * (i / 64)
							   : prng_next(prng) >> 40);
		data[i] = (uint8_t)(base[i] ^ (i % width == 0 ? prng_below(prng, 4) : 0));
	}
	name_of(name, "alone", width, kind);
	write_chunk(name, &chunk, data);
	chunk.base = base;
	name_of(name, "delta", width, kind);
	write_chunk(name, &chunk, data);
	name_of(name, "same", width, kind);
	write_chunk(name, &chunk, base);
	write_mask(&chunk, prng, data);
	chunk.count = count;
	for (size_t i = 0; i < (size_t)MOST * width; i++)
		data[i] = (uint8_t)(prng_next(prng) >> 24);
	chunk.base = NULL;
	name_of(name, "noise", width, kind);
	write_chunk(name, &chunk, data);
}

static void write_cast(struct prng *prng)
{
	static uint32_t master[2000];
	static uint16_t weights[2000];
	struct ckpt_codec_chunk chunk = {
		.count = small ? 300 : 2000, .width = 2, .kind = CKPT_KIND_BF16, .master = master};

	for (size_t i = 0; i < chunk.count; i++) {
		master[i] = (uint32_t)(0x3c000000 + (prng_next(prng) & 0x81ffffff));
		weights[i] = (uint16_t)((master[i] + 0x7fff + (master[i] >> 16 & 1)) >> 16);
	}
	write_chunk("cast", &chunk, weights);
	weights[5] ^= 3;
	write_chunk("cast-but-one", &chunk, weights);
	/* Other values, which these are near to as halves. */
	chunk.kind = CKPT_KIND_F16;
	for (size_t i = 0; i < chunk.count; i++)
		weights[i] = (uint16_t)((master[i] >> 16 & 0x8000) |
					(((master[i] & 0x7fffffff) - 0x38000000) >> 13 & 0x7fff));
	write_chunk("cast-half", &chunk, weights);
}

static void write_tuned(void)
{
	static uint16_t base[20000], now[20000];

	for (unsigned half = 0; half < (small ? 1 : 2); half++) {
		struct ckpt_codec_chunk chunk = {.count = half ? 20000 : 9000,
			.width = 2,
			.kind = half ? CKPT_KIND_F16 : CKPT_KIND_BF16,
			.base = base};

		states_fine_tune(half, chunk.count, base, now);
		write_chunk(half ? "tuned-f16" : "tuned-bf16", &chunk, now);
	}
}

/*
 * 16-bit weights with two exponents, of which those with the smaller one change more often. The groups between have no
 * elements. With `lines` every third line is that of the base.
 */
static void write_gap(
	const char *name, enum ckpt_chunk_kind kind, size_t count, bool lines, struct prng *prng)
{
	static uint16_t base[4500], now[4500];
	unsigned shift = kind == CKPT_KIND_F16 ? 10 : 7, large = kind == CKPT_KIND_F16 ? 13 : 121;
	struct ckpt_codec_chunk chunk = {.count = count, .width = 2, .kind = kind, .base = base};

	for (size_t i = 0; i < count; i++) {
		bool is_large = prng_below(prng, 2);
		uint64_t random = prng_next(prng);

		base[i] = (uint16_t)((is_large ? large : large - 5) << shift |
				     (random & ((1u << shift) - 1)) | (random >> 40 & 1) << 15);
		now[i] = base[i];
		if (lines && i / 64 % 3 == 0)
			continue;
		if (!is_large || prng_below(prng, 100) == 0)
			now[i] ^= (uint16_t)prng_below(prng, 16);
	}
	write_chunk(name, &chunk, now);
}

/* Bytes, of which a share is `usual` and the others are one of four. */
static void write_bytes(const char *name, size_t count, size_t copies, unsigned usual,
	unsigned percent, struct prng *prng)
{
	static uint8_t data[140000];
	struct ckpt_codec_chunk chunk = {
		.count = count * copies, .width = 1, .kind = CKPT_KIND_INT};

	for (size_t i = 0; i < count; i++)
		data[i] = (uint8_t)(prng_below(prng, 100) < percent ? usual
								    : 1 + prng_below(prng, 4));
	for (size_t i = count; i < chunk.count; i++)
		data[i] = data[i - count];
	write_copies(name, &chunk, data, copies);
}

/* A plane of two values alone; two planes that need sizes of three bytes and frames of two blocks; groups. */
static void write_planes(struct prng *prng)
{
	static uint8_t signs[1003];
	struct ckpt_codec_chunk chunk = {.count = sizeof(signs), .width = 1, .kind = CKPT_KIND_INT};

	for (size_t i = 0; i < sizeof(signs); i++)
		signs[i] = prng_below(prng, 2) ? 0x81 : 3;
	write_chunk("two-values", &chunk, signs);
	write_bytes("long", 2000, 70, 9, 70, prng);
	write_bytes("long-sparse", 2000, 70, 0, 90, prng);
	write_gap("gap-f16", CKPT_KIND_F16, 2500, false, prng);
	write_gap("gap-mask", CKPT_KIND_BF16, 4500, true, prng);
}

/* Orders of operations, numbers that are not finite, and more elements than are predicted at once. */
static void write_adam_ways(void)
{
	static const struct way ways[] = {
		{.name = "0-0-1", .relative = true},
		{.name = "1-0-0", .bf16_gradients = true},
		{.name = "1-1-0", .bf16_gradients = true, .lerp = true},
		{.name = "1-1-1", .bf16_gradients = true, .lerp = true, .relative = true},
		{.name = "fused", .fused = true, .relative = true},
		{.name = "fused-bf16", .fused = true, .bf16_gradients = true},
		{.name = "fused-relative", .fused = true, .bf16_gradients = true, .relative = true},
		{.name = "special", .bf16_gradients = true, .relative = true, .special = true},
		{.name = "relative",
			.bf16_gradients = true,
			.relative = true,
			.special_v = true,
			.copies = 12},
		{.name = "special-lerp",
			.bf16_gradients = true,
			.lerp = true,
			.relative = true,
			.special = true},
		{.name = "special-fused", .bf16_gradients = true, .fused = true, .special = true},
	};

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		write_adam(&ways[i]);
}

int main(int argc, char **argv)
{
	struct prng prng = {7};

	if (argc < 2)
		return 2;
	small = argc > 2;
	folder = argv[1];
	codec = ckpt_codec_open(CKPT_SIMD_BEST);
	if (!codec)
		return 1;
	for (unsigned width = 1; width <= 8; width *= 2) {
		write_width(width, CKPT_KIND_INT, &prng);
		write_width(width, CKPT_KIND_FLOAT, &prng);
	}
	write_cast(&prng);
	write_tuned();
	write_adam_ways();
	write_planes(&prng);
	ckpt_codec_close(codec);
	return 0;
}
