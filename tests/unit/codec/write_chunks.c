/* SPDX-License-Identifier: Apache-2.0 */
/* usage: write_chunks DIR: chunks of every mode, and what they are predicted from, for reader.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/prng.h"
#include "adam_states.h"

static const char *folder;
static struct ckpt_codec *codec;

static void write_file(const char *name, const char *part, const void *data, size_t length)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.%s", folder, name, part);
	f = fopen(path, "wb");
	if (!f || fwrite(data, 1, length, f) != length || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static void write_chunk(const char *name, const struct ckpt_chunk *chunk, const void *data)
{
	static const char *const kinds[] = {"int", "float", "bf16", "f16"};
	const struct {
		const char *part;
		const void *data;
		unsigned width;
	} arrays[] = {
		{"raw", data, chunk->width},
		{"base", chunk->base, chunk->width},
		{"master", chunk->master, 4},
		{"m", chunk->m, 4},
		{"m_base", chunk->m_base, 4},
		{"v", chunk->v, 4},
	};
	uint8_t *out = malloc(ckpt_encode_room(chunk->count * chunk->width));
	char text[100];

	if (!out)
		exit(1);
	write_file(name, "chunk", out, ckpt_encode(codec, chunk, data, out));
	free(out);
	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		if (arrays[i].data)
			write_file(name, arrays[i].part, arrays[i].data,
				chunk->count * arrays[i].width);
	}
	snprintf(text, sizeof(text), "%zu %u %s\n", chunk->count, chunk->width, kinds[chunk->kind]);
	write_file(name, "txt", text, strlen(text));
}

static void write_adam(bool bf16_gradients, bool lerp)
{
	struct states s, base;
	struct ckpt_chunk m = {.width = 4, .kind = CKPT_KIND_FLOAT, .role = CKPT_ADAM_M}, v, w;

	if (states_open(&s, 9, 121) < 0)
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

		snprintf(name, sizeof(name), "adam%zu-%d-%d", i, bf16_gradients, lerp);
		write_chunk(name, chunk, data);
	}
	states_close(&s);
	states_close(&base);
}

/* Bells of one width after another: float and integer, alone, beside a base, and mostly the base. */
static void write_width(unsigned width, enum ckpt_chunk_kind kind, struct prng *prng)
{
	enum { COUNT_OF = 5000 };
	static uint8_t data[COUNT_OF * 8], base[COUNT_OF * 8];
	struct ckpt_chunk chunk = {.count = COUNT_OF, .width = width, .kind = kind};
	char name[100];

	for (size_t i = 0; i < (size_t)COUNT_OF * width; i++) {
		base[i] = (uint8_t)(i % width == width - 1 ? 60 + prng_below(prng, 4)
							   : prng_next(prng) >> 40);
		data[i] = (uint8_t)(base[i] ^ (i % width == 0 ? prng_below(prng, 4) : 0));
	}
	snprintf(name, sizeof(name), "alone%u-%d", width, kind);
	write_chunk(name, &chunk, data);
	chunk.base = base;
	snprintf(name, sizeof(name), "delta%u-%d", width, kind);
	write_chunk(name, &chunk, data);
	memcpy(data + 100 * width, base + 100 * width, (size_t)(COUNT_OF - 700) * width);
	snprintf(name, sizeof(name), "mask%u-%d", width, kind);
	write_chunk(name, &chunk, data);
	snprintf(name, sizeof(name), "same%u-%d", width, kind);
	write_chunk(name, &chunk, base);
	for (size_t i = 0; i < (size_t)COUNT_OF * width; i++)
		data[i] = (uint8_t)(prng_next(prng) >> 24);
	chunk.base = NULL;
	snprintf(name, sizeof(name), "noise%u-%d", width, kind);
	write_chunk(name, &chunk, data);
}

static void write_cast(struct prng *prng)
{
	static uint32_t master[2000];
	static uint16_t weights[2000];
	struct ckpt_chunk chunk = {
		.count = 2000, .width = 2, .kind = CKPT_KIND_BF16, .master = master};

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

int main(int argc, char **argv)
{
	struct prng prng = {7};

	if (argc != 2)
		return 2;
	folder = argv[1];
	codec = ckpt_codec_open(CKPT_SIMD_BEST);
	if (!codec)
		return 1;
	for (unsigned width = 1; width <= 8; width *= 2) {
		write_width(width, CKPT_KIND_INT, &prng);
		write_width(width, CKPT_KIND_FLOAT, &prng);
	}
	write_cast(&prng);
	write_adam(false, false);
	write_adam(true, false);
	write_adam(true, true);
	ckpt_codec_close(codec);
	return 0;
}
