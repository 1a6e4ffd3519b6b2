/* SPDX-License-Identifier: Apache-2.0 */
/* How much is asked of a server at once. Pure: the caller has the clock. */
#ifndef CKPT_S3_CONCURRENCY_H
#define CKPT_S3_CONCURRENCY_H

#include "base/compiler.h"

/* How many requests may be under way: half as many when the server is asked too often, one more after each good second. */
struct ckpt_s3_concurrency {
	unsigned most;
	unsigned now;
	bool cut;
	uint64_t cut_ns;  /* when it last became less */
	uint64_t good_ns; /* since when nothing was throttled, or it last became more */
};

/* `most` >= 1. */
void ckpt_s3_concurrency_init(struct ckpt_s3_concurrency *pace, unsigned most, uint64_t now_ns);
/* A request was throttled, or has succeeded. True: `now` has changed. */
bool ckpt_s3_concurrency_throttled(struct ckpt_s3_concurrency *pace, uint64_t now_ns);
bool ckpt_s3_concurrency_success(struct ckpt_s3_concurrency *pace, uint64_t now_ns);

#endif
