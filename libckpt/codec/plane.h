/* SPDX-License-Identifier: Apache-2.0 */
/* One byte of every element of a chunk, coded by what it is like. FORMAT.md has the bytes. */
#ifndef CKPT_CODEC_PLANE_H
#define CKPT_CODEC_PLANE_H

#include "codec/codec_memory.h"

/* Bits a byte from which a plane is stored as it is: coding it would gain less than it costs. */
#define CKPT_PLANE_NOISE 7.88

/* The room that writing a plane needs. */
size_t ckpt_plane_room(size_t length);

/* Bits for each symbol that is counted, and the share of zeros among them. */
double ckpt_plane_entropy(
	const struct ckpt_codec *codec, const uint32_t counts[256], double *ret_zeros);

/* The length of what is written. */
size_t ckpt_plane_write(
	struct ckpt_codec *codec, const uint8_t *plane, size_t length, uint8_t *out);

/*
 * Reads a plane of `length` bytes and moves `*in` behind it. `*ret_plane` is `room`, or in the input where the bytes
 * stand there as they are. 0 or CKPT_EINTEGRITY.
 */
CKPT_MUST_CHECK int ckpt_plane_read(struct ckpt_codec *codec, const uint8_t **in,
	const uint8_t *end, size_t length, uint8_t *room, const uint8_t **ret_plane);

#endif
