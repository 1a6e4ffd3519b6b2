/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a path to a descriptor, without leaving the directory that it is relative to and without
 * following a symbolic link: by openat2() where the kernel allows it, else one component at a time.
 */
#ifndef CKPT_IO_IO_PATH_H
#define CKPT_IO_IO_PATH_H

#include <sys/types.h>
#include "base/compiler.h"

/* Components that are neither empty nor "." nor "..", with one '/' between them. */
bool ckpt_io_path_valid(const char *path);

/*
 * Opens `path`, or `root` itself if it is ".". O_CLOEXEC and O_NOFOLLOW are added. A descriptor or
 * -errno; -EINVAL for a path that is not valid, -ELOOP or -ENOTDIR when a symbolic link is in the way.
 */
int ckpt_io_path_open(int root, const char *path, int flags, mode_t mode);

/* Opens the directory that holds `path`'s last component, and points to that component. */
int ckpt_io_path_parent(int root, const char *path, const char **ret_name);

#endif
