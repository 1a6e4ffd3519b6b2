/* SPDX-License-Identifier: Apache-2.0 */
/* The codec of a library that was built without zstd: none can be opened. */
#include "codec/codec.h"

struct ckpt_codec *ckpt_codec_open(enum ckpt_simd simd)
{
	(void)simd;
	return NULL;
}

void ckpt_codec_close(struct ckpt_codec *codec)
{
	CKPT_ASSERT(!codec);
}

void ckpt_codec_set_margin(struct ckpt_codec *codec, double margin)
{
	(void)codec, (void)margin;
	CKPT_ASSERT(!"a codec");
}

size_t ckpt_encode_room(size_t bytes)
{
	return bytes;
}

size_t ckpt_encode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const void *data,
	uint8_t *out)
{
	(void)codec, (void)chunk, (void)data, (void)out;
	CKPT_ASSERT(!"a codec");
}

void ckpt_codec_round(
	enum ckpt_chunk_kind kind, const void *values, size_t count, void *ret_rounded)
{
	(void)kind, (void)values, (void)count, (void)ret_rounded;
	CKPT_ASSERT(!"a codec");
}

int ckpt_decode(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const uint8_t *in,
	size_t length, void *out)
{
	(void)codec, (void)chunk, (void)in, (void)length, (void)out;
	CKPT_ASSERT(!"a codec");
}
