/* SPDX-License-Identifier: Apache-2.0 */
/* What AdamW makes of the earlier step: predictions, and the numbers that they need as they are stored. */
#ifndef CKPT_CODEC_ADAM_H
#define CKPT_CODEC_ADAM_H

#include "codec/codec_memory.h"

/* A byte of flags, then the eight terms as fp32, little-endian. */
#define CKPT_ADAM_HEAD 33

struct ckpt_adam_model {
	struct ckpt_adam_terms terms;
	enum ckpt_adam_order order;
	bool bf16_gradient;
	bool relative; /* ADAM_M: gradients are coded beside the second moment of the base */
};

void ckpt_adam_write(const struct ckpt_adam_model *model, uint8_t out[CKPT_ADAM_HEAD]);
CKPT_MUST_CHECK int ckpt_adam_read(
	const uint8_t in[CKPT_ADAM_HEAD], struct ckpt_adam_model *ret_model);

/* The model that predicts most of the sample exactly. False: the chunk has no role, or lacks what its role needs. */
bool ckpt_adam_fit(struct ckpt_codec *codec, const struct ckpt_sample *sample,
	struct ckpt_adam_model *ret_model);

/* The gradients in codec->gradient, as two planes. */
void ckpt_adam_split_gradient(const struct ckpt_codec *codec, const struct ckpt_adam_model *model,
	const struct ckpt_codec_chunk *chunk, uint8_t *const planes[2]);

/* What the chunk's role needs is there. */
bool ckpt_adam_has(const struct ckpt_codec_chunk *chunk);
/*
 * Predicts `count` elements from the `from`-th on. Of a first moment, from `gradient`, which has as many bf16 values.
 */
void ckpt_adam_predict(const struct ckpt_codec *codec, const struct ckpt_adam_model *model,
	const struct ckpt_codec_chunk *chunk, const void *gradient, size_t from, size_t count,
	void *out);

#endif
