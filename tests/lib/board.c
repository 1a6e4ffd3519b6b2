/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that fails as it is told. */
#include "lib/board.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/test.h"

/* The table. */

static size_t find(const struct board *b, const char *key)
{
	size_t i = 0;

	while (i < b->count && strcmp(b->values[i].key, key) != 0)
		i++;
	return i;
}

int board_put(struct board *b, const char *key, const void *data, uint64_t length)
{
	size_t i = find(b, key);

	if (i < b->count)
		return b->values[i].length == length && memcmp(b->values[i].data, data, length) == 0
			       ? 0
			       : -EEXIST;
	assert_true(i < BOARD_VALUES);
	(void)snprintf(b->values[i].key, sizeof(b->values[i].key), "%s", key);
	b->values[i].data = malloc(length);
	assert_non_null(b->values[i].data);
	memcpy(b->values[i].data, data, length);
	b->values[i].length = length;
	b->count++;
	return 0;
}

static void board_drop(struct board *b, size_t i)
{
	if (i == b->count)
		return;
	free(b->values[i].data);
	b->values[i] = b->values[--b->count];
}

void board_clear(struct board *b)
{
	while (b->count > 0)
		board_drop(b, 0);
	*b = (struct board){.rank = BOARD_ALL};
}

static int do_item(struct board *b, struct ckpt_exchange_op *op, struct ckpt_exchange_item *item)
{
	size_t i = find(b, item->key);

	if (op->verb == CKPT_EXCHANGE_PUT)
		return board_put(b, item->key, item->data, item->length);
	if (op->verb == CKPT_EXCHANGE_DROP) {
		board_drop(b, i);
	} else if (i < b->count && !item->data) {
		item->data = ckpt_memdup(b->values[i].data, b->values[i].length);
		item->length = b->values[i].length;
		return item->data ? 0 : -ENOMEM;
	}
	return 0;
}

static int do_request(struct board_link *x)
{
	int r = 0;

	for (size_t i = 0; i < x->op->count && r == 0; i++)
		r = do_item(x->board, x->op, &x->op->items[i]);
	return r;
}

/* One rank's way. */

static void answer(struct board_link *x, int result)
{
	struct ckpt_exchange_op *op = x->op;

	x->op = NULL;
	if (result == -EIO)
		(void)ckpt_fail(op->err, result, "the board has lost it");
	if (result == -ETIMEDOUT)
		(void)ckpt_fail(op->err, result, "the board has not answered in time");
	if (result < 0 && op->verb == CKPT_EXCHANGE_GET)
		ckpt_exchange_items_clear(op->items, op->count);
	ckpt_exchange_end(op, result);
}

static void fired(struct ckpt_timer *timer)
{
	struct board_link *x = CKPT_CONTAINER(timer, struct board_link, timer);
	int r = x->op->result;

	if (r != -ETIMEDOUT && (x->fault == BOARD_LATE || x->fault == BOARD_TWICE))
		r = do_request(x);
	answer(x, r);
}

static bool is_hit(const struct board *b, const struct board_link *x)
{
	return b->requests >= b->from && b->requests <= b->to &&
	       (b->rank == BOARD_ALL || b->rank == x->core->config.rank) &&
	       (!b->verb || b->verb == x->op->verb);
}

/* It is done at once, so that others may see what it has done before it is answered. */
static void link_submit(struct ckpt_exchange *exchange, struct ckpt_exchange_op *op)
{
	struct board_link *x = CKPT_CONTAINER(exchange, struct board_link, exchange);
	struct board *b = x->board;
	uint64_t now_ns = ckpt_env_now(x->core->parts.env);
	uint64_t answer_ns;

	assert_null(x->op);
	x->op = op;
	b->requests++;
	x->fault = is_hit(b, x) ? b->fault : BOARD_WELL;
	if (x->fault == BOARD_SILENT)
		return;
	answer_ns = now_ns + (x->fault == BOARD_LATE ? BOARD_LATE_MS : 1) * UINT64_C(1000000);
	op->result = x->fault == BOARD_LOST || x->fault == BOARD_LATE || op->deadline_ns <= now_ns
			     ? 0
			     : do_request(x);
	if (x->fault == BOARD_LOST || x->fault == BOARD_UNANSWERED)
		op->result = -EIO;
	if (op->deadline_ns < answer_ns)
		op->result = -ETIMEDOUT;
	x->timer.fire = fired;
	ckpt_core_timer_set(
		x->core, &x->timer, ckpt_max_u64(now_ns, ckpt_min_u64(answer_ns, op->deadline_ns)));
}

static void link_close(struct ckpt_exchange *exchange)
{
	struct board_link *x = CKPT_CONTAINER(exchange, struct board_link, exchange);

	assert_null(x->op);
	ckpt_exchange_close(x->inner);
}

static const struct ckpt_exchange_ops link_ops = {
	.name = "link", .submit = link_submit, .close = link_close};

void board_link_make(struct board_link *link, struct board *board, struct ckpt_core *core)
{
	*link = (struct board_link){.exchange = {.ops = &link_ops, .sched = &core->sched},
		.inner = core->exchange,
		.board = board,
		.core = core};
	core->exchange = &link->exchange;
}

void board_link_let_go(struct board_link *link)
{
	if (link->op && link->fault == BOARD_SILENT)
		answer(link, -EIO);
}
