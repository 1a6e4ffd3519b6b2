/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange in front of another one, of one rank: what is asked is delayed, lost, done and reported as
 * failed, done twice; or the server behind it has died, and answers errors, or nothing.
 */
#ifndef CROWD_EXCHANGE_H
#define CROWD_EXCHANGE_H

#include "exchange/exchange.h"
#include "sim.h"

/* How it is for all ranks; changed while it runs. */
struct crowd_weather {
	unsigned lost; /* chances per 10,000 that an operation fails, and was done or not */
	unsigned late; /* ... that it takes up to late_ns */
	uint64_t late_ns;
	bool dead;   /* everything fails from now on */
	bool silent; /* ... or is never answered, until the weather changes */
};

/* Takes `inner` over. Never fails. */
struct ckpt_exchange *crowd_exchange_new(
	struct sim *sim, const struct crowd_weather *weather, struct ckpt_exchange *inner);
/*
 * The clock has gone on: hands over what was delayed, and says whether there was any. Returns when the next
 * one is; UINT64_MAX: none.
 */
uint64_t crowd_exchange_land(struct ckpt_exchange *exchange, bool *ret_woke);
/* Its process is dead: what it had of the product's memory is swept away. NULL is ignored. */
void crowd_exchange_forget(struct ckpt_exchange *exchange);

#endif
