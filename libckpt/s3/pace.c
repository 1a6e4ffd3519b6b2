/* SPDX-License-Identifier: Apache-2.0 */
/* How much is asked of a server at once, and for how long its answer is waited for. */
#include "s3/pace.h"

#include <stdlib.h>

#define SECOND_NS UINT64_C(1000000000)

#define SAMPLES_MIN  10
#define LIMIT_MIN_MS 1000
#define SLOW_MS      5000 /* a server that takes so long as a rule is never hurried */
#define SLACK_MS     700  /* above what is usual */
#define COUNT_MAX    4096 /* of first bytes, before older ones count for less */

void ckpt_s3_pace_init(struct ckpt_s3_pace *pace, unsigned most, uint64_t now_ns)
{
	CKPT_ASSERT(most > 0);
	*pace = (struct ckpt_s3_pace){.most = most, .now = most, .good_ns = now_ns};
}

/* Of what was under way together, many are throttled at once: that is one reason and not many. */
bool ckpt_s3_pace_throttled(struct ckpt_s3_pace *pace, uint64_t now_ns)
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

bool ckpt_s3_pace_success(struct ckpt_s3_pace *pace, uint64_t now_ns)
{
	if (pace->now == pace->most || now_ns - pace->good_ns < SECOND_NS)
		return false;
	pace->good_ns = now_ns;
	pace->now++;
	return true;
}

void ckpt_s3_patience_init(struct ckpt_s3_patience *patience, unsigned connections)
{
	uint64_t wanted = ckpt_max_u64(SAMPLES_MIN, connections);

	*patience = (struct ckpt_s3_patience){
		.wanted = (unsigned)ckpt_min_u64(wanted, CKPT_S3_PATIENCE_SAMPLES_MAX)};
}

uint32_t ckpt_s3_patience_ms(const struct ckpt_s3_patience *patience)
{
	return (uint32_t)(patience->limit_us / 1000);
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a;
	uint32_t y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Enough was seen: what nine of ten have kept to. */
static void decide(struct ckpt_s3_patience *p)
{
	uint64_t p90;

	if (p->total_ms / p->wanted >= SLOW_MS) {
		p->off = true;
		return;
	}
	qsort(p->samples_ms, p->wanted, sizeof(p->samples_ms[0]), by_size);
	p90 = p->samples_ms[(p->wanted * 9 + 9) / 10 - 1];
	if (p90 > SLOW_MS)
		p->off = true;
	else
		p->limit_us = 1000 * ckpt_max_u64(LIMIT_MIN_MS, p90);
}

void ckpt_s3_patience_success(
	struct ckpt_s3_patience *patience, uint64_t first_byte_ms, uint64_t whole_ms)
{
	struct ckpt_s3_patience *p = patience;
	uint32_t sample = (uint32_t)ckpt_min_u64(first_byte_ms, UINT32_MAX / 2);
	uint64_t usual;

	if (p->off)
		return;
	if (p->count == COUNT_MAX) {
		p->count /= 2;
		p->sum_ms /= 2;
	}
	p->sum_ms += sample;
	p->count++;
	if (p->seen < p->wanted) {
		p->samples_ms[p->seen++] = sample;
		p->total_ms += ckpt_min_u64(whole_ms, UINT32_MAX);
		if (p->seen == p->wanted)
			decide(p);
		return;
	}
	p->ended++;
	/* A hundredth of the way to what is usual, and some more. */
	usual = 1000 * (p->sum_ms / p->count + SLACK_MS);
	p->limit_us = (p->limit_us * 99 + usual) / 100;
}

void ckpt_s3_patience_late(struct ckpt_s3_patience *patience)
{
	struct ckpt_s3_patience *p = patience;

	if (p->limit_us == 0)
		return;
	p->ended++;
	p->late++;
	if (p->late * 100 > p->ended)
		p->limit_us += UINT64_C(1000000);
	else if (p->late * 1000 > p->ended)
		p->limit_us += UINT64_C(100000);
	else
		return;
	p->late = 0;
	p->ended = 0;
	if (p->limit_us > UINT64_C(1000) * SLOW_MS) {
		p->off = true;
		p->limit_us = 0;
	}
}
