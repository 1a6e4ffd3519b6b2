/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on bytes per second of what goes to a remote store in a directory, where no client of HTTP keeps it: a block
 * waits until those before it are paid for. In any T seconds at most rate * (T + 20 ms) bytes are let through, and one block.
 */
#ifndef CKPT_ENGINE_CORE_RATE_LIMIT_H
#define CKPT_ENGINE_CORE_RATE_LIMIT_H

#include "engine/core/core.h"
#include "net/rate.h"

struct ckpt_rate_limit {
	struct ckpt_core *core;
	struct ckpt_rate rate;
	struct ckpt_timer timer;
	struct ckpt_task *waiter; /* of the timer */
};

/* Of a node's bound, what is one rank's of so many there (0: not known, one). 0: no bound. */
uint64_t ckpt_rate_limit_share(uint64_t bytes_per_s, uint32_t node_ranks);

void ckpt_rate_limit_init(
	struct ckpt_rate_limit *rate_limit, struct ckpt_core *core, uint64_t bytes_per_s);
/* Whether so many bytes may go now; else `waiter` is woken when it is to ask again. One asks at a time. */
bool ckpt_rate_limit_take(
	struct ckpt_rate_limit *rate_limit, uint64_t bytes, struct ckpt_task *waiter);
/* Nobody waits any more. */
void ckpt_rate_limit_stop(struct ckpt_rate_limit *rate_limit);

#endif
