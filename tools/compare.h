/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the bytes of tensors of two steps. They are read and verified in batches: as many tensors as fit into
 * the buffers, or some rows of a larger one.
 */
#ifndef CKPT_TOOLS_COMPARE_H
#define CKPT_TOOLS_COMPARE_H

#include "cli.h"

#define COMPARE_SIDES 2

/* A tensor that both sides have with the same dtype and shape. */
struct compare_tensor {
	struct ckpt_tensor_info info; /* of the first side, whose handle outlives this */

	/* The result. */
	uint64_t elements;
	uint64_t differing;
	uint64_t first; /* number of the first element that differs, row-major */
};

struct compare {
	const struct cli *cli;
	struct ckpt_engine *engines[COMPARE_SIDES];
	uint64_t steps[COMPARE_SIDES]; /* numbers */
	uint64_t generations[COMPARE_SIDES];
	struct compare_tensor *tensors;
	size_t count;
	uint64_t batch_bytes; /* of each side's buffer, unless a row is larger */

	/* Private. */
	char *buffers[COMPARE_SIDES];
	uint64_t buffer_bytes;
	size_t tensor; /* where the next batch begins */
	uint64_t row;
};

/*
 * Compares, and fills in the results. Returns 0, or the code of the first failure, with ckpt_last_error(). There is no
 * such message for -ESTALE (the step of that number is of another generation now), nor always for -ENOMEM.
 */
int compare_run(struct compare *compare);

#endif
