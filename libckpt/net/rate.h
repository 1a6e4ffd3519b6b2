/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit of bytes per second, shared by threads. In any T seconds at most rate * (T + CKPT_RATE_BURST) bytes pass,
 * plus the last piece.
 */
#ifndef CKPT_NET_RATE_H
#define CKPT_NET_RATE_H

#include <stdatomic.h>
#include "base/compiler.h"

#define CKPT_RATE_BURST_NS 20000000

struct ckpt_rate {
	uint64_t bytes_per_s;     /* 0: no limit */
	_Atomic uint64_t free_ns; /* when all bytes taken so far are paid for */
};

/* Takes `bytes` and returns 0, or takes nothing and returns when to try again. Any thread. */
uint64_t ckpt_rate_take(struct ckpt_rate *rate, uint64_t now_ns, uint64_t bytes);

/* How many bytes to take at once, so that no request waits long for another. */
uint64_t ckpt_rate_piece(const struct ckpt_rate *rate, uint64_t most);

#endif
