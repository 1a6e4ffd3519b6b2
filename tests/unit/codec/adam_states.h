/* SPDX-License-Identifier: Apache-2.0 */
/* States of a training that does not happen: AdamW on gradients from a seed, the same on every machine. */
#ifndef CKPT_TESTS_CODEC_ADAM_STATES_H
#define CKPT_TESTS_CODEC_ADAM_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"

struct states {
	size_t count;
	struct ckpt_adam_step hyper; /* of the step that was taken last */
	bool bf16_gradients;
	bool lerp;  /* as PyTorch averages since 2.0; and some gradients are 0 */
	bool fused; /* each product that is added is rounded together with the sum */
	float *master, *m, *v;
	uint16_t *w; /* bf16 */
	/* Private: the mean gradients and their scales, and the random numbers. */
	float *mean, *row, *column;
	size_t rows, columns;
	uint64_t random[2];
};

/* Not 0: no memory. */
int states_open(struct states *states, size_t rows, size_t columns);
void states_close(struct states *states);
void states_step(struct states *states);
/* What it is now, in arrays of its own; only these four and `count` are set. */
int states_copy(const struct states *states, struct states *ret_copy);

/* Weights of 16 bits, and what they are a step later: of two, the smaller one changes more often. */
void states_fine_tune(bool half, size_t count, uint16_t *ret_base, uint16_t *ret_now);

#endif
