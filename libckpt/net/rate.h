/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bound on bytes per second that threads share. In any T seconds at most rate * (T + CKPT_RATE_BURST) bytes are
 * let through, and what was taken last.
 */
#ifndef CKPT_NET_RATE_H
#define CKPT_NET_RATE_H

#include <stdatomic.h>
#include "base/compiler.h"

#define CKPT_RATE_BURST_NS 20000000

struct ckpt_rate {
	uint64_t bytes_per_s;     /* 0: no bound */
	_Atomic uint64_t free_ns; /* when all that was taken has been paid for */
};

/* Takes `bytes` and returns 0; else when to ask again, and nothing is taken. Any thread. */
uint64_t ckpt_rate_take(struct ckpt_rate *rate, uint64_t now_ns, uint64_t bytes);

/* How many bytes should be asked for at once, so that none waits long for another. */
uint64_t ckpt_rate_piece(const struct ckpt_rate *rate, uint64_t most);

#endif
