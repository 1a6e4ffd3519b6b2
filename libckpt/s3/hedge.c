/* SPDX-License-Identifier: Apache-2.0 */
/* Latencies of parts, and which part in flight is far slower than its peers. */
#include "s3/hedge.h"

#include <stdlib.h>

#define SECOND_NS UINT64_C(1000000000)
#define LEAST_NS  (3 * SECOND_NS) /* no part is sent again earlier */
#define TIMES     4               /* times the latency of nine of ten peers */
#define ENOUGH    5               /* peers that are needed per slow part */

void ckpt_s3_hedge_ended(
	struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns, uint64_t now_ns)
{
	peers->last[peers->count++ % CKPT_S3_HEDGE_KEPT] = (struct ckpt_s3_peer){
		.length = length, .took_ns = now_ns - begun_ns, .ended_ns = now_ns};
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t ckpt_s3_hedge_look(const struct ckpt_s3_hedge *peers, uint64_t length, uint64_t begun_ns,
	uint64_t now_ns, unsigned lagging)
{
	uint64_t took_ns[CKPT_S3_HEDGE_KEPT];
	uint64_t kept = ckpt_min_u64(peers->count, CKPT_S3_HEDGE_KEPT);
	uint64_t due_ns = begun_ns + LEAST_NS;
	size_t count = 0;

	for (uint64_t i = 0; i < kept; i++) {
		const struct ckpt_s3_peer *peer = &peers->last[i];
		/* The latency of a much smaller part does not count. */
		if (peer->ended_ns > begun_ns && peer->length >= length / 2)
			took_ns[count++] = peer->took_ns;
	}
	if (count < ENOUGH * (size_t)lagging)
		return ckpt_max_u64(due_ns, now_ns + SECOND_NS);
	qsort(took_ns, count, sizeof(took_ns[0]), by_size);
	due_ns = ckpt_max_u64(due_ns, begun_ns + TIMES * took_ns[(count * 9 + 9) / 10 - 1]);
	return ckpt_max_u64(due_ns, now_ns);
}
