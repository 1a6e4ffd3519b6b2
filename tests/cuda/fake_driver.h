/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a GPU: libcuda.so.1 hands its calls to the fake runtime, which has the streams. */
#ifndef CKPT_TESTS_FAKE_DRIVER_H
#define CKPT_TESTS_FAKE_DRIVER_H

#include "device/cuda_api.h"

/* CUresult */
enum {
	FAKE_INVALID_CONTEXT = 201, /* CUDA_ERROR_INVALID_CONTEXT */
	FAKE_INVALID_PTX = 218,     /* CUDA_ERROR_INVALID_PTX */
	FAKE_NOT_FOUND = 500,       /* CUDA_ERROR_NOT_FOUND */
};

/* Exported by libcuda.so.1: the runtime that it is beside says what its functions do. The first that comes is it. */
void fake_driver_connect(const struct ckpt_cuda_driver *driver);

#endif
