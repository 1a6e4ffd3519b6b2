/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a job tell each other: small values under keys, within one session (an incarnation
 * of the job). One table; exchange.c holds the only calls of its members. Everything is asynchronous and
 * runs on the core's thread: an operation is the caller's, and the exchange's from its start until `done`
 * is set and `waiter` woken.
 *
 * It is soft state, and it may die with any node. What is true stands in the store: the exchange only says
 * where to look, and whoever does not hear asks the store.
 */
#ifndef CKPT_EXCHANGE_EXCHANGE_H
#define CKPT_EXCHANGE_EXCHANGE_H

#include <ckpt/error.h>
#include <ckpt/exchange.h>
#include "base/env.h"
#include "base/task.h"

#define CKPT_SESSION_MAX      64 /* characters of a session's name */
#define CKPT_EXCHANGE_KEY_MAX 64 /* with the final NUL */

/* A key: lower-case letters, digits and `-`, see rank_messages.h. GET answers with data, or NULL: not there. */
struct ckpt_exchange_item {
	char key[CKPT_EXCHANGE_KEY_MAX];
	void *data; /* GET: allocated, the caller frees it with ckpt_exchange_items_clear() */
	uint64_t length;
};

struct ckpt_exchange;

struct ckpt_exchange_op {
	/* What the caller asks. */
	enum ckpt_exchange_verb verb;
	struct ckpt_exchange *exchange;
	struct ckpt_task *waiter; /* woken when done */
	struct ckpt_error *err;   /* where a failure is worded; NULL: nowhere */
	struct ckpt_exchange_item *items;
	size_t count;
	uint64_t deadline_ns; /* an exchange that can gives up then; UINT64_MAX: when it likes */

	/* What the exchange answers. A failure may have done some of it, or all. */
	bool done;
	int result;

	/* The implementation's. */
	bool active;
	size_t next; /* item */
	struct ckpt_exchange_op *behind;
	void *request;
};

struct ckpt_exchange_ops {
	const char *name; /* "directory" */
	void (*submit)(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op);
	/* The operation's deadline has become an earlier one. NULL: it ends when it ends. */
	void (*hasten)(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op);
	/* Frees. Nothing may be under way. */
	void (*close)(struct ckpt_exchange *exchange);
};

struct ckpt_exchange {
	const struct ckpt_exchange_ops *ops;
	struct ckpt_sched *sched;
	uint64_t bytes_put; /* counters, for stats */
	uint64_t bytes_got;
};

void ckpt_exchange_op_init(
	struct ckpt_exchange_op *op, struct ckpt_task *waiter, struct ckpt_error *err);
/*
 * The wrappers fill the operation (which must not be under way), check it, and hand it over. `items` (1 to
 * CKPT_EXCHANGE_BATCH) are the caller's and stay until it is done, which is never before the return.
 */
void ckpt_exchange_put(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
void ckpt_exchange_get(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
void ckpt_exchange_drop(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
/* Who asked will not wait longer than this. The operation may be under way or not. */
void ckpt_exchange_hasten(struct ckpt_exchange_op *op, uint64_t deadline_ns);
/* For implementations: the operation is its owner's again. */
void ckpt_exchange_end(struct ckpt_exchange_op *op, int result);
/* Frees what GET has allocated. */
void ckpt_exchange_items_clear(struct ckpt_exchange_item *items, size_t count);
/* NULL is ignored. */
void ckpt_exchange_close(struct ckpt_exchange *exchange);

/* 1 to CKPT_SESSION_MAX of A-Z a-z 0-9 . _ - , and not beginning with a dot. */
bool ckpt_session_valid(const char *session);

#endif
