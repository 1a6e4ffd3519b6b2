/* SPDX-License-Identifier: Apache-2.0 */
/* What happens after a try. */
#include "s3/retry.h"

#include <errno.h>
#include <string.h>

#include "s3/date.h"

#define COST_AGAIN     10
#define COST_THROTTLED 5
#define BASE_AGAIN_MS  50
#define BASE_SLOW_MS   1000
#define CAP_MS         20000
#define AMZ_MORE_MS    5000 /* x-amz-retry-after may exceed the drawn pause by at most this */
#define DAY_MS         UINT64_C(86400000)

struct known {
	const char *code;
	enum ckpt_s3_verdict verdict;
};

/* Codes that are more specific than the status. */
static const struct known codes[] = {
	{"SlowDown", CKPT_S3_THROTTLED},
	{"SlowDownRead", CKPT_S3_THROTTLED},
	{"SlowDownWrite", CKPT_S3_THROTTLED},
	{"Throttling", CKPT_S3_THROTTLED},
	{"ThrottlingException", CKPT_S3_THROTTLED},
	{"ThrottledException", CKPT_S3_THROTTLED},
	{"RequestThrottled", CKPT_S3_THROTTLED},
	{"RequestThrottledException", CKPT_S3_THROTTLED},
	{"RequestLimitExceeded", CKPT_S3_THROTTLED},
	{"BandwidthLimitExceeded", CKPT_S3_THROTTLED},
	{"TooManyRequests", CKPT_S3_THROTTLED},
	{"TooManyRequestsException", CKPT_S3_THROTTLED},
	{"ServiceUnavailable", CKPT_S3_THROTTLED},
	{"InternalError", CKPT_S3_AGAIN},
	{"InternalFailure", CKPT_S3_AGAIN},
	{"RequestTimeout", CKPT_S3_AGAIN},
	{"RequestTimeoutException", CKPT_S3_AGAIN},
	{"IDPCommunicationError", CKPT_S3_AGAIN},
	/* Other bytes have arrived than were sent: something on the way has changed or cut them. */
	{"BadDigest", CKPT_S3_AGAIN},
	{"IncompleteBody", CKPT_S3_AGAIN},
	{"XAmzContentSHA256Mismatch", CKPT_S3_AGAIN},
	{"XAmzContentChecksumMismatch", CKPT_S3_AGAIN},
	{"ExpiredToken", CKPT_S3_REFRESH},
	{"ExpiredTokenException", CKPT_S3_REFRESH},
	{"TokenRefreshRequired", CKPT_S3_REFRESH},
	{"RequestTimeTooSkewed", CKPT_S3_CLOCK},
	{"RequestExpired", CKPT_S3_CLOCK},
	{"AuthorizationHeaderMalformed", CKPT_S3_MOVED},
	{"PermanentRedirect", CKPT_S3_MOVED},
	{"TemporaryRedirect", CKPT_S3_MOVED},
	{"IllegalLocationConstraintException", CKPT_S3_MOVED},
};

static enum ckpt_s3_verdict judge_result(int result)
{
	switch (result) {
	case CKPT_ENETWORK:
	case -ETIMEDOUT:
	/* Not HTTP, or too many headers: a broken proxy. */
	case CKPT_EFORMAT:
		return CKPT_S3_AGAIN;
	default:
		return CKPT_S3_FAILED;
	}
}

static enum ckpt_s3_verdict judge_status(int status)
{
	switch (status) {
	case 301:
	case 302:
	case 307:
	case 308:
		return CKPT_S3_MOVED;
	case 408:
	case 425:
	case 500:
	case 502:
	case 504:
		return CKPT_S3_AGAIN;
	case 429:
	case 503:
	case 509:
		return CKPT_S3_THROTTLED;
	default:
		return CKPT_S3_FAILED;
	}
}

enum ckpt_s3_verdict ckpt_s3_judge(const struct ckpt_s3_outcome *outcome)
{
	bool success = outcome->status >= 200 && outcome->status < 300;

	if (outcome->result < 0)
		return judge_result(outcome->result);
	if (success && outcome->code[0] == 0)
		return CKPT_S3_DONE;
	/* 304: the condition of a GET does not hold; a normal result. */
	if (outcome->status == 304)
		return CKPT_S3_DONE;
	for (size_t i = 0; i < CKPT_COUNT(codes); i++) {
		if (strcmp(outcome->code, codes[i].code) == 0)
			return codes[i].verdict;
	}
	/* Concurrent requests. A multipart upload fails with that, and is begun again by the caller. */
	if (outcome->conditional && outcome->status == 409 &&
		(strcmp(outcome->code, "ConditionalRequestConflict") == 0 ||
			strcmp(outcome->code, "OperationAborted") == 0))
		return CKPT_S3_AGAIN;
	/* An error in the body of a 2xx response: the status means nothing. */
	return success ? CKPT_S3_FAILED : judge_status(outcome->status);
}

void ckpt_s3_budget_earn(struct ckpt_s3_budget *budget)
{
	budget->spent -= budget->spent > 0;
}

bool ckpt_s3_budget_spare(struct ckpt_s3_budget *budget)
{
	if (budget->spent + COST_AGAIN > CKPT_S3_BUDGET / 10)
		return false;
	budget->spent += COST_AGAIN;
	return true;
}

/* Exponential with full jitter: random from 0 to a maximum that doubles. */
static uint64_t draw(uint64_t base_ms, unsigned failed, uint64_t random)
{
	uint64_t most = CAP_MS;

	if (failed - 1 < 32 && base_ms << (failed - 1) < CAP_MS)
		most = base_ms << (failed - 1);
	return random % (most + 1);
}

/* Corrections are made once, and the request is repeated at once. */
static enum ckpt_s3_why_not once(bool *done)
{
	if (*done)
		return CKPT_S3_HOPELESS;
	*done = true;
	return CKPT_S3_GO;
}

static enum ckpt_s3_why_not mend(struct ckpt_s3_tries *tries, enum ckpt_s3_verdict verdict)
{
	switch (verdict) {
	case CKPT_S3_REFRESH:
		return once(&tries->refreshed);
	case CKPT_S3_CLOCK:
		return once(&tries->clock_set);
	case CKPT_S3_MOVED:
		return once(&tries->moved);
	default:
		return CKPT_S3_HOPELESS;
	}
}

enum ckpt_s3_why_not ckpt_s3_tries_next(struct ckpt_s3_tries *tries, struct ckpt_s3_budget *budget,
	enum ckpt_s3_verdict verdict, const struct ckpt_s3_delays *delays, uint64_t *ret_wait_ms)
{
	unsigned most = tries->most ? tries->most : CKPT_S3_ATTEMPTS;
	bool slow = verdict == CKPT_S3_THROTTLED;
	uint32_t cost = slow ? COST_THROTTLED : COST_AGAIN;
	uint64_t wait;
	bool broke;

	CKPT_ASSERT(verdict != CKPT_S3_DONE);
	if (verdict != CKPT_S3_AGAIN && !slow) {
		*ret_wait_ms = 0;
		return mend(tries, verdict);
	}
	tries->failed++;
	tries->free += tries->patient;
	if (!tries->patient && tries->failed - tries->free >= most)
		return CKPT_S3_TOO_MANY;
	broke = budget->spent + cost > CKPT_S3_BUDGET;
	/* A killed server fails all requests in flight, many times at once. That alone must not use up the tries. */
	if (broke && !slow)
		wait = draw(BASE_SLOW_MS, ++tries->late, delays->random);
	else
		wait = draw(slow ? BASE_SLOW_MS : BASE_AGAIN_MS, tries->failed, delays->random);
	wait = ckpt_max_u64(wait, ckpt_min_u64(delays->amz_retry_after_ms, wait + AMZ_MORE_MS));
	wait = ckpt_max_u64(wait, delays->retry_after_ms);
	if (wait >= delays->left_ms)
		return CKPT_S3_NO_TIME;
	if (!broke)
		budget->spent += cost;
	*ret_wait_ms = wait;
	return CKPT_S3_GO;
}

/* Digits only; UINT64_MAX: something else. At most a day. */
static uint64_t whole_number(const char *value, uint64_t unit_ms)
{
	uint64_t number = 0;

	if (*value == 0)
		return UINT64_MAX;
	for (; *value; value++) {
		if (*value < '0' || *value > '9')
			return UINT64_MAX;
		number = ckpt_min_u64(number * 10 + (uint64_t)(*value - '0'), DAY_MS);
	}
	return ckpt_min_u64(number * unit_ms, DAY_MS);
}

uint64_t ckpt_s3_retry_after_ms(const char *value, uint64_t now_s)
{
	uint64_t number = whole_number(value, 1000);
	uint64_t date;

	if (number != UINT64_MAX)
		return number;
	if (!ckpt_s3_date_http(value, &date) || date <= now_s)
		return 0;
	return ckpt_min_u64((date - now_s) * 1000, DAY_MS);
}

uint64_t ckpt_s3_amz_retry_after_ms(const char *value)
{
	uint64_t number = whole_number(value, 1);

	return number == UINT64_MAX ? 0 : number;
}
