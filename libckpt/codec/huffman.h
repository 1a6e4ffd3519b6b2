/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Huffman codes as zstd frames have them (RFC 8878, section 4.2): at most 11 bits, described by weights.
 */
#ifndef CKPT_CODEC_HUFFMAN_H
#define CKPT_CODEC_HUFFMAN_H

#include "codec/kernels.h"

#define CKPT_HUFFMAN_BITS   11
/* A description is a byte and at most 127 that follow it. */
#define CKPT_HUFFMAN_HEADER 128

/*
 * Makes the code for symbols that are counted so, and writes its description. What is counted as 0 gets no code.
 * Returns the length of the description; 0: there are fewer than two symbols, or it does not fit.
 */
size_t ckpt_huffman_build(struct ckpt_huffman *table, const uint32_t counts[256],
	uint8_t header[CKPT_HUFFMAN_HEADER]);

#endif
