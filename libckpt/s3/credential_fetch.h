/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One fetch of keys: the profiles are read, the source is determined and asked, and roles are assumed. Reading files
 * and running a program is done on a worker, which may be busy for a minute (CKPT_S3_PROCESS_MS). That is rare, one at
 * a time, and stopped when the engine closes. The rest is a task of the core.
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
	/* Set by the caller; borrowed. */
	struct ckpt_s3_asking with;
	const struct ckpt_s3_environ *vars;
	const struct ckpt_s3_settings *settings;
	unsigned process_ms;    /* 0: CKPT_S3_PROCESS_MS */
	int64_t clock_offset_s; /* a server's clock minus ours, if it is known */

	/* The result, when the task has finished. */
	struct ckpt_task task;
	struct ckpt_error error;
	struct ckpt_s3_credentials keys; /* taken by the caller, who clears them */
	struct ckpt_s3_credential_chain source;

	/* Private. */
	struct ckpt_task_job job;
	struct ckpt_s3_ask ask;
	struct ckpt_s3_sts_place sts;
	char whose[CKPT_S3_FROM_MAX];
	char url[1024];
	char role[256];  /* role of the instance */
	size_t question; /* number of the request to the instance service */
	char *token;     /* secret: of a web identity, a container or the instance */
	char *form;      /* secret: the body of a request to STS */
	char *session;   /* session name */
	struct ckpt_s3_signed signature;
	size_t assumed;
	int stop_fd; /* an eventfd that stops a process; -1: none */
	bool stopped;
};

/* -errno: it was not started. `done` as in ckpt_task_start(). */
int ckpt_s3_credential_fetch_start(
	struct ckpt_s3_credential_fetch *fetch, void (*done)(struct ckpt_task *task));
/* Has it end soon. Does nothing if none is running. */
void ckpt_s3_credential_fetch_stop(struct ckpt_s3_credential_fetch *fetch);
/* Clears everything but what the caller has set. It has ended. */
void ckpt_s3_credential_fetch_clear(struct ckpt_s3_credential_fetch *fetch);

/* Task bodies, each in its own file. They continue with ckpt_s3_credential_fetch_roles(), or end with `error` set. */
int ckpt_s3_credential_fetch_container(struct ckpt_task *task);
int ckpt_s3_credential_fetch_instance(struct ckpt_task *task);
int ckpt_s3_credential_fetch_web(struct ckpt_task *task);
int ckpt_s3_credential_fetch_roles(struct ckpt_task *task);

/* Prepares a GET of fetch->url. Set other fields before ckpt_s3_credential_fetch_ask(). */
struct ckpt_s3_ask *ckpt_s3_credential_fetch_prepare(
	struct ckpt_s3_credential_fetch *fetch, const char *whose);
void ckpt_s3_credential_fetch_ask(struct ckpt_s3_credential_fetch *fetch);
/* Its result; takes over the error. */
int ckpt_s3_credential_fetch_answer(struct ckpt_s3_credential_fetch *fetch);
/* Strips trailing whitespace. CKPT_EAUTH with a message if a header cannot contain the token. */
int ckpt_s3_credential_fetch_check_token(char *token, const char *whose, struct ckpt_error *err);

#endif
