/* SPDX-License-Identifier: Apache-2.0 */
/* A record of a catalog's list, and its encoding; for catalog*.c only. */
#ifndef CKPT_FORMAT_CATALOG_RUN_H
#define CKPT_FORMAT_CATALOG_RUN_H

#include "format/catalog.h"

#define CKPT_CATALOG_MAGIC       "CKPTCAT" /* with its NUL: eight bytes */
#define CKPT_CATALOG_MAGIC_BYTES 8
#define CKPT_CATALOG_LOOP_BITS   2 /* low bits of a record's first number: its number of loops */

/* Seven bits per byte, lowest first, in as few bytes as possible. */
void ckpt_put_varint(struct ckpt_buf *out, uint64_t value);
/* The sign is the lowest bit: 0, -1, 1, -2 become 0, 1, 2, 3. */
void ckpt_put_zigzag(struct ckpt_buf *out, int64_t value);

/*
 * Decodes the record at *at, whose first rank must be at least `least`, and moves *at behind it. Returns NULL, or why
 * it is invalid for that tensor and world: all boxes must be within the tensor, and ranks must ascend.
 */
const char *ckpt_catalog_read_run(const unsigned char **at, const unsigned char *end,
	uint64_t least, const struct ckpt_catalog_tensor *tensor, uint32_t world,
	struct ckpt_catalog_run *ret_run);

/* Sets the range of starts of a decoded record. */
void ckpt_catalog_set_hulls(struct ckpt_catalog_run *run, uint32_t ndim);

#endif
