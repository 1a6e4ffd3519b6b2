/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue between the core and the threads of a program that serves the exchange, see ckpt/exchange.h.
 * It has owners: the program, and the engine that it serves.
 *
 * A request is a copy of what the core asks, so that nothing which the program holds goes away under it. It
 * belongs to the server; with an answer it goes to the core, through the inbox. One that the core has given
 * up is freed by whoever answers it, or with the server: nobody waits for the program.
 */
#ifndef CKPT_EXCHANGE_EXCHANGE_SERVER_H
#define CKPT_EXCHANGE_EXCHANGE_SERVER_H

#include <stdatomic.h>
#include <ckpt/exchange.h>
#include "base/env.h"
#include "base/timer.h"
#include "exchange/exchange.h"

#define CKPT_SERVER_OPEN_MAX 16 /* requests that were handed out and not answered */

enum ckpt_request_state {
	CKPT_REQUEST_WAITING = 1, /* for a thread of the program */
	CKPT_REQUEST_HANDED,      /* out */
	CKPT_REQUEST_ANSWERING,   /* a thread is in ckpt_server_reply() with it */
	CKPT_REQUEST_ANSWERED,    /* on its way to the core, or there */
};

struct ckpt_request {
	/* The core's. */
	struct ckpt_node node;   /* the way of the answer; `run` frees the request */
	struct ckpt_timer timer; /* the deadline */
	struct ckpt_exchange *exchange;
	struct ckpt_exchange_op *op;

	/* Fixed when it is posted. */
	uint64_t deadline_ns;
	uint32_t verb;
	uint32_t count;
	const char *keys[CKPT_EXCHANGE_BATCH]; /* in `text`, as the values are */
	const void *values[CKPT_EXCHANGE_BATCH];
	uint64_t lengths[CKPT_EXCHANGE_BATCH];
	char *text;

	/* The server's, guarded by its lock. */
	struct ckpt_request *next;
	uint64_t id;
	enum ckpt_request_state state;
	bool given_up;

	/* Of whoever answers; the core's with the answer. */
	int result;
	char reason[200];
	void *got[CKPT_EXCHANGE_BATCH];
	uint64_t got_lengths[CKPT_EXCHANGE_BATCH];
};

/* The keys are SESSION/KEY. NULL: out of memory. */
struct ckpt_request *ckpt_request_new(const char *session, const struct ckpt_exchange_op *op);
void ckpt_request_free(struct ckpt_request *request);

/* The program's hold. -ENOMEM. */
int ckpt_server_new(struct ckpt_exchange_server **ret_server);
/* The engine's hold; answers go to `inbox`. -EBUSY when an engine has it, or had it. */
int ckpt_server_attach(struct ckpt_exchange_server *server, struct ckpt_inbox *inbox);
/* NULL is ignored. */
void ckpt_server_unref(struct ckpt_exchange_server *server);
bool ckpt_server_forked(const struct ckpt_exchange_server *server);

/* Core: takes the request over. False: the server is quiet, and the request still the caller's. */
bool ckpt_server_post(struct ckpt_exchange_server *server, struct ckpt_request *request);
/*
 * Core: waits no longer. WAITING: the request is the caller's. ANSWERED: the answer comes all the same.
 * HANDED: it may be gone by now.
 */
enum ckpt_request_state ckpt_server_give_up(
	struct ckpt_exchange_server *server, struct ckpt_request *request);

/* Any thread. See ckpt/exchange.h; the structs are complete. What is wrong is worded into `err`. */
void ckpt_server_quiet(struct ckpt_exchange_server *server);
int ckpt_server_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request);
int ckpt_server_reply(struct ckpt_exchange_server *server,
	const struct ckpt_exchange_answer *answer, struct ckpt_error *err);

#endif
