/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange that cannot be relied on. */
#include "crowd_exchange.h"

#include <errno.h>
#include <stdlib.h>

#include "crowd_board.h"

#define FEW 80 /* operations of a rank under way at once */

struct stormy {
	struct ckpt_exchange exchange;
	struct sim *sim;
	const struct crowd_weather *weather;
	struct ckpt_exchange *inner;
	/* Asked of the inner one, in the place of what the owner asked. */
	struct passing {
		struct stormy *stormy;
		struct ckpt_exchange_op *outer; /* NULL: free */
		struct ckpt_exchange_op op;
		struct ckpt_task task; /* woken when the inner one has answered */
		uint64_t due_ns;       /* to be handed over; UINT64_MAX: it has been */
		bool spoilt;           /* done, and said to have failed */
		unsigned times;
	} passing[FEW];
	unsigned used; /* so many of the first have been taken so far */
};

static struct stormy *stormy_of(struct ckpt_exchange *x)
{
	return CKPT_CONTAINER(x, struct stormy, exchange);
}

static void answer(struct passing *p, int result)
{
	struct ckpt_exchange_op *outer = p->outer;

	p->outer = NULL;
	if (result < 0 && outer->verb == CKPT_EXCHANGE_GET)
		ckpt_exchange_items_clear(outer->items, outer->count);
	ckpt_exchange_end(outer, result);
}

static void hand_over(struct passing *p)
{
	struct ckpt_exchange_op *outer = p->outer;

	p->due_ns = UINT64_MAX;
	p->times--;
	if (outer->verb == CKPT_EXCHANGE_PUT)
		ckpt_exchange_put(p->stormy->inner, &p->op, outer->items, outer->count);
	else if (outer->verb == CKPT_EXCHANGE_GET)
		ckpt_exchange_get(p->stormy->inner, &p->op, outer->items, outer->count);
	else
		ckpt_exchange_drop(p->stormy->inner, &p->op, outer->items, outer->count);
}

static int passing_body(struct ckpt_task *task)
{
	struct passing *p = CKPT_CONTAINER(task, struct passing, task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, p->due_ns == 0);
	while (p->times > 0 && p->op.result == 0) {
		hand_over(p);
		CKPT_AWAIT(task, p->op.done);
	}
	answer(p, p->spoilt ? -EIO : p->op.result);
	CKPT_TASK_END(task);
}

static void stormy_submit(struct ckpt_exchange *x, struct ckpt_exchange_op *op)
{
	struct stormy *s = stormy_of(x);
	struct passing *p = s->passing;
	bool again = op->verb == CKPT_EXCHANGE_PUT && sim_chance(s->sim, 500);

	while (p->outer)
		p++;
	CKPT_ASSERT(p < s->passing + FEW);
	if (p == s->passing + s->used)
		s->used++;
	p->stormy = s;
	p->outer = op;
	p->spoilt = sim_chance(s->sim, s->weather->lost);
	p->times = again ? 2 : 1;
	p->due_ns = s->sim->now_ns + 1;
	if (sim_chance(s->sim, s->weather->late))
		p->due_ns += sim_below(s->sim, s->weather->late_ns + 1);
	ckpt_exchange_op_init(&p->op, &p->task, op->err);
	ckpt_task_start(&p->task, x->sched, passing_body, NULL);
}

static void stormy_close(struct ckpt_exchange *x)
{
	struct stormy *s = stormy_of(x);

	for (unsigned i = 0; i < FEW; i++)
		CKPT_ASSERT(!s->passing[i].outer);
	ckpt_exchange_close(s->inner);
	free(s);
}

static const struct ckpt_exchange_ops stormy_ops = {
	.name = "stormy", .submit = stormy_submit, .close = stormy_close};

struct ckpt_exchange *crowd_exchange_new(
	struct sim *sim, const struct crowd_weather *weather, struct ckpt_exchange *inner)
{
	struct stormy *s = sim_alloc(sizeof(*s));

	*s = (struct stormy){.exchange = {.ops = &stormy_ops, .sched = inner->sched},
		.sim = sim,
		.weather = weather};
	s->inner = inner;
	return &s->exchange;
}

void crowd_exchange_forget(struct ckpt_exchange *exchange)
{
	struct ckpt_exchange *inner;

	if (!exchange)
		return;
	inner = stormy_of(exchange)->inner;
	if (crowd_board_is(inner))
		crowd_board_forget(inner);
	free(stormy_of(exchange));
}

uint64_t crowd_exchange_land(struct ckpt_exchange *exchange, bool *ret_woke)
{
	struct stormy *s = stormy_of(exchange);
	uint64_t next_ns =
		crowd_board_is(s->inner) ? crowd_board_land(s->inner, ret_woke) : UINT64_MAX;

	for (unsigned i = 0; i < s->used; i++) {
		struct passing *p = &s->passing[i];
		if (!p->outer || p->due_ns == 0 || p->due_ns == UINT64_MAX)
			continue;
		if (p->due_ns > s->sim->now_ns) {
			next_ns = ckpt_min_u64(next_ns, p->due_ns);
			continue;
		}
		if (s->weather->silent)
			continue;
		/* Nothing of it happens. */
		if (s->weather->dead || (p->spoilt && sim_chance(s->sim, 5000))) {
			p->spoilt = true;
			p->times = 0;
		}
		p->due_ns = 0;
		ckpt_task_wake(&p->task);
		*ret_woke = true;
	}
	return next_ns;
}
