/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoded chunks: three bytes that say what a reader knows of it, then the chunk. What decodes is elements that can be
 * encoded and come back; nothing is allocated for a size that the input names.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/codec.h"

#define MOST 4096 /* elements */

static struct ckpt_codec *codecs[2];
static uint8_t references[5][MOST * 8];
static uint8_t *encoded;

static void set_up(void)
{
	struct prng prng = {1};

	codecs[0] = ckpt_codec_open(CKPT_SIMD_PLAIN);
	codecs[1] = ckpt_codec_open(CKPT_SIMD_BEST);
	encoded = malloc(ckpt_encode_room((size_t)MOST * 8));
	FUZZ_CHECK(codecs[0] && codecs[1] && encoded);
	/* Numbers near one another, of every width. */
	for (size_t k = 0; k < 5; k++) {
		for (size_t i = 0; i < sizeof(references[k]); i++)
			references[k][i] = (uint8_t)(i % 4 == 3 ? 0x3c : prng_next(&prng) >> 24);
	}
}

static struct ckpt_codec_chunk describe(const uint8_t head[3])
{
	struct ckpt_codec_chunk chunk = {
		.width = 1u << (head[0] & 3),
		.kind = (enum ckpt_chunk_kind)(head[0] >> 2 & 3),
		.role = (enum ckpt_adam_role)(head[0] >> 4 & 3),
		.count = ((size_t)head[1] | (size_t)head[2] << 8) % (MOST + 1),
	};

	if (!(head[0] & 0x40))
		chunk.base = references[0];
	if (!(head[0] & 0x80)) {
		chunk.master = references[1];
		chunk.m = references[2];
		chunk.m_base = references[3];
		chunk.v = references[4];
		chunk.v_base = references[4];
	}
	return chunk;
}

static void check_again(const struct ckpt_codec_chunk *chunk, const uint8_t *data)
{
	static uint8_t again[MOST * 8];
	size_t bytes = chunk->count * chunk->width;
	size_t size = ckpt_encode(codecs[1], chunk, data, encoded);

	FUZZ_CHECK(size <= bytes + 1);
	FUZZ_CHECK(ckpt_decode(codecs[0], chunk, encoded, size, again) == 0);
	FUZZ_CHECK(memcmp(again, data, bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t out[2][MOST * 8];
	struct ckpt_codec_chunk chunk;
	int r[2];

	if (!codecs[0])
		set_up();
	if (size < 3)
		return 0;
	chunk = describe(data);
	for (size_t i = 0; i < 2; i++) {
		fuzz_memory_begin(0);
		r[i] = ckpt_decode(codecs[i], &chunk, data + 3, size - 3, out[i]);
		FUZZ_CHECK(fuzz_memory_end(0) == 0);
		FUZZ_CHECK(r[i] == 0 || r[i] == CKPT_EINTEGRITY);
	}
	FUZZ_CHECK(r[0] == r[1]);
	if (r[0] == 0) {
		FUZZ_CHECK(memcmp(out[0], out[1], chunk.count * chunk.width) == 0);
		check_again(&chunk, out[0]);
	}
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};

	/* Modes, kinds of planes and small sizes. */
	if (size > 4 && prng_below(&prng, 4) == 0) {
		data[3 + prng_below(&prng, size - 3)] = (uint8_t)prng_below(&prng, 10);
		return size;
	}
	return LLVMFuzzerMutate(data, size, max);
}
