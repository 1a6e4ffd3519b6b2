/* SPDX-License-Identifier: Apache-2.0 */
/* One record of a catalog's list, and the numbers that it is made of; for catalog*.c only. */
#ifndef CKPT_FORMAT_CATALOG_RUN_H
#define CKPT_FORMAT_CATALOG_RUN_H

#include "format/catalog.h"

#define CKPT_CATALOG_MAGIC       "CKPTCAT" /* and its NUL: eight bytes */
#define CKPT_CATALOG_MAGIC_BYTES 8
#define CKPT_CATALOG_LOOP_BITS   2 /* of a record's first number: how many loops it has */

/* Seven bits a byte, the lowest first, no more bytes than it needs. */
void ckpt_put_varint(struct ckpt_buf *out, uint64_t value);
/* A sign as the lowest bit: 0, -1, 1, -2 are 0, 1, 2, 3. */
void ckpt_put_zigzag(struct ckpt_buf *out, int64_t value);

/*
 * Reads the record at *at, which begins with rank `least` at the earliest, and moves on behind it. NULL,
 * or why it cannot be one of that tensor in that world: nothing of it reaches out of the whole, and its
 * ranks ascend.
 */
const char *ckpt_catalog_read_run(const unsigned char **at, const unsigned char *end,
	uint64_t least, const struct ckpt_catalog_tensor *tensor, uint32_t world,
	struct ckpt_catalog_run *ret_run);

/* Of a record that has been read: how far its loops take it. */
void ckpt_catalog_set_hulls(struct ckpt_catalog_run *run, uint32_t ndim);

#endif
