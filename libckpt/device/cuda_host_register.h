/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory, and where a GPU has it. One thread's, as the runtime's current device is. */
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
	uint64_t seen; /* the GPU's address of `base`; 0: it has none */
	bool own;      /* else another GPU of the process has pinned it, and will unpin it */
};

/*
 * They return a cudaError_t. What another GPU of the process has pinned is only noted, all of it or none. Memory that
 * cannot be shown to the GPU is pinned all the same: kernels do not find it.
 */
int ckpt_cuda_host_register_add(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base, size_t size);
/* What cannot be unpinned stays in the list, and nothing else is pinned there. */
int ckpt_cuda_host_register_remove(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base);
/* All of them, and the list: a failure concerns nobody, the device is lost, or closes. */
void ckpt_cuda_host_register_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins);
/* Whether one begins there: no copy goes from one into the next. */
bool ckpt_cuda_host_register_begin(const struct ckpt_cuda_pin *pins, const void *at);
/* The GPU's address of these bytes; 0: it has none of all of them. */
uint64_t ckpt_cuda_host_register_find(
	const struct ckpt_cuda_pin *pins, const void *bytes, size_t size);

#endif
