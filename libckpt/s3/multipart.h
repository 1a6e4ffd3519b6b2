/* SPDX-License-Identifier: Apache-2.0 */
/* How an object is divided into parts of an upload. */
#ifndef CKPT_S3_MULTIPART_H
#define CKPT_S3_MULTIPART_H

#include "base/compiler.h"
#include "s3/response_parts.h"

struct ckpt_s3_limits {
	uint64_t part_min; /* except the last part */
	uint64_t part_max; /* also the largest object of one request */
	uint64_t object_max;
	uint32_t parts_max;
};

/* AWS's limits. A server with lower ones refuses the upload of a larger object. */
extern const struct ckpt_s3_limits ckpt_s3_limits;

/* The largest object that can be uploaded in parts of whole blocks. `block_bytes` is at most part_max. */
uint64_t ckpt_s3_parts_room(const struct ckpt_s3_limits *limits, uint64_t block_bytes);
/* The part size for an object of at most that size: the fewest blocks that suffice. */
uint64_t ckpt_s3_parts_bytes(
	const struct ckpt_s3_limits *limits, uint64_t block_bytes, uint64_t size);

#endif
