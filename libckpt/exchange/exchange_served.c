/* SPDX-License-Identifier: Apache-2.0 */
/* Turns operations into requests to the program. */
#include "exchange/exchange_served.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"

struct served {
	struct ckpt_exchange exchange;
	struct ckpt_timers *timers;
	struct ckpt_env *env;
	struct ckpt_exchange_server *server;
	size_t asked;          /* operations with a request in progress */
	struct ckpt_task task; /* running while there are operations without a request */
	struct ckpt_exchange_op *refused;
	struct ckpt_exchange_op **end;
	char session[CKPT_SESSION_MAX + 1];
};

static struct served *served_of(struct ckpt_exchange *x)
{
	return CKPT_CONTAINER(x, struct served, exchange);
}

/* A task, because no operation may end before submit() has returned. */
static int refuse_body(struct ckpt_task *task)
{
	struct served *d = CKPT_CONTAINER(task, struct served, task);

	while (d->refused) {
		struct ckpt_exchange_op *op = d->refused;
		int r = op->result;
		d->refused = op->behind;
		(void)ckpt_fail(op->err, r, "%s",
			r == CKPT_ECLOSED ? "the program no longer serves its exchange"
					  : ckpt_code_text(r));
		ckpt_exchange_end(op, r);
	}
	d->end = &d->refused;
	return 0;
}

static void refuse(struct served *d, struct ckpt_exchange_op *op, int code)
{
	op->result = code;
	*d->end = op;
	d->end = &op->behind;
	if (!ckpt_task_active(&d->task))
		ckpt_task_start(&d->task, d->exchange.sched, refuse_body, NULL);
}

/* The operation belongs to its caller again. */
static void end_operation(struct served *d, struct ckpt_exchange_op *op, int result)
{
	op->request = NULL;
	d->asked--;
	ckpt_exchange_end(op, result);
}

static void take_values(struct served *d, struct ckpt_exchange_op *op, struct ckpt_request *request)
{
	for (size_t i = 0; i < op->count; i++) {
		if (op->verb == CKPT_EXCHANGE_PUT) {
			d->exchange.bytes_put += op->items[i].length;
		} else if (op->verb == CKPT_EXCHANGE_GET && request->got[i]) {
			op->items[i].data = request->got[i];
			op->items[i].length = request->got_lengths[i];
			request->got[i] = NULL;
			d->exchange.bytes_got += op->items[i].length;
		}
	}
}

static void answered(struct ckpt_node *node)
{
	struct ckpt_request *request = CKPT_CONTAINER(node, struct ckpt_request, node);
	struct served *d = served_of(request->exchange);
	struct ckpt_exchange_op *op = request->op;
	int r = request->result;

	ckpt_timer_clear(d->timers, &request->timer);
	if (r < 0)
		(void)ckpt_fail(op->err, r, "the program's exchange: %s",
			request->reason[0] ? request->reason : ckpt_code_text(r));
	else
		take_values(d, op, request);
	ckpt_request_free(request);
	end_operation(d, op, r);
}

static void late(struct ckpt_timer *timer)
{
	struct ckpt_request *request = CKPT_CONTAINER(timer, struct ckpt_request, timer);
	struct served *d = served_of(request->exchange);
	struct ckpt_exchange_op *op = request->op;

	enum ckpt_request_state state = ckpt_server_give_up(d->server, request);
	if (state == CKPT_REQUEST_ANSWERED)
		return;
	if (state == CKPT_REQUEST_WAITING)
		ckpt_request_free(request);
	(void)ckpt_fail(op->err, -ETIMEDOUT, "%s",
		state == CKPT_REQUEST_WAITING
			? "the program has not taken a request from ckpt_exchange_next() in time"
			: "the program's exchange has not answered a request in time");
	end_operation(d, op, -ETIMEDOUT);
}

/* A lost request may cost time, but not the save: the caller must be able to retry before its own deadline. */
static uint64_t deadline_of(const struct served *d, const struct ckpt_exchange_op *op)
{
	uint64_t now_ns = ckpt_env_now(d->env);
	uint64_t left_ns = op->deadline_ns > now_ns ? op->deadline_ns - now_ns : 0;
	uint64_t patience_ns = ckpt_max_u64(left_ns / 4, CKPT_SERVED_PATIENCE_MIN_NS);

	return now_ns + ckpt_min_u64(left_ns, ckpt_min_u64(patience_ns, CKPT_SERVED_PATIENCE_NS));
}

static void served_submit(struct ckpt_exchange *x, struct ckpt_exchange_op *op)
{
	struct served *d = served_of(x);
	struct ckpt_request *request = ckpt_request_new(d->session, op);

	if (!request) {
		refuse(d, op, -ENOMEM);
		return;
	}
	request->node.run = answered;
	request->timer.fire = late;
	request->exchange = x;
	request->op = op;
	request->deadline_ns = deadline_of(d, op);
	if (!ckpt_server_post(d->server, request)) {
		ckpt_request_free(request);
		refuse(d, op, CKPT_ECLOSED);
		return;
	}
	/* An answer arrives on this thread only, so the request is still there. */
	op->request = request;
	d->asked++;
	ckpt_timer_set(d->timers, &request->timer, request->deadline_ns);
}

static void served_hasten(struct ckpt_exchange *x, struct ckpt_exchange_op *op)
{
	struct served *d = served_of(x);
	struct ckpt_request *request = op->request;

	/* Without a timer, an answer is on its way. */
	if (request && request->timer.set && op->deadline_ns < request->timer.at_ns)
		ckpt_timer_set(d->timers, &request->timer, op->deadline_ns);
}

static void served_close(struct ckpt_exchange *x)
{
	struct served *d = served_of(x);

	CKPT_ASSERT(d->asked == 0 && !ckpt_task_active(&d->task));
	ckpt_free(d);
}

static const struct ckpt_exchange_ops served_ops = {
	.name = "served", .submit = served_submit, .hasten = served_hasten, .close = served_close};

int ckpt_exchange_served_open(struct ckpt_sched *sched, struct ckpt_timers *timers,
	struct ckpt_env *env, struct ckpt_exchange_server *server, const char *session,
	struct ckpt_exchange **ret_exchange)
{
	struct served *d = ckpt_alloc(sizeof(*d));

	if (!d)
		return -ENOMEM;
	CKPT_ASSERT(ckpt_session_valid(session));
	d->exchange = (struct ckpt_exchange){.ops = &served_ops, .sched = sched};
	d->timers = timers;
	d->env = env;
	d->server = server;
	d->end = &d->refused;
	(void)snprintf(d->session, sizeof(d->session), "%s", session);
	*ret_exchange = &d->exchange;
	return 0;
}
