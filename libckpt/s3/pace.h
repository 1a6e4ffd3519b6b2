/* SPDX-License-Identifier: Apache-2.0 */
/* How much is asked of a server at once. Pure: the caller has the clock. */
#ifndef CKPT_S3_PACE_H
#define CKPT_S3_PACE_H

#include "base/attr.h"

/* How many requests may be under way: half as many when the server is asked too often, one more after each good second. */
struct ckpt_s3_pace {
	unsigned most;
	unsigned now;
	bool cut;
	uint64_t cut_ns;  /* when it last became less */
	uint64_t good_ns; /* since when nothing was throttled, or it last became more */
};

/* `most` >= 1. */
void ckpt_s3_pace_init(struct ckpt_s3_pace *pace, unsigned most, uint64_t now_ns);
/* A request was throttled, or has succeeded. True: `now` has changed. */
bool ckpt_s3_pace_throttled(struct ckpt_s3_pace *pace, uint64_t now_ns);
bool ckpt_s3_pace_success(struct ckpt_s3_pace *pace, uint64_t now_ns);

#endif
