/* SPDX-License-Identifier: Apache-2.0 */
/* Tests whether a directory's file system supports O_DIRECT, by using it. */
#ifndef CKPT_IO_IO_DIRECT_H
#define CKPT_IO_IO_DIRECT_H

#include "base/compiler.h"

/*
 * Alignment of memory, offsets and lengths, as in staging. A file system that needs more is used through the page
 * cache.
 */
#define CKPT_IO_ALIGN 4096

/* Prefix of the test file's name, where no file can be made without one. */
#define CKPT_IO_PROBE ".probe-"

/*
 * Writes and reads back a temporary file in `root`, or reads an existing one if `read_only` or `root` is not writable.
 * False if neither worked, for whatever reason.
 */
bool ckpt_io_direct_works(int root, bool read_only);

#endif
