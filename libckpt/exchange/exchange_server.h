/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue between the core and the threads of a program that serves the exchange, see ckpt/exchange.h. It has two
 * references: the program's, and that of the engine.
 *
 * A request is a copy of what the core asks, so that the program never holds memory of the core. It belongs to the
 * server
 * until it is answered; then it goes to the core through the inbox. A request that the core has given up is freed by
 * the
 * thread that answers it, or with the server: nobody waits for the program.
 */
#ifndef CKPT_EXCHANGE_EXCHANGE_SERVER_H
#define CKPT_EXCHANGE_EXCHANGE_SERVER_H

#include <stdatomic.h>
#include <ckpt/exchange.h>
#include "base/env.h"
#include "base/timer.h"
#include "exchange/exchange.h"

#define CKPT_SERVER_OPEN_MAX 16 /* most requests that are handed out and not answered */

enum ckpt_request_state {
	CKPT_REQUEST_WAITING = 1, /* not handed out yet */
	CKPT_REQUEST_HANDED,      /* handed out to a thread of the program */
	CKPT_REQUEST_ANSWERING,   /* a thread is in ckpt_server_reply() with it */
	CKPT_REQUEST_ANSWERED,    /* on its way to the core, or received */
};

struct ckpt_request {
	/* Owned by the core. */
	struct ckpt_node node;   /* sends the answer; `run` frees the request */
	struct ckpt_timer timer; /* for the deadline */
	struct ckpt_exchange *exchange;
	struct ckpt_exchange_op *op;

	/* Constant after it is posted. */
	uint64_t deadline_ns;
	uint32_t verb;
	uint32_t count;
	const char *keys[CKPT_EXCHANGE_BATCH]; /* point into `text`, as the values do */
	const void *values[CKPT_EXCHANGE_BATCH];
	uint64_t lengths[CKPT_EXCHANGE_BATCH];
	char *text;

	/* Owned by the server, guarded by its lock. */
	struct ckpt_request *next;
	uint64_t id;
	enum ckpt_request_state state;
	bool given_up;

	/* Written by the thread that answers; then the core's. */
	int result;
	char reason[200];
	void *got[CKPT_EXCHANGE_BATCH];
	uint64_t got_lengths[CKPT_EXCHANGE_BATCH];
};

/* Keys become SESSION/KEY. NULL: out of memory. */
struct ckpt_request *ckpt_request_new(const char *session, const struct ckpt_exchange_op *op);
void ckpt_request_free(struct ckpt_request *request);

/* The program's reference. -ENOMEM. */
int ckpt_server_new(struct ckpt_exchange_server **ret_server);
/* The engine's reference; answers go to `inbox`. -EBUSY if an engine was attached before. */
int ckpt_server_attach(struct ckpt_exchange_server *server, struct ckpt_inbox *inbox);
/* NULL is ignored. */
void ckpt_server_unref(struct ckpt_exchange_server *server);
bool ckpt_server_forked(const struct ckpt_exchange_server *server);

/* Core: hands the request over. False: the server is quiet, and the request stays the caller's. */
bool ckpt_server_post(struct ckpt_exchange_server *server, struct ckpt_request *request);
/*
 * Core: gives the request up. WAITING: it is the caller's again. ANSWERED: the answer still comes. HANDED: it may have
 * been freed.
 */
enum ckpt_request_state ckpt_server_give_up(
	struct ckpt_exchange_server *server, struct ckpt_request *request);

/* Any thread. See ckpt/exchange.h; the structs are complete. Sets `err` on failure. */
void ckpt_server_quiet(struct ckpt_exchange_server *server);
int ckpt_server_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request);
int ckpt_server_reply(struct ckpt_exchange_server *server,
	const struct ckpt_exchange_answer *answer, struct ckpt_error *err);

#endif
