/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows a try: whether a request is made again, after how long, and with what mended. Pure: time,
 * randomness and answers come from the caller.
 *
 * Tries of one server share a budget of quick ones, so that one that fails everything is not asked ten times as often:
 * when it is spent they are as far apart as those of a server that is asked too often.
 */
#ifndef CKPT_S3_RETRY_H
#define CKPT_S3_RETRY_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* What a try ended in. */
struct ckpt_s3_outcome {
	int result;       /* 0: a whole answer; or the code of the HTTP client */
	int status;       /* of the answer */
	const char *code; /* S3's, of <Error>; "" */
	bool conditional; /* PutObject with If-None-Match or If-Match */
};

enum ckpt_s3_verdict {
	CKPT_S3_DONE = 1,
	CKPT_S3_AGAIN,     /* the server or the way to it failed */
	CKPT_S3_THROTTLED, /* it is asked too often: fewer at once, too */
	CKPT_S3_REFRESH,   /* with new keys */
	CKPT_S3_CLOCK,     /* with the server's time, of its Date */
	CKPT_S3_MOVED,     /* with the region that it names */
	CKPT_S3_FAILED,    /* the same would follow */
};

enum ckpt_s3_verdict ckpt_s3_judge(const struct ckpt_s3_outcome *outcome);

#define CKPT_S3_BUDGET 500

/* Zero is a full one. */
struct ckpt_s3_budget {
	uint32_t spent;
};
/* A request has succeeded. */
void ckpt_s3_budget_earn(struct ckpt_s3_budget *budget);
/*
 * Pays for a try that no failure has called for. False: a tenth is all that is for such, so that a server in trouble
 * is not asked for more, nor one that is slow more than once for every ten that go through.
 */
bool ckpt_s3_budget_spare(struct ckpt_s3_budget *budget);

#define CKPT_S3_ATTEMPTS 10

/* Of one request. Zero: no try has been made. */
struct ckpt_s3_tries {
	unsigned failed;
	unsigned late; /* of these, when the budget was spent */
	unsigned most; /* 0: CKPT_S3_ATTEMPTS */
	bool patient;  /* this one does not count for `most`: the deadline alone ends such */
	unsigned free; /* of `failed`, those that did not */
	/* What helps, helps once. */
	bool refreshed;
	bool clock_set;
	bool moved;
};

enum ckpt_s3_why_not {
	CKPT_S3_GO = 0,
	CKPT_S3_HOPELESS, /* the verdict, or what would mend it was done before */
	CKPT_S3_TOO_MANY, /* tries */
	CKPT_S3_NO_TIME,  /* before the deadline */
};

struct ckpt_s3_delays {
	uint64_t retry_after_ms;     /* of Retry-After; 0: there is none */
	uint64_t amz_retry_after_ms; /* of x-amz-retry-after */
	uint64_t left_ms;            /* until the deadline */
	uint64_t random;
};

/* Whether to go on, and after how many milliseconds. `verdict` is not DONE. */
enum ckpt_s3_why_not ckpt_s3_tries_next(struct ckpt_s3_tries *tries, struct ckpt_s3_budget *budget,
	enum ckpt_s3_verdict verdict, const struct ckpt_s3_delays *delays, uint64_t *ret_wait_ms);

/* Retry-After, seconds or a date of HTTP; `now_s` by the clock of the server. 0: nothing that can be read. */
uint64_t ckpt_s3_retry_after_ms(const char *value, uint64_t now_s);
/* x-amz-retry-after, milliseconds. */
uint64_t ckpt_s3_amz_retry_after_ms(const char *value);

#endif
