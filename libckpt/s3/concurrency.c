/* SPDX-License-Identifier: Apache-2.0 */
/* How many requests are sent at once. */
#include "s3/concurrency.h"

#define SECOND_NS UINT64_C(1000000000)

void ckpt_s3_concurrency_init(struct ckpt_s3_concurrency *pace, unsigned most, uint64_t now_ns)
{
	CKPT_ASSERT(most > 0);
	*pace = (struct ckpt_s3_concurrency){.most = most, .now = most, .good_ns = now_ns};
}

/* Requests that were in flight together are throttled together: that counts once. */
bool ckpt_s3_concurrency_throttled(struct ckpt_s3_concurrency *pace, uint64_t now_ns)
{
	pace->good_ns = now_ns;
	if (pace->cut && now_ns - pace->cut_ns < SECOND_NS)
		return false;
	pace->cut = true;
	pace->cut_ns = now_ns;
	if (pace->now == 1)
		return false;
	pace->now /= 2;
	return true;
}

bool ckpt_s3_concurrency_success(struct ckpt_s3_concurrency *pace, uint64_t now_ns)
{
	if (pace->now == pace->most || now_ns - pace->good_ns < SECOND_NS)
		return false;
	pace->good_ns = now_ns;
	pace->now++;
	return true;
}
