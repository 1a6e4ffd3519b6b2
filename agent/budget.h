/* SPDX-License-Identifier: Apache-2.0 */
/* Whether slots fit: into what the agent may use, and into what the machine and its control groups have. */
#ifndef CKPT_AGENT_BUDGET_H
#define CKPT_AGENT_BUDGET_H

#include "agent_state.h"

/* What a slot takes, if it gets huge pages. */
uint64_t agent_budget_slot(uint64_t capacity);
/*
 * Promises a rank the slots that it asks for, and the other ranks of its generation as many. -ENOMEM: that would not fit, and
 * nothing has changed; sets `err`.
 */
int agent_budget_promise(struct agent *agent, struct agent_rank *rank,
	const struct ckpt_peer_message *question, struct ckpt_error *err);
/* Whether the rank can have a slot made now, in place of `old`, which may be NULL. -ENOMEM; sets `err`. */
int agent_budget_slot_fits(struct agent *agent, struct agent_rank *rank, struct agent_slot *old,
	struct ckpt_error *err);

#endif
