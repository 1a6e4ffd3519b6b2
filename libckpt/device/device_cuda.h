/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in the memory of a GPU: copies on a stream of its own. */
#ifndef CKPT_DEVICE_DEVICE_CUDA_H
#define CKPT_DEVICE_DEVICE_CUDA_H

#include "base/error.h"
#include "device/cuda_api.h"
#include "device/device.h"

/*
 * Opens the GPU that CUDA counts as `index`. `major`: of the CUDA that the program uses, or 0, see cuda_load.h. Nothing
 * is loaded and no CUDA function is called earlier, nor in a forked child, nor at exit.
 */
int ckpt_device_cuda_open(struct ckpt_env *env, int index, int major, struct ckpt_error *err,
	struct ckpt_device **ret_device);

/* The same on a runtime that was found before. */
int ckpt_device_cuda_open_on(struct ckpt_env *env, int index, const struct ckpt_cuda_api *api,
	struct ckpt_error *err, struct ckpt_device **ret_device);

#endif
