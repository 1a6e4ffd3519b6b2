/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a job communicate: small values under keys, within one session (one start of the job). Only
 * exchange.c
 * calls the members of the table. All operations are asynchronous and run on the core's thread. The caller allocates an
 * operation; the exchange owns it from its start until `done` is set and `waiter` woken.
 *
 * The exchange is soft state, which may be lost with any node. The store is authoritative: the exchange only says where
 * to look, and a rank that hears nothing looks into the store.
 */
#ifndef CKPT_EXCHANGE_EXCHANGE_H
#define CKPT_EXCHANGE_EXCHANGE_H

#include <ckpt/error.h>
#include <ckpt/exchange.h>
#include "base/env.h"
#include "base/task.h"

#define CKPT_SESSION_MAX      64 /* characters of a session name */
#define CKPT_EXCHANGE_KEY_MAX 64 /* including the final NUL */

/* Keys consist of lower-case letters, digits and `-`, see rank_messages.h. GET returns data, or NULL: there is none. */
struct ckpt_exchange_item {
	char key[CKPT_EXCHANGE_KEY_MAX];
	void *data; /* GET: allocated; free it with ckpt_exchange_items_clear() */
	uint64_t length;
};

struct ckpt_exchange;

struct ckpt_exchange_op {
	/* Set by the caller. */
	enum ckpt_exchange_verb verb;
	struct ckpt_exchange *exchange;
	struct ckpt_task *waiter; /* woken when done */
	struct ckpt_error *err;   /* receives the error; NULL: none */
	struct ckpt_exchange_item *items;
	size_t count;
	uint64_t deadline_ns; /* an exchange that can time out does so then; UINT64_MAX: no limit */

	/* Set by the exchange. A failed operation may have had its effect, or a part of it. */
	bool done;
	int result;

	/* Private to the implementation. */
	bool active;
	size_t next; /* index of the item */
	struct ckpt_exchange_op *behind;
	void *request;
};

struct ckpt_exchange_ops {
	const char *name; /* "directory" */
	void (*submit)(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op);
	/* The operation's deadline is earlier now. NULL: deadlines are not used. */
	void (*hasten)(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op);
	/* Frees it. Nothing may be in flight. */
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
 * The wrappers fill the operation (which must not be in flight), check it, and start it. `items` (1 to
 * CKPT_EXCHANGE_BATCH) belong to the caller and must stay until it is done. It is never done before the wrapper
 * returns.
 */
void ckpt_exchange_put(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
void ckpt_exchange_get(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
void ckpt_exchange_drop(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);
/* Sets an earlier deadline. The operation need not be in flight. */
void ckpt_exchange_hasten(struct ckpt_exchange_op *op, uint64_t deadline_ns);
/* For implementations: completes the operation. */
void ckpt_exchange_end(struct ckpt_exchange_op *op, int result);
/* Frees the data of a GET. */
void ckpt_exchange_items_clear(struct ckpt_exchange_item *items, size_t count);
/* NULL is ignored. */
void ckpt_exchange_close(struct ckpt_exchange *exchange);

/* 1 to CKPT_SESSION_MAX characters of A-Z a-z 0-9 . _ - , not beginning with a dot. */
bool ckpt_session_valid(const char *session);

#endif
