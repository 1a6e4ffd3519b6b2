/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that makes memory: touching a GiB takes half a second, for which the agent's loop must not stand still. An
 * order belongs to it from agent_maker_order() until agent_maker_take() gives it back.
 */
#ifndef CKPT_AGENT_MAKER_H
#define CKPT_AGENT_MAKER_H

#include "base/inbox.h"
#include "peer/slot_header.h"

struct agent_order {
	struct ckpt_node node; /* run() is for who takes it back */
	struct ckpt_peer_slot_fixed fixed;
	bool given_up; /* atomic; by its owner: nobody waits for it, so it ends soon */
	/* The result: */
	int code;
	int fd; /* if code is 0 */
	struct ckpt_error error;
};

struct agent_maker;

/* Sets `err`. */
int agent_maker_open(struct ckpt_error *err, struct agent_maker **ret_maker);
/* Waits for the orders, which were given up. Their owners must still be there. NULL is ignored. */
void agent_maker_close(struct agent_maker *maker);
void agent_maker_order(struct agent_maker *maker, struct agent_order *order);
void agent_maker_give_up(struct agent_order *order);
/* Readable when an order is done. */
int agent_maker_eventfd(const struct agent_maker *maker);
/* The orders that are done, linked by node.next; NULL: none. */
struct ckpt_node *agent_maker_take(struct agent_maker *maker);

#endif
