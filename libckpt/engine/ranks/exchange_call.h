/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the other ranks something, or waiting until one of several things has been told. What the
 * exchange refuses or loses is tried again, with growing pauses, until it works, the deadline comes, or
 * the owner stops it.
 */
#ifndef CKPT_ENGINE_RANKS_EXCHANGE_CALL_H
#define CKPT_ENGINE_RANKS_EXCHANGE_CALL_H

#include "engine/core/core.h"
#include "exchange/exchange.h"

struct ckpt_exchange_call {
	struct ckpt_task task; /* await `finished`, look at `result` */

	/* Set by the owner before it starts. */
	struct ckpt_core *core;
	const int *stop;      /* not 0: give up, with this code. Whoever sets it wakes the task */
	uint64_t deadline_ns; /* -ETIMEDOUT then; UINT64_MAX: none */
	uint64_t
		answer_ns; /* what was asked by the deadline may be answered until then; 0: the same */
	uint64_t since_ns;        /* pauses grow from then on; 0: from the start */
	uint64_t rest_ns;         /* between two questions, at least; 0: what serves best */
	struct ckpt_error *err;   /* worded: why the deadline came */
	struct ckpt_task *waiter; /* woken at the end */
	struct ckpt_exchange_item items[CKPT_EXCHANGE_BATCH];
	size_t count;

	/* Its own. */
	struct ckpt_exchange_call *next; /* in core->talks */
	struct ckpt_exchange_op op;
	struct ckpt_error why; /* the last failure of the exchange */
	struct ckpt_timer timer;
	uint64_t begun_ns;
	uint64_t
		parting_ns; /* the engine closes: how long it is told all the same; 0: it does not close */
};

/* The items' keys and data are set; they stay the owner's. -EEXIST: another value is there, for good. */
void ckpt_exchange_call_put(struct ckpt_exchange_call *call);
/* The engine closes: nothing is heard any more, and told for a moment only. CKPT_ECLOSED. */
void ckpt_exchange_call_stop_all(struct ckpt_core *core);
/* The items' keys are set: nobody asks for them any more. Tried once. */
void ckpt_exchange_call_drop(struct ckpt_exchange_call *call);
/* The items' keys are set. Ends as soon as one of them has data, which are the owner's to free. */
void ckpt_exchange_call_get(struct ckpt_exchange_call *call);

#endif
