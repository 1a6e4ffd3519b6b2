/* SPDX-License-Identifier: Apache-2.0 */
/* Sends one request at a time, with a random pause before the next try. */
#include "s3/credential_http.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "s3/credentials.h"

#define MS        UINT64_C(1000000)
#define PAUSE_MS  250u /* first pause; at most twice that, and doubled for each try */
#define PAUSE_TOP 4u   /* most doublings */

static void drop_answer(struct ckpt_http_req *req)
{
	/* The body may contain keys, and headers a token. */
	ckpt_s3_forget_bytes(req->reply, req->reply ? req->reply_length : 0);
	ckpt_s3_forget(req->header_text);
	req->reply = NULL;
	req->reply_length = 0;
	req->header_text = NULL;
}

static void answer_back(struct ckpt_node *node)
{
	struct ckpt_s3_ask *ask = CKPT_CONTAINER(node, struct ckpt_s3_ask, req.node);

	ask->answered = true;
	ckpt_task_wake(&ask->task);
}

static void pause_over(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_s3_ask, pause)->task);
}

static void submit(struct ckpt_s3_ask *ask)
{
	ask->answered = false;
	ask->req = (struct ckpt_http_req){.node.run = answer_back,
		.method = ask->method,
		.url = ask->url,
		.headers = ask->headers,
		.header_count = ask->header_count,
		.body = ask->body,
		.body_length = ask->body ? strlen(ask->body) : 0,
		.direct = ask->direct,
		.limits = {.connect_ms = ask->timeout_ms,
			.first_byte_ms = ask->timeout_ms,
			.stall_ms = ask->timeout_ms,
			.total_ms = 2 * ask->timeout_ms},
		.reply_limit = CKPT_S3_ASK_REPLY};
	ckpt_http_submit(ask->with->http, &ask->req);
}

/* Whether another try may succeed. */
static bool may_pass(const struct ckpt_http_req *req)
{
	if (req->result == 0)
		return req->status == 429 || req->status >= 500;
	return req->result == CKPT_ENETWORK || req->result == -ETIMEDOUT;
}

static void begin_pause(struct ckpt_s3_ask *ask)
{
	unsigned doublings = ask->attempt - 1 < PAUSE_TOP ? ask->attempt - 1 : PAUSE_TOP;
	uint64_t ms = (uint64_t)PAUSE_MS << doublings;

	ms += ckpt_env_random(ask->with->env) % (ms + 1);
	ask->pause.fire = pause_over;
	ckpt_timer_set(ask->with->timers, &ask->pause, ckpt_env_now(ask->with->env) + ms * MS);
}

static int end(struct ckpt_s3_ask *ask)
{
	struct ckpt_http_req *req = &ask->req;

	if (ask->stopped)
		return ckpt_fail(
			&ask->error, -ECANCELED, "waiting for %s was cancelled", ask->whose);
	if (req->result < 0)
		return ckpt_fail(&ask->error, req->result, "%s did not answer (%u of %u tries): %s",
			ask->whose, ask->attempt, ask->attempts,
			req->words[0] ? req->words : ckpt_code_text(req->result));
	ask->status = req->status;
	ask->reply = req->reply;
	ask->reply_length = req->reply_length;
	req->reply = NULL;
	return 0;
}

static int ask_body(struct ckpt_task *task)
{
	struct ckpt_s3_ask *ask = CKPT_CONTAINER(task, struct ckpt_s3_ask, task);

	CKPT_TASK_BEGIN(task);
	for (;;) {
		/* Stopped before its first request. */
		if (ask->stopped)
			return end(ask);
		ask->attempt++;
		submit(ask);
		CKPT_AWAIT(task, ask->answered);
		if (ask->stopped || !may_pass(&ask->req) || ask->attempt >= ask->attempts)
			return end(ask);
		drop_answer(&ask->req);
		begin_pause(ask);
		CKPT_AWAIT(task, !ask->pause.set || ask->stopped);
		if (ask->stopped) {
			ckpt_timer_clear(ask->with->timers, &ask->pause);
			return end(ask);
		}
	}
	CKPT_TASK_END(task);
}

static void ask_done(struct ckpt_task *task)
{
	struct ckpt_s3_ask *ask = CKPT_CONTAINER(task, struct ckpt_s3_ask, task);

	drop_answer(&ask->req);
	ask->result = task->result;
	ask->done = true;
	ckpt_task_wake(ask->waiter);
}

void ckpt_s3_ask_start(
	struct ckpt_s3_ask *ask, const struct ckpt_s3_asking *with, struct ckpt_task *waiter)
{
	CKPT_ASSERT(ask->attempts > 0 && ask->whose && !ask->done);
	ask->with = with;
	ask->waiter = waiter;
	ckpt_error_clear(&ask->error);
	ckpt_task_start(&ask->task, with->sched, ask_body, ask_done);
}

void ckpt_s3_ask_stop(struct ckpt_s3_ask *ask)
{
	if (!ckpt_task_active(&ask->task) || ask->stopped)
		return;
	ask->stopped = true;
	if (ask->attempt > 0 && !ask->answered)
		ckpt_http_cancel(ask->with->http, &ask->req);
	ckpt_task_wake(&ask->task);
}

void ckpt_s3_ask_clear(struct ckpt_s3_ask *ask)
{
	CKPT_ASSERT(!ckpt_task_active(&ask->task));
	ckpt_s3_forget_bytes(ask->reply, ask->reply ? ask->reply_length : 0);
	*ask = (struct ckpt_s3_ask){0};
}
