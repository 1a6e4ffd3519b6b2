/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A zstd frame (RFC 8878) of Huffman-coded literals and nothing else. Any zstd decodes it, once the magic number
 * stands before it: that is the same for all, and is not written.
 */
#ifndef CKPT_CODEC_FRAME_H
#define CKPT_CODEC_FRAME_H

#include "codec/kernels.h"

#define CKPT_FRAME_MAGIC      "\x28\xb5\x2f\xfd"
#define CKPT_FRAME_MAGIC_SIZE ((size_t)4)

/* Room for a frame of `length` symbols. */
size_t ckpt_frame_room(size_t length);

/*
 * Codes `length` symbols, 1 to 2^32-1 of them. Each that occurs must be counted at least once in `counts`, each count
 * below 2^24. Returns the length of the frame without its magic number; 0: there is no code for these counts.
 */
size_t ckpt_frame_write(const struct ckpt_kernels *kernels, const uint32_t counts[256],
	const uint8_t *symbols, size_t length, uint8_t *out);

#endif
