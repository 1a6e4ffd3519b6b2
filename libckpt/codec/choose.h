/* SPDX-License-Identifier: Apache-2.0 */
/* Which mode makes a chunk smallest, as a sample of its lines has it. */
#ifndef CKPT_CODEC_CHOOSE_H
#define CKPT_CODEC_CHOOSE_H

#include "codec/group.h"
#include "codec/predict.h"

struct ckpt_choice {
	enum ckpt_chunk_mode mode;
	struct ckpt_adam_model model;  /* of a mode of ADAM */
	struct ckpt_grouping grouping; /* of GROUPED */
};

/*
 * RAW, CAST, INTRA, DELTA, GROUPED, MASK or one of ADAM. Without `whole` the chunk is what a
 * MASK has left over, which is not masked again. Elements that are wholly those of the base, or a rounding, are for
 * the caller to see before.
 */
void ckpt_choose(struct ckpt_codec *codec, const struct ckpt_codec_chunk *chunk, const void *data,
	bool whole, struct ckpt_choice *ret_choice);

#endif
