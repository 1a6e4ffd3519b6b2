/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a directory. */
#ifndef CKPT_IO_IO_LIST_H
#define CKPT_IO_IO_LIST_H

#include "io/io.h"

/* The names in `fd`, a directory open for reading, which is closed. 0 or -errno. */
int ckpt_io_list(int fd, struct ckpt_listing *ret_listing);

#endif
