/* SPDX-License-Identifier: Apache-2.0 */
/* Small text files with which the kernel answers, whole. */
#ifndef CKPT_BASE_PROCFS_H
#define CKPT_BASE_PROCFS_H

#include "base/buf.h"

/*
 * Appends the text of the file `path` below `root` ("" is the system's) to an empty `text` and ends it
 * with a NUL. False, and an empty `text`, if it cannot be read or is absurdly long.
 */
bool ckpt_procfs_read(const char *root, const char *path, struct ckpt_buf *text);

#endif
