/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a directory's file system takes O_DIRECT: found out by doing it. */
#ifndef CKPT_IO_IO_DIRECT_H
#define CKPT_IO_IO_DIRECT_H

#include "base/compiler.h"

/* Of memory, offsets and lengths: what staging has. A file system that asks for more gets the cache. */
#define CKPT_IO_ALIGN 4096

/* What the name of the file begins with that is made for this, where no file can be made without one. */
#define CKPT_IO_PROBE ".probe-"

/*
 * Writes and reads back a file in `root` that is gone afterwards, or, when it may not write there, reads from
 * one of the files that are there. False if neither worked, for whatever reason.
 */
bool ckpt_io_direct_works(int root, bool read_only);

#endif
