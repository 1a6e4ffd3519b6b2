/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/plane.h"

#include <math.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/frame.h"

enum plane_kind {
	PLANE_RAW = 0,
	PLANE_CONSTANT = 1, /* one byte */
	PLANE_ZSTD = 2,     /* the size of a frame, the frame */
	PLANE_SPARSE = 3, /* how many are not 0; a plane of bits that says which; a plane of them */
	PLANE_TWO = 4,    /* two bytes; a bit for each byte of the plane: which of them it is */
};

#define SHORT         64   /* not worth a table */
#define REPETITIVE    0.9  /* bits a byte below which matches gain more than Huffman codes can */
#define SPARSE        0.70 /* zeros from which they are left out */
#define SPARSE_BITMAP 0.50 /* the same of a bitmap, which is written in both ways */

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

/* A size within a plane of `length` bytes has as many bytes as `length` needs. */
static unsigned size_bytes(size_t length)
{
	CKPT_ASSERT(length <= CKPT_CODEC_CHUNK_BYTES);
	return length < 1u << 8 ? 1 : length < 1u << 16 ? 2 : 3;
}

static void put_size(uint8_t *out, size_t value, size_t length)
{
	for (unsigned i = 0; i < size_bytes(length); i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static int get_size(const uint8_t **in, const uint8_t *end, size_t length, size_t *ret_value)
{
	unsigned bytes = size_bytes(length);

	if ((size_t)(end - *in) < bytes)
		return CKPT_EINTEGRITY;
	*ret_value = 0;
	for (unsigned i = 0; i < bytes; i++)
		*ret_value |= (size_t) * (*in)++ << (8 * i);
	return 0;
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
	size_t head = 1 + size_bytes(length);
	size_t size;

	if (counts) {
		size = ckpt_frame_write(codec->kernels, counts, plane, length, out + head);
	} else {
		size = ZSTD_compressCCtx(codec->compressor, out + head, ZSTD_compressBound(length),
			plane, length, 1);
		size = ZSTD_isError(size) ? 0 : size - CKPT_FRAME_MAGIC_SIZE;
		if (size > 0)
			memmove(out + head, out + head + CKPT_FRAME_MAGIC_SIZE, size);
	}
	if (size == 0 || size + head > length)
		return write_raw(plane, length, out);
	out[0] = PLANE_ZSTD;
	put_size(out + 1, size, length);
	return head + size;
}

/* What the bytes of a plane are like. */
struct look {
	uint32_t counts[256];
	double entropy;
	double zeros;
	unsigned
		symbols; /* how many of them occur; or stand between two that do, in a long plane */
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
	for (unsigned k = 0; k < 256; k++)
		ret_look->symbols += ret_look->counts[k] > 0;
}

/* Signs, mostly. A Huffman code has a bit for each as well, and needs a description. */
static size_t write_two(const struct look *look, const uint8_t *plane, size_t length, uint8_t *out)
{
	unsigned low = 0;
	unsigned high = 255;

	while (look->counts[low] == 0)
		low++;
	while (look->counts[high] == 0)
		high--;
	out[0] = PLANE_TWO;
	out[1] = (uint8_t)low;
	out[2] = (uint8_t)high;
	memset(out + 3, 0, (length + 7) / 8);
	for (size_t i = 0; i < length; i++)
		out[3 + i / 8] |= (uint8_t)((plane[i] == high) << (i % 8));
	return 3 + (length + 7) / 8;
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
	if (look->symbols == 2 && look->entropy >= REPETITIVE)
		return write_two(look, plane, length, out);
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

/* What is 0 goes into the bitmap of this level alone, and what is not into `packed` as well; returns the head's length. */
static size_t pack_sparse(struct ckpt_codec *codec, unsigned level, const uint8_t *plane,
	size_t length, uint8_t *out, size_t *ret_count)
{
	*ret_count =
		codec->kernels->pack(plane, length, codec->bitmap[level], codec->packed[level]);
	out[0] = PLANE_SPARSE;
	put_size(out + 1, *ret_count, length);
	return 1 + size_bytes(length);
}

static bool is_sparse(const struct look *look, size_t length, double least)
{
	return !look->constant && length >= SHORT && look->entropy <= CKPT_PLANE_NOISE &&
	       look->zeros > least;
}

/* A bitmap may be sparse itself. Where its bits follow a pattern, matches may be shorter: both are tried. */
static size_t write_bitmap(
	struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out)
{
	struct look look = {.constant = false};
	size_t simple;
	size_t sparse;
	size_t count;

	look_at(codec, plane, length, &look);
	if (!is_sparse(&look, length, SPARSE_BITMAP))
		return write_simple(codec, &look, plane, length, out);
	sparse = pack_sparse(codec, 1, plane, length, out, &count);
	sparse += write_part(codec, codec->bitmap[1], (length + 7) / 8, out + sparse);
	sparse += write_part(codec, codec->packed[1], count, out + sparse);
	simple = write_simple(codec, &look, plane, length, codec->bitmap_coded);
	if (simple < sparse)
		memcpy(out, codec->bitmap_coded, simple);
	return simple < sparse ? simple : sparse;
}

size_t ckpt_plane_write(struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out)
{
	struct look look = {.constant = false};
	size_t size;
	size_t count;

	look_at(codec, plane, length, &look);
	if (!is_sparse(&look, length, SPARSE))
		return write_simple(codec, &look, plane, length, out);
	size = pack_sparse(codec, 0, plane, length, out, &count);
	size += write_bitmap(codec, codec->bitmap[0], (length + 7) / 8, out + size);
	size += write_part(codec, codec->packed[0], count, out + size);
	return size;
}

static int read_frame(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end,
	size_t length, uint8_t *room)
{
	size_t size;
	int r = get_size(in, end, length, &size);

	if (r < 0)
		return r;
	/* The encoder stores what does not get smaller as it is. */
	if (size > (size_t)(end - *in) || size > length)
		return CKPT_EINTEGRITY;
	memcpy(codec->frame, CKPT_FRAME_MAGIC, CKPT_FRAME_MAGIC_SIZE);
	memcpy(codec->frame + CKPT_FRAME_MAGIC_SIZE, *in, size);
	*in += size;
	size += CKPT_FRAME_MAGIC_SIZE;
	/* One frame, and not what else libzstd reads: several of them, frames to skip. */
	if (ZSTD_findFrameCompressedSize(codec->frame, size) != size ||
		ZSTD_decompressDCtx(codec->decompressor, room, length, codec->frame, size) !=
			length)
		return CKPT_EINTEGRITY;
	return 0;
}

static int read_two(const uint8_t **in, const uint8_t *end, size_t length, uint8_t *room)
{
	size_t bits = (length + 7) / 8;
	const uint8_t *values = *in;

	if ((size_t)(end - *in) < 2 + bits)
		return CKPT_EINTEGRITY;
	*in += 2 + bits;
	if (length % 8 && values[1 + bits] >> (length % 8))
		return CKPT_EINTEGRITY;
	for (size_t i = 0; i < length; i++)
		room[i] = values[values[2 + i / 8] >> (i % 8) & 1];
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
	case PLANE_TWO:
		return read_two(in, end, length, room);
	default:
		return CKPT_EINTEGRITY;
	}
}

/*
 * What follows the bitmap. The packed bytes are copied to the scratch, for they may be read beyond their end. The bitmap
 * may stand in the input: no more than its (length + 7) / 8 bytes are read.
 */
static int unpack_sparse(struct ckpt_codec *codec, unsigned level, const uint8_t *bitmap,
	size_t count, const uint8_t **in, const uint8_t *end, size_t length, uint8_t *room)
{
	const uint8_t *packed;
	int r;

	if (count > length || (length % 8 && bitmap[length / 8] >> (length % 8)))
		return CKPT_EINTEGRITY;
	r = read_simple(codec, in, end, count, codec->packed[level], &packed);
	if (r < 0)
		return r;
	if (packed != codec->packed[level])
		memcpy(codec->packed[level], packed, count);
	/* The bits are `length` at most, and so is the room of what they say is there. */
	if (codec->kernels->unpack(bitmap, codec->packed[level], length, room) != count)
		return CKPT_EINTEGRITY;
	return 0;
}

static bool begins_sparse(const uint8_t **in, const uint8_t *end)
{
	if (*in == end || **in != PLANE_SPARSE)
		return false;
	++*in;
	return true;
}

static int read_bitmap(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end,
	size_t length, uint8_t *room, const uint8_t **ret_bitmap)
{
	const uint8_t *bitmap = codec->bitmap[1];
	size_t count = 0;
	int r;

	if (!begins_sparse(in, end))
		return read_simple(codec, in, end, length, room, ret_bitmap);
	*ret_bitmap = room;
	r = get_size(in, end, length, &count);
	if (r == 0)
		r = read_simple(codec, in, end, (length + 7) / 8, codec->bitmap[1], &bitmap);
	return r < 0 ? r : unpack_sparse(codec, 1, bitmap, count, in, end, length, room);
}

int ckpt_plane_read(struct ckpt_codec *codec, const uint8_t **in, const uint8_t *end, size_t length,
	uint8_t *room, const uint8_t **ret_plane)
{
	const uint8_t *bitmap = codec->bitmap[0];
	size_t count = 0;
	int r;

	if (!begins_sparse(in, end))
		return read_simple(codec, in, end, length, room, ret_plane);
	*ret_plane = room;
	r = get_size(in, end, length, &count);
	if (r == 0)
		r = read_bitmap(codec, in, end, (length + 7) / 8, codec->bitmap[0], &bitmap);
	return r < 0 ? r : unpack_sparse(codec, 0, bitmap, count, in, end, length, room);
}
