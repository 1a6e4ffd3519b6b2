/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_exchange_ops. */
#include "exchange/exchange.h"

#include <string.h>

#include "base/alloc.h"

void ckpt_exchange_op_init(
	struct ckpt_exchange_op *op, struct ckpt_task *waiter, struct ckpt_error *err)
{
	*op = (struct ckpt_exchange_op){.waiter = waiter, .err = err, .deadline_ns = UINT64_MAX};
}

static bool key_valid(const char *key)
{
	size_t length = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return length > 0 && length < CKPT_EXCHANGE_KEY_MAX && key[length] == '\0';
}

static void submit(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	enum ckpt_exchange_verb verb, struct ckpt_exchange_item *items, size_t count)
{
	CKPT_ASSERT(!op->active);
	CKPT_ASSERT(count > 0 && count <= CKPT_EXCHANGE_BATCH);
	for (size_t i = 0; i < count; i++) {
		CKPT_ASSERT(key_valid(items[i].key));
		CKPT_ASSERT((items[i].data != NULL) == (verb == CKPT_EXCHANGE_PUT));
		CKPT_ASSERT(items[i].length <= CKPT_EXCHANGE_VALUE_MAX);
	}
	op->verb = verb;
	op->exchange = x;
	op->items = items;
	op->count = count;
	op->next = 0;
	op->behind = NULL;
	op->request = NULL;
	op->done = false;
	op->result = 0;
	op->active = true;
	x->ops->submit(x, op);
	CKPT_ASSERT(!op->done);
}

void ckpt_exchange_hasten(struct ckpt_exchange_op *op, uint64_t deadline_ns)
{
	if (deadline_ns >= op->deadline_ns)
		return;
	op->deadline_ns = deadline_ns;
	if (op->active && op->exchange->ops->hasten)
		op->exchange->ops->hasten(op->exchange, op);
}

void ckpt_exchange_end(struct ckpt_exchange_op *op, int result)
{
	CKPT_ASSERT(op->active && result <= 0);
	op->active = false;
	op->done = true;
	op->result = result;
	ckpt_task_wake(op->waiter);
}

void ckpt_exchange_put(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count)
{
	submit(x, op, CKPT_EXCHANGE_PUT, items, count);
}

void ckpt_exchange_get(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count)
{
	submit(x, op, CKPT_EXCHANGE_GET, items, count);
}

void ckpt_exchange_drop(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count)
{
	submit(x, op, CKPT_EXCHANGE_DROP, items, count);
}

void ckpt_exchange_items_clear(struct ckpt_exchange_item *items, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		ckpt_free(items[i].data);
		items[i].data = NULL;
		items[i].length = 0;
	}
}

void ckpt_exchange_close(struct ckpt_exchange *exchange)
{
	if (exchange)
		exchange->ops->close(exchange);
}

bool ckpt_session_valid(const char *session)
{
	size_t length = strspn(session, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
					"0123456789._-");

	return length > 0 && length <= CKPT_SESSION_MAX && session[length] == '\0' &&
	       session[0] != '.';
}
