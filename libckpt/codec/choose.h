/* SPDX-License-Identifier: Apache-2.0 */
/* Which mode makes a chunk smallest, as a sample of its lines has it. */
#ifndef CKPT_CODEC_CHOOSE_H
#define CKPT_CODEC_CHOOSE_H

#include "codec/predict.h"

/*
 * RAW, CAST, INTRA, DELTA, MASK or one of ADAM; `*ret_model` is set for the last. Without `whole` the chunk is what a
 * MASK has left over, which is not masked again. Elements that are wholly those of the base, or a rounding, are for
 * the caller to see before.
 */
enum ckpt_chunk_mode ckpt_choose(struct ckpt_codec *codec, const struct ckpt_chunk *chunk,
	const void *data, bool whole, struct ckpt_adam_model *ret_model);

#endif
