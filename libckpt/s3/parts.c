/* SPDX-License-Identifier: Apache-2.0 */
/* How an object is cut into the parts of an upload. */
#include "s3/parts.h"

#include <errno.h>

#include "base/fail.h"

#define MIB (UINT64_C(1) << 20)

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

int ckpt_s3_parts_plan(uint64_t size, uint64_t wanted, uint64_t block_bytes, struct ckpt_error *err,
	struct ckpt_s3_parts *ret_parts)
{
	uint64_t block = block_bytes ? block_bytes : MIB;
	uint64_t least;
	uint64_t part;

	if (size > CKPT_S3_OBJECT_MAX)
		return ckpt_fail(err, -EFBIG,
			"an object of %llu bytes is more than S3 holds, which are %llu (48.8 TiB)",
			(unsigned long long)size, (unsigned long long)CKPT_S3_OBJECT_MAX);
	if (wanted > CKPT_S3_PART_MAX)
		return ckpt_fail(err, -EINVAL,
			"parts of %llu bytes are more than S3 takes, which are %llu (5 GiB)",
			(unsigned long long)wanted, (unsigned long long)CKPT_S3_PART_MAX);
	CKPT_ASSERT(block <= CKPT_S3_PART_MAX);
	least = round_up((size + CKPT_S3_PARTS_MAX - 1) / CKPT_S3_PARTS_MAX, MIB);
	part = wanted ? ckpt_max_u64(wanted, CKPT_S3_PART_MIN) : CKPT_S3_PART_DEFAULT;
	part = round_up(ckpt_max_u64(part, least), block);
	/* A block that is no part of 5 GiB: the greatest that is not more. */
	if (part > CKPT_S3_PART_MAX)
		part = CKPT_S3_PART_MAX / block * block;
	if (part < least && (size + part - 1) / part > CKPT_S3_PARTS_MAX)
		return ckpt_fail(err, -EFBIG,
			"an object of %llu bytes cannot be sent in %d parts of whole blocks of "
			"%llu bytes: "
			"choose blocks of which 5 GiB is a multiple",
			(unsigned long long)size, CKPT_S3_PARTS_MAX, (unsigned long long)block);
	*ret_parts = (struct ckpt_s3_parts){.size = size,
		.part_bytes = part,
		.count = size > 0 ? (uint32_t)((size + part - 1) / part) : 1,
		.single = size <= part};
	return 0;
}

void ckpt_s3_parts_range(const struct ckpt_s3_parts *parts, uint32_t number, uint64_t *ret_offset,
	uint64_t *ret_length)
{
	CKPT_ASSERT(number >= 1 && number <= parts->count);
	*ret_offset = (number - 1) * parts->part_bytes;
	*ret_length = ckpt_min_u64(parts->part_bytes, parts->size - *ret_offset);
}
