/* SPDX-License-Identifier: Apache-2.0 */
/* How many requests are sent to a server at once. Pure: the caller passes the time. */
#ifndef CKPT_S3_CONCURRENCY_H
#define CKPT_S3_CONCURRENCY_H

#include "base/compiler.h"

/* Most requests in flight: halved when the server throttles, one more after each second without that. */
struct ckpt_s3_concurrency {
	unsigned most;
	unsigned now;
	bool cut;
	uint64_t cut_ns;  /* when it was last reduced */
	uint64_t good_ns; /* when throttling last ended, or `now` last grew */
};

/* `most` >= 1. */
void ckpt_s3_concurrency_init(struct ckpt_s3_concurrency *pace, unsigned most, uint64_t now_ns);
/* A request was throttled, or has succeeded. True: `now` has changed. */
bool ckpt_s3_concurrency_throttled(struct ckpt_s3_concurrency *pace, uint64_t now_ns);
bool ckpt_s3_concurrency_success(struct ckpt_s3_concurrency *pace, uint64_t now_ns);

#endif
