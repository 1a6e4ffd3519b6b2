/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the CUDA runtime that the program uses, so that nothing is linked and machines without a GPU need
 * nothing. What is found stays loaded for the life of the process.
 */
#ifndef CKPT_DEVICE_CUDA_LOAD_H
#define CKPT_DEVICE_CUDA_LOAD_H

#include <dlfcn.h>
#include <link.h>
#include "base/error.h"
#include "device/cuda_api.h"

/* The dynamic linker, whose functions these are. */
struct ckpt_cuda_load_ops {
	void *(*dlopen)(const char *name, int flags);
	void *(*dlsym)(void *handle, const char *name);
	char *(*dlerror)(void);
	int (*dladdr)(const void *address, Dl_info *info);
	int (*dl_iterate_phdr)(
		int (*each)(struct dl_phdr_info *info, size_t size, void *data), void *data);
};

/*
 * Looks for the runtime of version `major` (0: of any that is known). Where there are several the first of these is
 * taken: the one that PyTorch was linked with, if that is loaded; the one among the program's symbols (linked with
 * it, within it, or loaded for all to see); one that is loaded under the usual name of `major`; the others that are
 * loaded, oldest first; that on the disk (of 0: libcudart.so, else the newer). One that cannot be used is an error,
 * because a second one beside it is not what the program uses. With a `major`, those of others are passed over. `ops`
 * NULL: the real one.
 */
int ckpt_cuda_load(const struct ckpt_cuda_load_ops *ops, int major, struct ckpt_error *err,
	struct ckpt_cuda_api *ret_api);

#endif
