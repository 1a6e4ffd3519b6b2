/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory, and its addresses on a GPU. Used by one thread, as the runtime's current device is per thread. */
#ifndef CKPT_DEVICE_CUDA_HOST_REGISTER_H
#define CKPT_DEVICE_CUDA_HOST_REGISTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/cuda_api.h"

struct ckpt_cuda_pin {
	struct ckpt_cuda_pin *next;
	char *base;
	size_t size;
	uint64_t seen; /* address of `base` on the GPU; 0: none */
	bool own;      /* else another GPU of the process has pinned it, and will unpin it */
};

/*
 * They return a cudaError_t. Memory that another GPU of the process has pinned is only recorded, all of it or none.
 * Memory that cannot be mapped for the GPU is pinned nevertheless, but kernels cannot use it.
 */
int ckpt_cuda_host_register_add(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base, size_t size);
/* Memory that cannot be unpinned stays in the list, and cannot be pinned again. */
int ckpt_cuda_host_register_remove(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base);
/* Unpins all; failures are ignored, because the device is lost or closes. */
void ckpt_cuda_host_register_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins);
/* Whether a registration begins there: no copy crosses that. */
bool ckpt_cuda_host_register_begin(const struct ckpt_cuda_pin *pins, const void *at);
/* The GPU's address of these bytes; 0: none for all of them. */
uint64_t ckpt_cuda_host_register_find(
	const struct ckpt_cuda_pin *pins, const void *bytes, size_t size);

#endif
