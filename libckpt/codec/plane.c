/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/plane.h"

#include <math.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/frame.h"

enum plane_kind {
	PLANE_RAW = 0,
	PLANE_CONSTANT = 1, /* one byte */
	PLANE_ZSTD = 2,     /* the length of a frame in four bytes, the frame */
	PLANE_SPARSE =
		3, /* four bytes: how many are not 0; a plane of bits that says which; a plane of them */
};

#define SHORT      256  /* not worth a table */
#define REPETITIVE 0.9  /* bits a byte below which matches gain more than Huffman codes can */
#define SPARSE     0.80 /* zeros from which they are left out */

size_t ckpt_plane_room(size_t length)
{
	size_t frame = ckpt_frame_room(length);
	size_t bound = ZSTD_compressBound(length);

	return 16 + (frame > bound ? frame : bound);
}

double ckpt_plane_entropy(
	const struct ckpt_codec *codec, const uint32_t counts[256], double *ret_zeros)
{
	double sum = 0;
	double total = 0;
	unsigned used = 0;

	for (unsigned s = 0; s < 256; s++) {
		sum += counts[s] < CKPT_LOGS ? (double)codec->logs[counts[s]]
					     : counts[s] * log2(counts[s]);
		total += counts[s];
		used += counts[s] > 0;
	}
	*ret_zeros = total > 0 ? counts[0] / total : 0;
	/* A sample has less entropy than what it was taken from (Miller, 1955). */
	return total > 0 ? log2(total) - sum / total + (used - 1) / (2 * total * M_LN2) : 0;
}

static void put_u32(uint8_t *out, size_t value)
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static size_t get_u32(const uint8_t *in)
{
	return (size_t)in[0] | (size_t)in[1] << 8 | (size_t)in[2] << 16 | (size_t)in[3] << 24;
}

static size_t write_raw(const uint8_t *plane, size_t length, uint8_t *out)
{
	out[0] = PLANE_RAW;
	memcpy(out + 1, plane, length);
	return 1 + length;
}

static size_t write_frame(struct ckpt_codec *codec, const uint32_t *counts, const uint8_t *plane,
	size_t length, uint8_t *out)
{
	size_t size;

	if (counts) {
		size = ckpt_frame_write(codec->kernels, counts, plane, length, out + 5);
	} else {
		size = ZSTD_compressCCtx(
			codec->compressor, out + 5, ZSTD_compressBound(length), plane, length, 1);
		size = ZSTD_isError(size) ? 0 : size;
	}
	if (size == 0 || size + 5 > length)
		return write_raw(plane, length, out);
	out[0] = PLANE_ZSTD;
	put_u32(out + 1, size);
	return 5 + size;
}

/* What the bytes of a plane are like. */
struct look {
	uint32_t counts[256];
	double entropy;
	double zeros;
	bool constant;
};

static void look_at(
	struct ckpt_codec *codec, const uint8_t *plane, size_t length, struct look *ret_look)
{
	ret_look->constant = length > 1 && codec->kernels->is_constant(plane, length);
	if (ret_look->constant || length < SHORT)
		return;
	codec->kernels->histogram(plane, length, length > 65536 ? 8 : 1, ret_look->counts);
	ret_look->entropy = ckpt_plane_entropy(codec, ret_look->counts, &ret_look->zeros);
}

/* All kinds but the sparse one. */
static size_t write_simple(struct ckpt_codec *codec, const struct look *look, const uint8_t *plane,
	size_t length, uint8_t *out)
{
	if (look->constant) {
		out[0] = PLANE_CONSTANT;
		out[1] = plane[0];
		return 2;
	}
	if (length < SHORT || look->entropy > CKPT_PLANE_NOISE)
		return write_raw(plane, length, out);
	return write_frame(
		codec, look->entropy < REPETITIVE ? NULL : look->counts, plane, length, out);
}

static size_t write_part(
	struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out)
{
	struct look look = {.constant = false};

	look_at(codec, plane, length, &look);
	return write_simple(codec, &look, plane, length, out);
}

static size_t write_sparse(
	struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out)
{
	size_t count = codec->kernels->pack(plane, length, codec->bitmap, codec->packed);
	size_t size = 5;

	out[0] = PLANE_SPARSE;
	put_u32(out + 1, count);
	size += write_part(codec, codec->bitmap, (length + 7) / 8, out + size);
	size += write_part(codec, codec->packed, count, out + size);
	return size;
}

size_t ckpt_plane_write(struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out)
{
	struct look look = {.constant = false};

	look_at(codec, plane, length, &look);
	if (!look.constant && length >= SHORT && look.entropy <= CKPT_PLANE_NOISE &&
		look.zeros > SPARSE)
		return write_sparse(codec, plane, length, out);
	return write_simple(codec, &look, plane, length, out);
}

static int read_frame(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end,
	size_t length, uint8_t *room)
{
	size_t size;

	if (end - *in < 4)
		return CKPT_EINTEGRITY;
	size = get_u32(*in);
	*in += 4;
	/* One frame of RFC 8878, and not what else libzstd reads: older formats, frames to skip, several of them. */
	if (size > (size_t)(end - *in) || size < 4 || get_u32(*in) != CKPT_FRAME_MAGIC ||
		ZSTD_findFrameCompressedSize(*in, size) != size ||
		ZSTD_decompressDCtx(codec->decompressor, room, length, *in, size) != length)
		return CKPT_EINTEGRITY;
	*in += size;
	return 0;
}

static int read_simple(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end,
	size_t length, uint8_t *room, const uint8_t **ret_plane)
{
	enum plane_kind kind;

	if (*in == end)
		return CKPT_EINTEGRITY;
	kind = *(*in)++;
	*ret_plane = room;
	switch (kind) {
	case PLANE_RAW:
		if ((size_t)(end - *in) < length)
			return CKPT_EINTEGRITY;
		*ret_plane = *in;
		*in += length;
		return 0;
	case PLANE_CONSTANT:
		if (*in == end)
			return CKPT_EINTEGRITY;
		memset(room, *(*in)++, length);
		return 0;
	case PLANE_ZSTD:
		return read_frame(codec, in, end, length, room);
	default:
		return CKPT_EINTEGRITY;
	}
}

/* Both parts go to the scratch, so that they may be read beyond their ends. */
static int read_sparse(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end,
	size_t length, uint8_t *room)
{
	const uint8_t *bitmap;
	const uint8_t *packed;
	size_t count;
	int r;

	if (end - *in < 4)
		return CKPT_EINTEGRITY;
	count = get_u32(*in);
	*in += 4;
	if (count > length)
		return CKPT_EINTEGRITY;
	r = read_simple(codec, in, end, (length + 7) / 8, codec->bitmap, &bitmap);
	if (r < 0)
		return r;
	if (length % 8 && bitmap[length / 8] >> (length % 8))
		return CKPT_EINTEGRITY;
	r = read_simple(codec, in, end, count, codec->packed, &packed);
	if (r < 0)
		return r;
	if (packed != codec->packed)
		memcpy(codec->packed, packed, count);
	/* The bits are `length` at most, and so is the room of what they say is there. */
	if (codec->kernels->unpack(bitmap, codec->packed, length, room) != count)
		return CKPT_EINTEGRITY;
	return 0;
}

int ckpt_plane_read(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end, size_t length,
	uint8_t *room, const uint8_t **ret_plane)
{
	if (*in == end || **in != PLANE_SPARSE)
		return read_simple(codec, in, end, length, room, ret_plane);
	++*in;
	*ret_plane = room;
	return read_sparse(codec, in, end, length, room);
}
