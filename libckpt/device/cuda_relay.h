/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A buffer in the GPU's memory, for grids whose staging is not pinned, so that kernels cannot reach it: the copy engine
 * moves the bytes between staging and the buffer, a kernel between the buffer and the elements. There is one, used in
 * one stream, so each piece waits for the previous one. Allocated when it is first needed, and kept.
 */
#ifndef CKPT_DEVICE_CUDA_RELAY_H
#define CKPT_DEVICE_CUDA_RELAY_H

#include "device/cuda_api.h"
#include "device/cuda_grid.h"

/* Smaller copies would be slower. The memory is taken from the training, which may have little left. */
#define CKPT_CUDA_RELAY ((uint64_t)4 << 20)

struct ckpt_cuda_relay {
	char *memory; /* on the GPU; NULL: none yet */
};

/* A cudaError_t. */
int ckpt_cuda_relay_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay);
/* Address of CKPT_CUDA_RELAY bytes with the alignment of `staged`. */
char *ckpt_cuda_relay_at(const struct ckpt_cuda_relay *relay, const char *staged);
/* Waits until the GPU is idle, if there is a buffer. */
void ckpt_cuda_relay_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay);

#endif
