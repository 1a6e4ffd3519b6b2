/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that wait for their turn. */
#include "engine/pacer.h"

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(CKPT_CONTAINER(timer, struct ckpt_pacer, timer)->waiter);
}

uint64_t ckpt_pacer_share(uint64_t bytes_per_s, uint32_t node_ranks)
{
	if (bytes_per_s == 0 || node_ranks < 2)
		return bytes_per_s;
	return ckpt_max_u64(bytes_per_s / node_ranks, 1);
}

void ckpt_pacer_init(struct ckpt_pacer *pacer, struct ckpt_core *core, uint64_t bytes_per_s)
{
	pacer->core = core;
	pacer->rate.bytes_per_s = bytes_per_s;
	pacer->timer.fire = timer_fired;
}

bool ckpt_pacer_take(struct ckpt_pacer *pacer, uint64_t bytes, struct ckpt_task *waiter)
{
	uint64_t again_ns =
		ckpt_rate_take(&pacer->rate, ckpt_env_now(pacer->core->parts.env), bytes);

	ckpt_core_timer_clear(pacer->core, &pacer->timer);
	if (again_ns == 0)
		return true;
	pacer->waiter = waiter;
	ckpt_core_timer_set(pacer->core, &pacer->timer, again_ns);
	return false;
}

void ckpt_pacer_stop(struct ckpt_pacer *pacer)
{
	ckpt_core_timer_clear(pacer->core, &pacer->timer);
}
