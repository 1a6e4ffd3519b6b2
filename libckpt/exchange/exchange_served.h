/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that the program serves: the core's side. */
#ifndef CKPT_EXCHANGE_EXCHANGE_SERVED_H
#define CKPT_EXCHANGE_EXCHANGE_SERVED_H

#include "exchange/exchange_server.h"

/*
 * A request without an answer is given up after this time, or after a quarter of the caller's remaining time if that is
 * less, and at once if the caller needs it no more.
 */
#define CKPT_SERVED_PATIENCE_NS     UINT64_C(3000000000)
#define CKPT_SERVED_PATIENCE_MIN_NS UINT64_C(100000000)

/* All is borrowed; the server is attached; `session` is valid, and copied. -ENOMEM. */
int ckpt_exchange_served_open(struct ckpt_sched *sched, struct ckpt_timers *timers,
	struct ckpt_env *env, struct ckpt_exchange_server *server, const char *session,
	struct ckpt_exchange **ret_exchange);

#endif
