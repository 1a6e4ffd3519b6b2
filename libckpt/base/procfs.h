/* SPDX-License-Identifier: Apache-2.0 */
/* Reads small text files of the kernel. */
#ifndef CKPT_BASE_PROCFS_H
#define CKPT_BASE_PROCFS_H

#include "base/buf.h"

/*
 * Appends the file `path` below `root` ("" is the system's) and a NUL to an empty `text`. False, with an empty `text`,
 * if it cannot be read or is too long.
 */
bool ckpt_procfs_read(const char *root, const char *path, struct ckpt_buf *text);

#endif
