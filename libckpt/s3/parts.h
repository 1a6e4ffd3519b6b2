/* SPDX-License-Identifier: Apache-2.0 */
/* How an object is cut into the parts of an upload. */
#ifndef CKPT_S3_PARTS_H
#define CKPT_S3_PARTS_H

#include <ckpt/error.h>
#include "base/attr.h"
#include "s3/reply_parts.h"

#define CKPT_S3_PART_MIN     (UINT64_C(5) << 20)  /* but for the last */
#define CKPT_S3_PART_MAX     (UINT64_C(5) << 30)  /* also of an object in one request */
#define CKPT_S3_PART_DEFAULT (UINT64_C(16) << 20) /* fewer requests than with the 8 MiB of others */

struct ckpt_s3_parts {
	uint64_t size;       /* of the object */
	uint64_t part_bytes; /* of every part but the last */
	uint32_t count;      /* at least 1 */
	bool single;         /* one PutObject, and no upload in parts */
};

/*
 * `wanted` bytes (0: the default) in each part, more if 10,000 parts would not do. A multiple of
 * `block_bytes`, which are what memory comes in (0: of 1 MiB). -EFBIG, -EINVAL with words.
 */
int ckpt_s3_parts_plan(uint64_t size, uint64_t wanted, uint64_t block_bytes, struct ckpt_error *err,
	struct ckpt_s3_parts *ret_parts);

/* Of the part `number`, from 1 to `count`: where it lies. */
void ckpt_s3_parts_range(const struct ckpt_s3_parts *parts, uint32_t number, uint64_t *ret_offset,
	uint64_t *ret_length);

#endif
