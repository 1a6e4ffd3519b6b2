/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is asked of a server at once, and for how long its answer is waited for. Both learn from what
 * was seen. Pure: the caller has the clock.
 */
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

/*
 * When to give a part up whose answer does not begin, and send it again on another connection. S3 mostly
 * answers 0.2 s after the last byte, and about one part in a thousand takes 5 s. Until enough was seen,
 * and where all is slow, there is no such limit.
 */
#define CKPT_S3_PATIENCE_SAMPLES_MAX 256

struct ckpt_s3_patience {
	unsigned wanted; /* samples, before anything is decided */
	unsigned seen;
	bool off; /* the server is slow as a whole */
	uint32_t samples_ms[CKPT_S3_PATIENCE_SAMPLES_MAX];
	uint64_t total_ms; /* of the whole requests while sampling */
	uint64_t limit_us; /* 0: none */
	uint64_t sum_ms;   /* of first bytes, and their number */
	uint64_t count;
	uint64_t ended; /* requests since the limit was last raised, and those that ran into it */
	uint64_t late;
};

/* `connections` at once to the server. */
void ckpt_s3_patience_init(struct ckpt_s3_patience *patience, unsigned connections);
/* From the last byte that was sent; 0: no limit but the caller's. */
uint32_t ckpt_s3_patience_ms(const struct ckpt_s3_patience *patience);
/* A part was taken: its first byte came so long after the last that was sent, and the whole took so long. */
void ckpt_s3_patience_success(
	struct ckpt_s3_patience *patience, uint64_t first_byte_ms, uint64_t whole_ms);
/* One was given up for its limit. */
void ckpt_s3_patience_late(struct ckpt_s3_patience *patience);

#endif
