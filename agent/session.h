/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection of a client. It belongs to the agent's loop. One that has ended stays, without a socket, until the loop has
 * gone once round and the maker has given back its order.
 */
#ifndef CKPT_AGENT_SESSION_H
#define CKPT_AGENT_SESSION_H

#include "agent_state.h"
#include "maker.h"

#define AGENT_READINGS_MAX 64
/* What an event is of that only makes the loop look again: a process without a session has ended. */
#define AGENT_WAKES        NULL

struct agent_session {
	struct agent_session *next; /* in the agent's list */
	struct agent *agent;
	int socket; /* -1: it has ended */
	struct agent_process *process;
	/* If it is attached: */
	struct agent_rank *rank;
	uint64_t writer;
	uint64_t generation;
	struct agent_slot *filling; /* it may write to that; NULL: none */
	/* What it reads. */
	unsigned readings;
	struct agent_slot *reading[AGENT_READINGS_MAX];
	/* The question that waits for memory. */
	bool making;
	struct ckpt_peer_message question;
	struct agent_order order;
};

/* Takes the socket. False: out of memory; it was closed. */
bool agent_session_open(struct agent *agent, int socket);
/* It is no rank's any more. */
void agent_session_leave(struct agent_session *session);
/* Closes it, and lets go of all that it has. */
void agent_session_end(struct agent_session *session);
/* Frees those that have ended. */
void agent_sessions_sweep(struct agent *agent);

/* Answers. `fd` goes along unless it is -1. A client that does not take its answers is ended. */
void agent_session_reply(
	struct agent_session *session, const struct ckpt_peer_message *answer, int fd);
void agent_session_ok(struct agent_session *session);
/* Answers with an error, whose message goes along. */
void agent_session_refuse(struct agent_session *session, const struct ckpt_error *err);
CKPT_PRINTF(3, 4)
void agent_session_refuse_text(struct agent_session *session, int code, const char *fmt, ...);

/*
 * Has a slot made for its rank, of the rank's capacity, and drops `old` for it, which may be NULL. `made` runs on the loop when
 * it is there. False: it does not fit; the client was told, and nothing was dropped.
 */
bool agent_session_order(struct agent_session *session, struct agent_slot *old,
	void (*made)(struct ckpt_node *node));
/*
 * In `made`: the slot, which belongs to the rank. NULL: there is none; the client was told, unless the session has ended
 * meanwhile.
 */
struct agent_slot *agent_session_made(struct agent_session *session);

#endif
