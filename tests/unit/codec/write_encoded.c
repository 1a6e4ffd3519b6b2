/* SPDX-License-Identifier: Apache-2.0 */
/* usage: write_encoded FOLDER: writes a shard there (plain), the same one encoded (encoded), and its index (index). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/encode_fixture.h"
#include "lib/prng.h"

#define ELEMENTS 9000

static float master[ELEMENTS];
static uint16_t model[ELEMENTS];
static uint16_t half[ELEMENTS];
static float scale[ELEMENTS];
static uint8_t noise[20000];
static int64_t ids[ELEMENTS];

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static void make_data(void)
{
	struct prng prng = {11};

	for (size_t i = 0; i < ELEMENTS; i++) {
		master[i] = ((float)prng_below(&prng, 2000000) - 1000000) * 1e-8F;
		model[i] =
			(uint16_t)((bits_of(master[i]) + 0x7fff + (bits_of(master[i]) >> 16 & 1)) >>
				   16);
		/* Numbers that fp16 has. */
		scale[i] = (float)(1 + prng_below(&prng, 500)) / 16;
		half[i] = (uint16_t)(((bits_of(scale[i]) >> 23) - 127 + 15) << 10 |
				     (bits_of(scale[i]) >> 13 & 0x3ff));
		ids[i] = (int64_t)i * 3;
	}
	/* Not all are roundings. */
	for (size_t i = 0; i < 20; i++)
		model[prng_below(&prng, 3000)] = (uint16_t)prng_next(&prng);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)prng_next(&prng);
}

#define TENSOR(text, type, elements, bytes)                                                        \
	{                                                                                          \
		.size = sizeof(struct ckpt_tensor), .name = (text), .dtype = (type), .ndim = 1,    \
		.shape = (const int64_t[]){elements}, .data = (bytes)                              \
	}

static void move(const char *from, const char *folder, const char *name)
{
	char to[1024];

	(void)snprintf(to, sizeof(to), "%s/%s", folder, name);
	if (rename(from, to) != 0) {
		perror(to);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const struct ckpt_tensor tensors[] = {
		TENSOR("master", CKPT_F32, ELEMENTS, master),
		TENSOR("weight", CKPT_F32, 3000, master),
		TENSOR("model", CKPT_BF16, 3000, model),
		TENSOR("scale", CKPT_F32, 4000, scale),
		TENSOR("half", CKPT_F16, 4000, half),
		TENSOR("noise", CKPT_U8, sizeof(noise), noise),
		TENSOR("ids", CKPT_I64, 2000, ids),
		TENSOR("some", CKPT_I32, 70, ids),
		TENSOR("few", CKPT_C64, 9, master),
		TENSOR("more", CKPT_C128, 30, ids),
		TENSOR("none", CKPT_F64, 0, ids),
		TENSOR("flags", CKPT_F8_E4M3, 33, noise),
		TENSOR("bytes", CKPT_F8_E8M0, 17, ids),
	};
	struct fixture_step step = {.dir = argv[1],
		.generation = 1,
		.step = 10,
		.tensors = tensors,
		.count = sizeof(tensors) / sizeof(*tensors),
		.chunk_bytes = 10007,
		.world = 1};
	struct encode_fixture made;
	struct prng prng = {3};

	if (argc != 2)
		return 2;
	make_data();
	fixture_begin(argv[1]);
	fixture_commit(&step);
	encode_fixture_rank(&step, 0, &prng, &made);
	move(encode_fixture_path(&step, 0), argv[1], "encoded");
	fixture_commit(&step);
	move(fixture_shard(&step, 0), argv[1], "plain");
	move(fixture_index(&step, 0), argv[1], "index");
	return made.plain > 0 && made.parts > 0 && made.refs > 0 ? 0 : 1;
}
