/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: write_chain FOLDER: writes a store there of steps that are decoded with those before them, and beside it the plain
 * shard of each step (STEP.plain).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/chain_fixture.h"
#include "lib/prng.h"

#define ELEMENTS 3000
#define STEPS    4

static float master[ELEMENTS];
static uint16_t model[ELEMENTS];
static uint16_t alone[ELEMENTS];
static float frozen[ELEMENTS];
static float half_frozen[ELEMENTS];
static uint8_t noise[9000];
static int64_t ids[ELEMENTS];

static uint16_t round_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void begin(struct prng *d)
{
	for (size_t i = 0; i < ELEMENTS; i++) {
		master[i] = ((float)prng_below(d, 2000000) - 1000000) * 1e-7F;
		frozen[i] = (float)prng_below(d, 1000000);
		half_frozen[i] = (float)prng_below(d, 1000000);
		alone[i] = round_bf16(((float)prng_below(d, 2000000) - 1000000) * 1e-7F);
		ids[i] = (int64_t)prng_next(d);
	}
}

/* A step of training. */
static void move(struct prng *d)
{
	for (size_t i = 0; i < ELEMENTS; i++) {
		master[i] += ((float)prng_below(d, 2000) - 1000) * 1e-10F;
		model[i] = round_bf16(master[i]);
		if (prng_below(d, 20) == 0)
			alone[i] ^= 1;
	}
	/* A part of it, so that one part of a chunk stays and another one does not. */
	for (size_t i = 0; i < 500; i++)
		half_frozen[i] += 1;
	for (size_t i = 0; i < 5; i++)
		ids[prng_below(d, ELEMENTS)]++;
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)prng_next(d);
}

#define TENSOR(text, type, elements, bytes)                                                        \
	{                                                                                          \
		.size = sizeof(struct ckpt_tensor), .name = (text), .dtype = (type), .ndim = 1,    \
		.shape = (const int64_t[]){elements}, .data = (bytes)                              \
	}

int main(int argc, char **argv)
{
	const struct ckpt_tensor tensors[] = {
		TENSOR("master", CKPT_F32, ELEMENTS, master),
		TENSOR("model", CKPT_BF16, ELEMENTS, model),
		TENSOR("alone", CKPT_BF16, 2900, alone),
		TENSOR("frozen", CKPT_F32, 2800, frozen),
		TENSOR("half", CKPT_F32, 2500, half_frozen),
		TENSOR("noise", CKPT_U8, sizeof(noise), noise),
		TENSOR("ids", CKPT_I64, ELEMENTS, ids),
		/* Two parts of one chunk, of which one stays. */
		TENSOR("zero", CKPT_F32, 100, frozen),
		TENSOR("a few", CKPT_BF16, 100, model),
	};
	struct chain_fixture chain = {0};
	struct prng d = {11};

	if (argc != 2)
		return 2;
	begin(&d);
	fixture_begin(argv[1]);
	for (uint64_t n = 1; n <= STEPS; n++) {
		const struct fixture_step step = {.dir = argv[1],
			.generation = 1,
			.step = n,
			.tensors = tensors,
			.count = sizeof(tensors) / sizeof(*tensors),
			.chunk_bytes = 10007,
			.world = 1};
		char path[1024];

		move(&d);
		chain_fixture_add(&chain, &step);
		(void)snprintf(path, sizeof(path), "%s/%llu.plain", argv[1], (unsigned long long)n);
		FILE *f = fopen(path, "wb");
		size_t bytes = chain.index->layout->bytes;
		if (!f || fwrite(chain.shard, 1, bytes, f) != bytes || fclose(f) != 0)
			return 1;
	}
	bool all = chain.same > 0 && chain.based > 0 && chain.refs > 0;
	chain_fixture_clear(&chain);
	return all ? 0 : 1;
}
