/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: write_chunks DIR [small]: chunks of every mode, and what they are predicted from, for reader.py; small ones for
 * tests/golden/chunks.
 *
 * A file is a line "COUNT WIDTH KIND ROLE"; then for each array a line "NAME BYTES" and the bytes.
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

static void write_array(FILE *f, const char *name, const void *data, size_t length)
{
	if (!data)
		return;
	fprintf(f, "%s %zu\n", name, length);
	fwrite(data, 1, length, f);
}

static void write_chunk(const char *name, const struct ckpt_chunk *chunk, const void *data)
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
	write_array(f, "chunk", out, size);
	write_array(f, "raw", data, count * chunk->width);
	write_array(f, "base", chunk->base, count * chunk->width);
	write_array(f, "master", chunk->master, count * 4);
	write_array(f, "m", chunk->m, count * 4);
	write_array(f, "m_base", chunk->m_base, count * 4);
	write_array(f, "v", chunk->v, count * 4);
	write_array(f, "v_base", chunk->v_base, count * 4);
	if (ferror(f) || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
	free(out);
}

static void write_adam(bool bf16_gradients, bool lerp, bool relative)
{
	struct states s, base;
	struct ckpt_chunk m = {.width = 4, .kind = CKPT_KIND_FLOAT, .role = CKPT_ADAM_M}, v, w;

	if (states_open(&s, small ? 3 : 9, 121) < 0)
		exit(1);
	s.bf16_gradients = bf16_gradients;
	s.lerp = lerp;
	for (unsigned i = 0; i < 5; i++)
		states_step(&s);
	if (states_copy(&s, &base) < 0)
		exit(1);
	states_step(&s);
	m.count = s.count;
	m.adam = &s.hyper;
	m.base = base.m;
	m.v_base = relative ? base.v : NULL;
	v = w = m;
	v.role = CKPT_ADAM_V;
	v.base = base.v;
	v.m_base = base.m;
	w.role = CKPT_ADAM_W;
	w.base = base.master;
	w.v = s.v;
	v.m = w.m = s.m;
	for (size_t i = 0; i < 3; i++) {
		const struct ckpt_chunk *chunk = i == 0 ? &m : i == 1 ? &v : &w;
		const void *data = i == 0 ? s.m : i == 1 ? s.v : s.master;
		char name[100];

		snprintf(name, sizeof(name), "adam%zu-%d-%d-%d", i, bf16_gradients, lerp, relative);
		write_chunk(name, chunk, data);
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
static void write_mask(struct ckpt_chunk *chunk, struct prng *prng, uint8_t *data)
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
	struct ckpt_chunk chunk = {.count = count, .width = width, .kind = kind};
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
	struct ckpt_chunk chunk = {
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
		struct ckpt_chunk chunk = {.count = half ? 20000 : 9000,
			.width = 2,
			.kind = half ? CKPT_KIND_F16 : CKPT_KIND_BF16,
			.base = base};

		states_fine_tune(half, chunk.count, base, now);
		write_chunk(half ? "tuned-f16" : "tuned-bf16", &chunk, now);
	}
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
	write_adam(false, false, true);
	write_adam(true, false, false);
	write_adam(true, true, false);
	write_adam(true, true, true);
	ckpt_codec_close(codec);
	return 0;
}
