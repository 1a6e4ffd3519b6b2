/* SPDX-License-Identifier: Apache-2.0 */
/* How an object is divided into parts of an upload. */
#include "s3/multipart.h"

const struct ckpt_s3_limits ckpt_s3_limits = {.part_min = UINT64_C(5) << 20,
	.part_max = UINT64_C(5) << 30,
	.object_max = CKPT_S3_OBJECT_MAX,
	.parts_max = CKPT_S3_PARTS_MAX};

uint64_t ckpt_s3_parts_room(const struct ckpt_s3_limits *limits, uint64_t block_bytes)
{
	CKPT_ASSERT(block_bytes > 0 && block_bytes <= limits->part_max);
	uint64_t part = limits->part_max / block_bytes * block_bytes;

	return ckpt_min_u64(limits->object_max, part * limits->parts_max);
}

uint64_t ckpt_s3_parts_bytes(
	const struct ckpt_s3_limits *limits, uint64_t block_bytes, uint64_t size)
{
	CKPT_ASSERT(size <= ckpt_s3_parts_room(limits, block_bytes));
	uint64_t least =
		ckpt_max_u64(limits->part_min, (size + limits->parts_max - 1) / limits->parts_max);
	uint64_t part = ckpt_max_u64(1, (least + block_bytes - 1) / block_bytes) * block_bytes;

	CKPT_ASSERT(part <= limits->part_max);
	return part;
}
