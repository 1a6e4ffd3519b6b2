/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on bytes per second of what goes to a remote store in a directory, where no client of HTTP keeps it: a block
 * waits until those before it are paid for. In any T seconds at most rate * (T + 20 ms) bytes are let through, and one block.
 */
#ifndef CKPT_ENGINE_PACER_H
#define CKPT_ENGINE_PACER_H

#include "engine/core.h"
#include "net/rate.h"

struct ckpt_pacer {
	struct ckpt_core *core;
	struct ckpt_rate rate;
	struct ckpt_timer timer;
	struct ckpt_task *waiter; /* of the timer */
};

/* Of a node's bound, what is one rank's of so many there (0: not known, one). 0: no bound. */
uint64_t ckpt_pacer_share(uint64_t bytes_per_s, uint32_t node_ranks);

void ckpt_pacer_init(struct ckpt_pacer *pacer, struct ckpt_core *core, uint64_t bytes_per_s);
/* Whether so many bytes may go now; else `waiter` is woken when it is to ask again. One asks at a time. */
bool ckpt_pacer_take(struct ckpt_pacer *pacer, uint64_t bytes, struct ckpt_task *waiter);
/* Nobody waits any more. */
void ckpt_pacer_stop(struct ckpt_pacer *pacer);

#endif
