/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small request to a service that returns keys, with a few tries. Request and response may be secret:
 * ckpt_s3_ask_clear() clears the response, and no message contains any of it. On the core's thread.
 */
#ifndef CKPT_S3_CREDENTIAL_HTTP_H
#define CKPT_S3_CREDENTIAL_HTTP_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/task.h"
#include "base/timer.h"
#include "net/http.h"

#define CKPT_S3_ASK_HEADERS 8
#define CKPT_S3_ASK_REPLY   65536u

/* What it needs to send requests. */
struct ckpt_s3_asking {
	struct ckpt_env *env;
	struct ckpt_sched *sched;
	struct ckpt_timers *timers;
	struct ckpt_http *http;
};

struct ckpt_s3_ask {
	/* The request; borrowed until it is done. */
	enum ckpt_http_method method;
	const char *url;
	struct ckpt_http_header headers[CKPT_S3_ASK_HEADERS];
	size_t header_count;
	const char *body; /* body of a POST; NULL: empty */
	bool direct;      /* bypass a proxy: a service of this machine */
	unsigned timeout_ms;
	unsigned attempts; /* most tries after no response, 429 or 5xx */
	const char *whose; /* "the instance metadata service" */

	/* The result. */
	bool done;
	int result;              /* 0: a response of any status */
	struct ckpt_error error; /* set if there is none */
	int status;
	char *reply; /* may be NULL; followed by an uncounted NUL */
	uint64_t reply_length;

	/* Private. */
	const struct ckpt_s3_asking *with;
	struct ckpt_task *waiter;
	struct ckpt_task task;
	struct ckpt_timer pause;
	struct ckpt_http_req req;
	bool answered;
	bool stopped;
	unsigned attempt;
};

/* The caller has set the request fields of `ask`, and zeroed the others. */
void ckpt_s3_ask_start(
	struct ckpt_s3_ask *ask, const struct ckpt_s3_asking *with, struct ckpt_task *waiter);
/* Has it end soon, with -ECANCELED unless it is done. Does nothing if none is running. */
void ckpt_s3_ask_stop(struct ckpt_s3_ask *ask);
/* Clears and frees the response. It is done, or was never started. */
void ckpt_s3_ask_clear(struct ckpt_s3_ask *ask);

#endif
