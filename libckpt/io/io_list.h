/* SPDX-License-Identifier: Apache-2.0 */
/* Listing of directories. */
#ifndef CKPT_IO_IO_LIST_H
#define CKPT_IO_IO_LIST_H

#include "io/io.h"

/* Lists the directory `fd`, which must be open for reading, and closes it. 0 or -errno. */
int ckpt_io_list(int fd, struct ckpt_listing *ret_listing);

#endif
