/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens after a try: whether a request is repeated, after which pause, and with what corrected. Pure: time,
 * random
 * numbers and responses are passed in.
 *
 * The tries at one server share a budget of quick retries, so that a server that fails every request does not receive
 * ten times as many. When it is used up, pauses are as long as for a server that throttles.
 */
#ifndef CKPT_S3_RETRY_H
#define CKPT_S3_RETRY_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* The outcome of a try. */
struct ckpt_s3_outcome {
	int result;       /* 0: a complete response; else the code of the HTTP client */
	int status;       /* of the answer */
	const char *code; /* S3's code in <Error>; "" */
	bool conditional; /* PutObject with If-None-Match or If-Match */
};

enum ckpt_s3_verdict {
	CKPT_S3_DONE = 1,
	CKPT_S3_AGAIN,     /* retry: the server or the network failed */
	CKPT_S3_THROTTLED, /* retry, with fewer requests at once: throttled */
	CKPT_S3_REFRESH,   /* retry with new keys */
	CKPT_S3_CLOCK,     /* retry with the server's time, from its Date header */
	CKPT_S3_MOVED,     /* retry with the region that the server names */
	CKPT_S3_FAILED,    /* do not retry: it would fail again */
};

enum ckpt_s3_verdict ckpt_s3_judge(const struct ckpt_s3_outcome *outcome);

#define CKPT_S3_BUDGET 500

/* Zero: full. */
struct ckpt_s3_budget {
	uint32_t spent;
};
/* A request has succeeded. */
void ckpt_s3_budget_earn(struct ckpt_s3_budget *budget);
/*
 * Pays for a hedging try. False: these may use only a tenth of the budget, so that a server in trouble gets no
 * additional requests, and a slow one at most one for every ten that succeed.
 */
bool ckpt_s3_budget_spare(struct ckpt_s3_budget *budget);

#define CKPT_S3_ATTEMPTS 10

/* State of one request. Zero: no try was made. */
struct ckpt_s3_tries {
	unsigned failed;
	unsigned late; /* of these, after the budget was used up */
	unsigned most; /* 0: CKPT_S3_ATTEMPTS */
	bool patient;  /* `most` does not limit it: only the deadline does */
	unsigned free; /* of `failed`, those that do not count */
	/* Each correction is made once. */
	bool refreshed;
	bool clock_set;
	bool moved;
};

enum ckpt_s3_why_not {
	CKPT_S3_GO = 0,
	CKPT_S3_HOPELESS, /* the verdict is final, or its correction was made before */
	CKPT_S3_TOO_MANY, /* too many tries */
	CKPT_S3_NO_TIME,  /* the deadline is too close */
};

struct ckpt_s3_delays {
	uint64_t retry_after_ms;     /* of Retry-After; 0: none */
	uint64_t amz_retry_after_ms; /* of x-amz-retry-after */
	uint64_t left_ms;            /* until the deadline */
	uint64_t random;
};

/* Whether to try again, and after how many milliseconds. `verdict` is not DONE. */
enum ckpt_s3_why_not ckpt_s3_tries_next(struct ckpt_s3_tries *tries, struct ckpt_s3_budget *budget,
	enum ckpt_s3_verdict verdict, const struct ckpt_s3_delays *delays, uint64_t *ret_wait_ms);

/* Retry-After: seconds or an HTTP date; `now_s` by the server's clock. 0: invalid. */
uint64_t ckpt_s3_retry_after_ms(const char *value, uint64_t now_s);
/* x-amz-retry-after, in milliseconds. */
uint64_t ckpt_s3_amz_retry_after_ms(const char *value);

#endif
