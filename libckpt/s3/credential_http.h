/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small question to a service that gives keys, asked a few times. What is sent and what is answered may be
 * secret: the answer is cleared by ckpt_s3_ask_clear(), and no words hold any of it. On the core's thread.
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

/* Whom to ask with. */
struct ckpt_s3_asking {
	struct ckpt_env *env;
	struct ckpt_sched *sched;
	struct ckpt_timers *timers;
	struct ckpt_http *http;
};

struct ckpt_s3_ask {
	/* What is asked; borrowed until it is done. */
	enum ckpt_http_method method;
	const char *url;
	struct ckpt_http_header headers[CKPT_S3_ASK_HEADERS];
	size_t header_count;
	const char *body; /* of POST; NULL: empty */
	bool direct;      /* by no proxy: of a service of this machine */
	unsigned timeout_ms;
	unsigned attempts; /* of those that got no answer, or 429, or 5xx */
	const char *whose; /* "the instance metadata service" */

	/* What came of it. */
	bool done;
	int result;              /* 0: an answer of whatever status */
	struct ckpt_error error; /* why there is none */
	int status;
	char *reply; /* may be NULL; ended by a NUL that is not counted */
	uint64_t reply_length;

	/* Its own. */
	const struct ckpt_s3_asking *with;
	struct ckpt_task *waiter;
	struct ckpt_task task;
	struct ckpt_timer pause;
	struct ckpt_http_req req;
	bool answered;
	bool stopped;
	unsigned attempt;
};

/* `ask` has what is asked, and nothing else. */
void ckpt_s3_ask_start(
	struct ckpt_s3_ask *ask, const struct ckpt_s3_asking *with, struct ckpt_task *waiter);
/* It is done soon, with -ECANCELED unless it is already. Harmless when none is under way. */
void ckpt_s3_ask_stop(struct ckpt_s3_ask *ask);
/* Clears and frees the answer. It is done, or never was started. */
void ckpt_s3_ask_clear(struct ckpt_s3_ask *ask);

#endif
