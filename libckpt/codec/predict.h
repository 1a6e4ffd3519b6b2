/* SPDX-License-Identifier: Apache-2.0 */
/* What a mode predicts of a chunk, a block at a time; encoder and decoder ask the same. */
#ifndef CKPT_CODEC_PREDICT_H
#define CKPT_CODEC_PREDICT_H

#include "codec/adam.h"

/* Elements whose prediction fits the first cache. A multiple of a line. */
#define CKPT_BLOCK ((size_t)4096)

/* A block of elements, on its way to planes or back. */
struct ckpt_block {
	size_t from;
	size_t count;
	enum ckpt_transform transform;
	const void *predicted; /* NULL: the mode has no prediction */
};

/* The chunk has what the mode predicts from. */
bool ckpt_mode_possible(enum ckpt_chunk_mode mode, const struct ckpt_codec_chunk *chunk);
enum ckpt_transform ckpt_mode_transform(enum ckpt_chunk_mode mode, enum ckpt_chunk_kind kind);

/*
 * `count` predicted elements from the `from`-th on, at most a block of them: in the chunk's own arrays or in the
 * scratch, until the next call. NULL where the mode has none. `gradient`: the chunk's, for ADAM_M.
 */
const void *ckpt_predict(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_codec_chunk *chunk,
	const uint8_t *gradient, size_t from, size_t count);

/* Calls `each` for every block of the chunk, in order. Encoder and decoder differ in `each` alone. */
void ckpt_each_block(struct ckpt_codec *codec, enum ckpt_chunk_mode mode,
	const struct ckpt_adam_model *model, const struct ckpt_codec_chunk *chunk,
	void (*each)(struct ckpt_codec *codec, const struct ckpt_block *block, void *arg),
	void *arg);

#endif
