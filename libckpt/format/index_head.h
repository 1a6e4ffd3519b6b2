/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed part of an index: see FORMAT.md for the table. All numbers are little-endian. */
#ifndef CKPT_FORMAT_INDEX_HEAD_H
#define CKPT_FORMAT_INDEX_HEAD_H

#include "base/compiler.h"

#define CKPT_INDEX_MAGIC       "CKPTIDX" /* with its NUL: eight bytes */
#define CKPT_INDEX_MAGIC_BYTES 8
#define CKPT_INDEX_HEAD_BYTES  72   /* in this minor version */
#define CKPT_INDEX_HEAD_MAX    4096 /* in any later one */
#define CKPT_INDEX_RECORD      28   /* of a chunk */

struct ckpt_index_head {
	uint32_t major;
	uint32_t minor;
	uint32_t head_bytes;
	uint32_t rank;
	uint64_t shard_bytes;
	uint64_t header_bytes;
	uint64_t chunk_bytes;
	uint64_t tensors_bytes;
	uint64_t meta_bytes;
	uint64_t chunk_count;
};

static inline uint32_t ckpt_le32(const unsigned char *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
	       (uint32_t)at[3] << 24;
}

static inline uint64_t ckpt_le64(const unsigned char *at)
{
	return (uint64_t)ckpt_le32(at) | (uint64_t)ckpt_le32(at + 4) << 32;
}

#endif
