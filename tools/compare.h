/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of tensors of two steps, read and verified a batch at a time. A batch is as many tensors as fit its
 * buffers, or some rows of one that is larger.
 */
#ifndef CKPT_TOOLS_COMPARE_H
#define CKPT_TOOLS_COMPARE_H

#include "cli.h"

#define COMPARE_SIDES 2

/* A tensor that both sides have, of one dtype and shape. */
struct compare_tensor {
	struct ckpt_tensor_info info; /* of the first side, whose handle outlives this */

	/* Found. */
	uint64_t elements;
	uint64_t differing;
	uint64_t first; /* of those that differ, counted row-major */
};

struct compare {
	const struct cli *cli;
	struct ckpt_engine *engines[COMPARE_SIDES];
	uint64_t steps[COMPARE_SIDES]; /* numbers */
	uint64_t generations[COMPARE_SIDES];
	struct compare_tensor *tensors;
	size_t count;
	uint64_t batch_bytes; /* of each side's buffer, unless a row is larger */

	/* Its own. */
	char *buffers[COMPARE_SIDES];
	uint64_t buffer_bytes;
	size_t tensor; /* where the next batch begins */
	uint64_t row;
};

/*
 * Fills in what differs. Returns the library's code of the first failure, which is its last error; -ENOMEM may have
 * none, and -ESTALE (the step of that number is of another generation now) has none.
 */
int compare_run(struct compare *compare);

#endif
