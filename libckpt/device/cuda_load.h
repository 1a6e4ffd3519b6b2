/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the CUDA runtime that the program uses, so that nothing is linked, and machines without a GPU need nothing. It
 * stays loaded until the process ends.
 */
#ifndef CKPT_DEVICE_CUDA_LOAD_H
#define CKPT_DEVICE_CUDA_LOAD_H

#include <dlfcn.h>
#include <link.h>
#include "base/error.h"
#include "device/cuda_api.h"

/* Functions of the dynamic linker. */
struct ckpt_cuda_load_ops {
	void *(*dlopen)(const char *name, int flags);
	void *(*dlsym)(void *handle, const char *name);
	char *(*dlerror)(void);
	int (*dladdr)(const void *address, Dl_info *info);
	int (*dl_iterate_phdr)(
		int (*each)(struct dl_phdr_info *info, size_t size, void *data), void *data);
};

/*
 * Finds the runtime of version `major` (0: any known one). If there are several, takes the first of: the one that
 * PyTorch is linked with, if that is loaded; the one among the program's symbols (linked, static, or loaded globally);
 * one that is loaded under the usual name of `major`; others that are loaded, oldest first; one on the disk (for 0:
 * libcudart.so, else the newer). A runtime that cannot be used is an error, because the program does not use another
 * one. With a `major`, others are skipped. `ops` NULL: the real linker.
 */
int ckpt_cuda_load(const struct ckpt_cuda_load_ops *ops, int major, struct ckpt_error *err,
	struct ckpt_cuda_api *ret_api);

#endif
