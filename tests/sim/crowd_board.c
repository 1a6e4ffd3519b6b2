/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange in the memory of a service; see crowd_board.h. */
#include "crowd_board.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define FEW       80 /* operations of a rank under way at once */
#define TRAVEL_NS UINT64_C(200000)

struct value {
	struct value *next;
	char key[CKPT_EXCHANGE_KEY_MAX];
	uint64_t length;
	char data[];
};

struct crowd_board {
	struct crowd_board *next;
	struct value *values;
	bool ended;
	char session[CKPT_SESSION_MAX + 1];
};

struct visitor {
	struct ckpt_exchange exchange;
	struct sim *sim;
	struct crowd_board *board;
	/* On its way there, or back. */
	struct asking {
		struct visitor *visitor;
		struct ckpt_exchange_op *op; /* NULL: free */
		struct ckpt_task task;
		uint64_t due_ns; /* 0: it has come */
		int result;
	} asking[FEW];
};

static struct visitor *visitor_of(struct ckpt_exchange *x)
{
	return CKPT_CONTAINER(x, struct visitor, exchange);
}

/* Boards. */

static struct crowd_board *find_board(struct crowd_board *boards, const char *session)
{
	while (boards && strcmp(boards->session, session) != 0)
		boards = boards->next;
	return boards;
}

struct crowd_board *crowd_board_get(struct crowd_board **boards, const char *session)
{
	struct crowd_board *board = find_board(*boards, session);

	if (board)
		return board;
	board = sim_alloc(sizeof(*board));
	*board = (struct crowd_board){.next = *boards};
	(void)snprintf(board->session, sizeof(board->session), "%s", session);
	*boards = board;
	return board;
}

static struct value **find_value(struct crowd_board *board, const char *key)
{
	struct value **link = &board->values;

	while (*link && strcmp((*link)->key, key) != 0)
		link = &(*link)->next;
	return link;
}

bool crowd_board_holds(struct crowd_board **boards, const char *session, const char *key)
{
	struct crowd_board *board = find_board(*boards, session);

	return board && !board->ended && *find_value(board, key);
}

static void drop_value(struct value **link)
{
	struct value *value = *link;

	*link = value->next;
	free(value);
}

void crowd_boards_end(struct crowd_board *boards)
{
	for (; boards; boards = boards->next) {
		boards->ended = true;
		while (boards->values)
			drop_value(&boards->values);
	}
}

void crowd_boards_free(struct crowd_board **boards)
{
	crowd_boards_end(*boards);
	while (*boards) {
		struct crowd_board *board = *boards;
		*boards = board->next;
		free(board);
	}
}

/* What is asked of one. */

static int put(struct visitor *v, const struct ckpt_exchange_item *item)
{
	struct value **link = find_value(v->board, item->key);
	struct value *value = *link;

	if (value)
		return value->length == item->length &&
				       memcmp(value->data, item->data, item->length) == 0
			       ? 0
			       : -EEXIST;
	value = sim_alloc(sizeof(*value) + item->length);
	value->next = NULL;
	value->length = item->length;
	memcpy(value->key, item->key, sizeof(value->key));
	memcpy(value->data, item->data, item->length);
	*link = value;
	v->exchange.bytes_put += item->length;
	return 0;
}

static int get(struct visitor *v, struct ckpt_exchange_item *item)
{
	const struct value *value = *find_value(v->board, item->key);

	if (!value)
		return 0;
	item->data = ckpt_memdup(value->data, value->length);
	if (!item->data)
		return -ENOMEM;
	item->length = value->length;
	v->exchange.bytes_got += value->length;
	return 0;
}

static int act(struct visitor *v, const struct ckpt_exchange_op *op)
{
	int r = 0;

	if (v->board->ended)
		return ckpt_fail(op->err, -ECONNREFUSED, "the service of the exchange is gone");
	for (size_t i = 0; i < op->count && r == 0; i++) {
		struct ckpt_exchange_item *item = &op->items[i];
		if (op->verb == CKPT_EXCHANGE_PUT)
			r = put(v, item);
		else if (op->verb == CKPT_EXCHANGE_GET)
			r = get(v, item);
		else if (*find_value(v->board, item->key))
			drop_value(find_value(v->board, item->key));
	}
	return r;
}

static void travel(struct asking *a)
{
	struct sim *sim = a->visitor->sim;

	a->due_ns = sim->now_ns + 1 + sim_below(sim, TRAVEL_NS);
}

static int asking_body(struct ckpt_task *task)
{
	struct asking *a = CKPT_CONTAINER(task, struct asking, task);
	struct ckpt_exchange_op *op;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, a->due_ns == 0);
	a->result = act(a->visitor, a->op);
	travel(a);
	CKPT_AWAIT(task, a->due_ns == 0);
	op = a->op;
	a->op = NULL;
	ckpt_exchange_end(op, a->result);
	CKPT_TASK_END(task);
}

static void board_submit(struct ckpt_exchange *x, struct ckpt_exchange_op *op)
{
	struct visitor *v = visitor_of(x);
	struct asking *a = v->asking;

	while (a < v->asking + FEW && a->op)
		a++;
	CKPT_ASSERT(a < v->asking + FEW);
	a->visitor = v;
	a->op = op;
	travel(a);
	ckpt_task_start(&a->task, x->sched, asking_body, NULL);
}

static void board_close(struct ckpt_exchange *x)
{
	struct visitor *v = visitor_of(x);

	for (unsigned i = 0; i < FEW; i++)
		CKPT_ASSERT(!v->asking[i].op);
	free(v);
}

static const struct ckpt_exchange_ops board_ops = {
	.name = "board", .submit = board_submit, .close = board_close};

struct ckpt_exchange *crowd_board_open(
	struct sim *sim, struct ckpt_sched *sched, struct crowd_board *board)
{
	struct visitor *v = sim_alloc(sizeof(*v));

	*v = (struct visitor){
		.exchange = {.ops = &board_ops, .sched = sched}, .sim = sim, .board = board};
	return &v->exchange;
}

bool crowd_board_is(const struct ckpt_exchange *exchange)
{
	return exchange->ops == &board_ops;
}

uint64_t crowd_board_land(struct ckpt_exchange *exchange, bool *ret_woke)
{
	struct visitor *v = visitor_of(exchange);
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < FEW; i++) {
		struct asking *a = &v->asking[i];
		if (!a->op || a->due_ns == 0)
			continue;
		if (a->due_ns > v->sim->now_ns) {
			next_ns = ckpt_min_u64(next_ns, a->due_ns);
			continue;
		}
		a->due_ns = 0;
		ckpt_task_wake(&a->task);
		*ret_woke = true;
	}
	return next_ns;
}

void crowd_board_forget(struct ckpt_exchange *exchange)
{
	free(visitor_of(exchange));
}
