/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the GPU by which a grid goes whose staging no kernel reaches, because it is not pinned: the copy engine
 * moves it between there and here in the order of its bytes, a kernel between here and where its elements are. One, and
 * in the one stream: each piece waits for the one before. Had when it is first needed, and kept.
 */
#ifndef CKPT_DEVICE_CUDA_RELAY_H
#define CKPT_DEVICE_CUDA_RELAY_H

#include "device/cuda_api.h"
#include "device/cuda_grid.h"

/* A copy of less would be slower. The memory is the training's, which may have taken nearly all. */
#define CKPT_CUDA_RELAY ((uint64_t)4 << 20)

struct ckpt_cuda_relay {
	char *memory; /* of the GPU; NULL: none yet */
};

/* A cudaError_t. */
int ckpt_cuda_relay_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay);
/* Where CKPT_CUDA_RELAY bytes lie which are aligned as those at `staged`. */
char *ckpt_cuda_relay_at(const struct ckpt_cuda_relay *relay, const char *staged);
/* Waits until the GPU does nothing, if there is any. */
void ckpt_cuda_relay_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay);

#endif
