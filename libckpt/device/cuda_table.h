/* SPDX-License-Identifier: Apache-2.0 */
/* The table of one launch, and room for its samples, in pinned memory of the device's own. Kept, and grown. */
#ifndef CKPT_DEVICE_CUDA_TABLE_H
#define CKPT_DEVICE_CUDA_TABLE_H

#include "base/fail.h"
#include "device/cuda_pins.h"
#include "device/cuda_span.h"

struct ckpt_cuda_table {
	void *memory;              /* NULL: none yet */
	struct ckpt_cuda_pin *pin; /* of the whole pages in it */
	struct ckpt_cuda_span *spans;
	uint64_t *samples;
	uint64_t seen_spans; /* where the GPU has both */
	uint64_t seen_samples;
	uint32_t count; /* spans in it */
	uint32_t room;
};

/*
 * Empties it and makes room, which nothing that was launched may still use. A cudaError_t, with what failed. The table
 * is as good as new then.
 */
int ckpt_cuda_table_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_table *table,
	size_t spans, const char **ret_what);
/* Precondition: there is room. */
void ckpt_cuda_table_add(struct ckpt_cuda_table *table, const struct ckpt_cuda_span *span);
void ckpt_cuda_table_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_table *table);

#endif
