/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens paths without leaving the directory that they are relative to and without following symbolic links: by
 * openat2() where the kernel allows it, else one component at a time.
 */
#ifndef CKPT_IO_IO_PATH_H
#define CKPT_IO_IO_PATH_H

#include <sys/types.h>
#include "base/compiler.h"

/* True if no component is empty, "." or "..", with one '/' between them. */
bool ckpt_io_path_valid(const char *path);

/*
 * Opens `path`, or `root` itself if it is ".". Adds O_CLOEXEC and O_NOFOLLOW. Returns a descriptor or -errno: -EINVAL
 * for an invalid path, -ELOOP or -ENOTDIR for a symbolic link in it.
 */
int ckpt_io_path_open(int root, const char *path, int flags, mode_t mode);

/* Opens the directory of the last component of `path`, and sets a pointer to that component. */
int ckpt_io_path_parent(int root, const char *path, const char **ret_name);

#endif
