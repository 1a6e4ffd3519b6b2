/* SPDX-License-Identifier: Apache-2.0 */
/* How an object is cut into the parts of an upload. */
#ifndef CKPT_S3_MULTIPART_H
#define CKPT_S3_MULTIPART_H

#include "base/compiler.h"
#include "s3/response_parts.h"

struct ckpt_s3_limits {
	uint64_t part_min; /* but for the last */
	uint64_t part_max; /* also of an object in one request */
	uint64_t object_max;
	uint32_t parts_max;
};

/* What AWS takes. A server that takes less refuses the upload of a larger object. */
extern const struct ckpt_s3_limits ckpt_s3_limits;

/* The greatest object that goes up in parts of whole blocks. `block_bytes` is at most the greatest part. */
uint64_t ckpt_s3_parts_room(const struct ckpt_s3_limits *limits, uint64_t block_bytes);
/* Bytes of every part but the last of an object that is no greater: the fewest blocks that do. */
uint64_t ckpt_s3_parts_bytes(
	const struct ckpt_s3_limits *limits, uint64_t block_bytes, uint64_t size);

#endif
