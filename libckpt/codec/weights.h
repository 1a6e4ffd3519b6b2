/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a Huffman code in a zstd frame: its weights (RFC 8878, 4.2.1), plain or by FSE (4.1). */
#ifndef CKPT_CODEC_WEIGHTS_H
#define CKPT_CODEC_WEIGHTS_H

#include "base/compiler.h"

/*
 * Weights from 0 to 11 of symbols 0 to count-1; the one of the last symbol is not told. `header` has 128 bytes. The
 * length; 0: it does not fit.
 */
size_t ckpt_weights_write(const uint8_t *weights, size_t count, uint8_t *header);

#endif
