/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that wait for their turn. */
#include "engine/core/rate_limit.h"

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(CKPT_CONTAINER(timer, struct ckpt_rate_limit, timer)->waiter);
}

uint64_t ckpt_rate_limit_share(uint64_t bytes_per_s, uint32_t node_ranks)
{
	if (bytes_per_s == 0 || node_ranks < 2)
		return bytes_per_s;
	return ckpt_max_u64(bytes_per_s / node_ranks, 1);
}

void ckpt_rate_limit_init(
	struct ckpt_rate_limit *rate_limit, struct ckpt_core *core, uint64_t bytes_per_s)
{
	rate_limit->core = core;
	rate_limit->rate.bytes_per_s = bytes_per_s;
	rate_limit->timer.fire = timer_fired;
}

bool ckpt_rate_limit_take(
	struct ckpt_rate_limit *rate_limit, uint64_t bytes, struct ckpt_task *waiter)
{
	uint64_t again_ns =
		ckpt_rate_take(&rate_limit->rate, ckpt_env_now(rate_limit->core->parts.env), bytes);

	ckpt_core_timer_clear(rate_limit->core, &rate_limit->timer);
	if (again_ns == 0)
		return true;
	rate_limit->waiter = waiter;
	ckpt_core_timer_set(rate_limit->core, &rate_limit->timer, again_ns);
	return false;
}

void ckpt_rate_limit_stop(struct ckpt_rate_limit *rate_limit)
{
	ckpt_core_timer_clear(rate_limit->core, &rate_limit->timer);
}
