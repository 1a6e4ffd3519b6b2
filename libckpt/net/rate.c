/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limit: each byte advances the time at which the next may be taken. */
#include "net/rate.h"

#define NS_PER_S  UINT64_C(1000000000)
#define PIECE_MIN 4096

uint64_t ckpt_rate_take(struct ckpt_rate *rate, uint64_t now_ns, uint64_t bytes)
{
	if (rate->bytes_per_s == 0)
		return 0;
	/* Cannot overflow: nobody takes more than a buffer of libcurl at once. */
	uint64_t cost_ns = (bytes * NS_PER_S + rate->bytes_per_s - 1) / rate->bytes_per_s;
	uint64_t oldest = now_ns > CKPT_RATE_BURST_NS ? now_ns - CKPT_RATE_BURST_NS : 0;
	uint64_t free_ns = atomic_load(&rate->free_ns);
	uint64_t after;

	CKPT_ASSERT(bytes <= UINT32_MAX);
	do {
		if (free_ns > now_ns)
			return free_ns;
		after = ckpt_max_u64(free_ns, oldest) + cost_ns;
	} while (!atomic_compare_exchange_weak(&rate->free_ns, &free_ns, after));
	return 0;
}

uint64_t ckpt_rate_piece(const struct ckpt_rate *rate, uint64_t most)
{
	uint64_t piece = rate->bytes_per_s / (NS_PER_S / CKPT_RATE_BURST_NS);

	if (rate->bytes_per_s == 0)
		return most;
	return ckpt_min_u64(most, ckpt_max_u64(piece, PIECE_MIN));
}
