/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys are got once: the profiles are read, the source is found, it is asked, and the roles are assumed. What reads
 * files or runs a program does so on a worker, which it may hold up for a minute (CKPT_S3_PROCESS_MS): that is rare,
 * one at a time, and ended when the engine closes. The rest is a task of the core's.
 */
#ifndef CKPT_S3_CREDENTIAL_FETCH_H
#define CKPT_S3_CREDENTIAL_FETCH_H

#include "base/task_job.h"
#include "s3/credential_chain.h"
#include "s3/credential_http.h"
#include "s3/credentials.h"
#include "s3/environ.h"
#include "s3/settings.h"
#include "s3/sign.h"
#include "s3/sts.h"

struct ckpt_s3_credential_fetch {
	/* What it needs; borrowed. */
	struct ckpt_s3_asking with;
	const struct ckpt_s3_environ *vars;
	const struct ckpt_s3_settings *settings;
	unsigned process_ms;    /* 0: CKPT_S3_PROCESS_MS */
	int64_t clock_offset_s; /* a server's clock less ours, as far as that is known */

	/* What came of it, once the task has finished. */
	struct ckpt_task task;
	struct ckpt_error error;
	struct ckpt_s3_credentials keys; /* the taker's, who clears them */
	struct ckpt_s3_credential_chain source;

	/* Its own. */
	struct ckpt_task_job job;
	struct ckpt_s3_ask ask;
	struct ckpt_s3_sts_place sts;
	char whose[CKPT_S3_FROM_MAX];
	char url[1024];
	char role[256];  /* the instance's */
	size_t question; /* to the instance */
	char *token;     /* a secret: of a web identity, a container, the instance */
	char *form;      /* a secret: what is posted to STS */
	char *session;   /* a name */
	struct ckpt_s3_signed signature;
	size_t assumed;
	int stop_fd; /* an eventfd that ends a process; -1: none, and so before the first start */
	bool stopped;
};

/* -errno: nothing has begun. `done` as in ckpt_task_start(). */
int ckpt_s3_credential_fetch_start(
	struct ckpt_s3_credential_fetch *fetch, void (*done)(struct ckpt_task *task));
/* It ends soon. Harmless when none is under way. */
void ckpt_s3_credential_fetch_stop(struct ckpt_s3_credential_fetch *fetch);
/* Clears everything but what it needs. It has ended. */
void ckpt_s3_credential_fetch_clear(struct ckpt_s3_credential_fetch *fetch);

/* Bodies, each in a file of its own. They end in ckpt_s3_credential_fetch_roles(), or with words in `error`. */
int ckpt_s3_credential_fetch_container(struct ckpt_task *task);
int ckpt_s3_credential_fetch_instance(struct ckpt_task *task);
int ckpt_s3_credential_fetch_web(struct ckpt_task *task);
int ckpt_s3_credential_fetch_roles(struct ckpt_task *task);

/* Begins a question, GET of fetch->url; what differs is set before ckpt_s3_credential_fetch_ask(). */
struct ckpt_s3_ask *ckpt_s3_credential_fetch_prepare(
	struct ckpt_s3_credential_fetch *fetch, const char *whose);
void ckpt_s3_credential_fetch_ask(struct ckpt_s3_credential_fetch *fetch);
/* Its result; words are taken over. */
int ckpt_s3_credential_fetch_answer(struct ckpt_s3_credential_fetch *fetch);
/* CKPT_EAUTH with words unless a header can hold it. Blanks and line ends at its end are cut off. */
int ckpt_s3_credential_fetch_check_token(char *token, const char *whose, struct ckpt_error *err);

#endif
