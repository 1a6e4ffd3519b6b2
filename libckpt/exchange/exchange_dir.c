/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange in a shared directory: one operation at a time, one value at a time. */
#include "exchange/exchange_dir.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

struct directory {
	struct ckpt_exchange exchange;
	struct ckpt_store *store;
	struct ckpt_task task; /* running while there are operations */
	struct ckpt_store_op op;
	struct ckpt_exchange_op *first; /* the current operation */
	struct ckpt_exchange_op **end;
	bool made; /* the directories exist */
	bool met;  /* the key of the current item has a value already */
	char session[CKPT_SESSION_MAX + 1];
	char path[CKPT_PATH_MAX];
};

static struct directory *directory_of(struct ckpt_exchange *x)
{
	return CKPT_CONTAINER(x, struct directory, exchange);
}

CKPT_PRINTF(2, 3) static void name(struct directory *d, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(d->path, sizeof(d->path), fmt, args);
	va_end(args);
	CKPT_ASSERT(n > 0 && (size_t)n < sizeof(d->path));
}

static void start_item(struct directory *d)
{
	const struct ckpt_exchange_op *x = d->first;
	const struct ckpt_exchange_item *item = &x->items[x->next];

	name(d, CKPT_NAME_EXCHANGE "/%s/%s", d->session, item->key);
	d->op.err = x->err;
	if (x->verb == CKPT_EXCHANGE_PUT)
		ckpt_store_show(d->store, &d->op, d->path, item->data, item->length);
	else if (x->verb == CKPT_EXCHANGE_GET)
		ckpt_store_get(d->store, &d->op, d->path, CKPT_EXCHANGE_VALUE_MAX);
	else
		ckpt_store_remove(d->store, &d->op, d->path);
}

/* The key has a value: ours, or that of another process. */
static void compare(struct directory *d)
{
	const struct ckpt_exchange_item *item = &d->first->items[d->first->next];

	if (d->op.result < 0)
		return;
	bool same =
		d->op.length == item->length && memcmp(d->op.data, item->data, item->length) == 0;
	ckpt_free(d->op.data);
	d->op.data = NULL;
	d->op.result = same ? 0 : -EEXIST;
}

static int end_item(struct directory *d)
{
	struct ckpt_exchange_op *x = d->first;
	struct ckpt_exchange_item *item = &x->items[x->next++];
	int r = d->op.result;

	if (x->verb == CKPT_EXCHANGE_PUT) {
		/* It was deleted with its session: the next try creates it again. */
		d->made = r != -ENOENT;
		d->exchange.bytes_put += r < 0 || d->met ? 0 : item->length;
		return r;
	}
	if (x->verb == CKPT_EXCHANGE_GET && r == 0) {
		item->data = d->op.data;
		item->length = d->op.length;
		d->exchange.bytes_got += item->length;
	}
	return r == -ENOENT ? 0 : r;
}

/* Ends the current operation, and starts the next one if there is one. */
static void end_operation(struct directory *d, int result)
{
	struct ckpt_exchange_op *x = d->first;

	d->first = x->behind;
	if (!d->first)
		d->end = &d->first;
	ckpt_exchange_end(x, result);
}

static int directory_body(struct ckpt_task *task)
{
	struct directory *d = CKPT_CONTAINER(task, struct directory, task);
	int r;

	CKPT_TASK_BEGIN(task);
	while (d->first) {
		d->op.result = 0;
		if (!d->made && d->first->verb == CKPT_EXCHANGE_PUT) {
			d->op.err = d->first->err;
			ckpt_store_mkdir(d->store, &d->op, CKPT_NAME_EXCHANGE);
			CKPT_AWAIT(task, d->op.done);
			if (d->op.result == 0) {
				name(d, CKPT_NAME_EXCHANGE "/%s", d->session);
				ckpt_store_mkdir(d->store, &d->op, d->path);
				CKPT_AWAIT(task, d->op.done);
			}
			d->made = d->op.result == 0;
		}
		r = d->op.result;
		while (r == 0 && d->first->next < d->first->count) {
			start_item(d);
			CKPT_AWAIT(task, d->op.done);
			d->met = d->first->verb == CKPT_EXCHANGE_PUT && d->op.result == -EEXIST;
			if (d->met) {
				ckpt_store_get(d->store, &d->op, d->path, CKPT_EXCHANGE_VALUE_MAX);
				CKPT_AWAIT(task, d->op.done);
				compare(d);
			}
			r = end_item(d);
		}
		end_operation(d, r);
	}
	CKPT_TASK_END(task);
}

static void directory_submit(struct ckpt_exchange *x, struct ckpt_exchange_op *op)
{
	struct directory *d = directory_of(x);

	*d->end = op;
	d->end = &op->behind;
	if (!ckpt_task_active(&d->task))
		ckpt_task_start(&d->task, x->sched, directory_body, NULL);
}

static void directory_close(struct ckpt_exchange *x)
{
	struct directory *d = directory_of(x);

	CKPT_ASSERT(!d->first && !ckpt_task_active(&d->task));
	ckpt_free(d);
}

static const struct ckpt_exchange_ops directory_ops = {
	.name = "directory", .submit = directory_submit, .close = directory_close};

int ckpt_exchange_dir_open(struct ckpt_sched *sched, struct ckpt_store *store, const char *session,
	struct ckpt_exchange **ret_exchange)
{
	struct directory *d = ckpt_alloc(sizeof(*d));

	if (!d)
		return -ENOMEM;
	CKPT_ASSERT(ckpt_session_valid(session));
	d->exchange = (struct ckpt_exchange){.ops = &directory_ops, .sched = sched};
	d->store = store;
	d->end = &d->first;
	ckpt_store_op_init(&d->op, &d->task, NULL);
	d->op.quiet = true;
	(void)snprintf(d->session, sizeof(d->session), "%s", session);
	*ret_exchange = &d->exchange;
	return 0;
}
