/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of one engine: got when they are first wanted, and got anew before they expire, by one fetch at a time
 * for all who want them. All on the core's thread.
 *
 *	ckpt_s3_credential_cache_want(credentials, &p->want, task);
 *	CKPT_AWAIT(task, p->want.done);
 *	if (p->want.result < 0)
 *		return ...;
 *	keys = ckpt_s3_credential_cache_keys(credentials);      sign at once: they are not there for ever
 *	p->serial = p->want.serial;                        for ckpt_s3_credential_cache_expired()
 *
 * A quarter of an hour before the end they are got in the background (some minutes later at random, so that not all
 * ranks ask at once); from ten minutes before it they are waited for. If that fails, those that still hold are given
 * out, and it is tried again after a while; but none that hold for less than a minute. Keys that were short-lived from the
 * start are got anew in the last third of their time.
 */
#ifndef CKPT_S3_CREDENTIAL_CACHE_H
#define CKPT_S3_CREDENTIAL_CACHE_H

#include "base/log.h"
#include "s3/credential_http.h"
#include "s3/credentials.h"
#include "s3/environ.h"
#include "s3/settings.h"

struct ckpt_s3_credential_cache;

/* All borrowed until it is closed. */
struct ckpt_s3_credential_cache_config {
	struct ckpt_s3_asking with;
	const struct ckpt_s3_environ *vars;
	const struct ckpt_s3_settings *settings;
	struct ckpt_log *log; /* may be NULL */
	unsigned process_ms;  /* of a credential_process; 0: a minute */
};

/* Zero before it is used, and again when it is done with. */
struct ckpt_s3_want {
	bool done;
	int result;
	uint64_t serial; /* of the keys */
	struct ckpt_task *task;
	struct ckpt_s3_want *next;
};

/* Asks nobody yet. 0 or -ENOMEM. */
int ckpt_s3_credential_cache_open(const struct ckpt_s3_credential_cache_config *config,
	struct ckpt_s3_credential_cache **ret_credentials);

/* May be done at once. */
void ckpt_s3_credential_cache_want(struct ckpt_s3_credential_cache *credentials,
	struct ckpt_s3_want *want, struct ckpt_task *task);
/* The task does not wait any more. Harmless when it is done. */
void ckpt_s3_credential_cache_unwant(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_s3_want *want);
/* Behind a want that went well, until the task returns. NULL: requests are not signed. */
const struct ckpt_s3_credentials *ckpt_s3_credential_cache_keys(
	const struct ckpt_s3_credential_cache *credentials);
/* Why the last want has failed. */
const struct ckpt_error *ckpt_s3_credential_cache_error(
	const struct ckpt_s3_credential_cache *credentials);
/* Where the keys are from, for messages: "profile 'x' in ~/.aws/config"; "" before there are any. */
const char *ckpt_s3_credential_cache_from(const struct ckpt_s3_credential_cache *credentials);
/*
 * A server says that the keys of this want have expired (ExpiredToken): the next want waits for others. Those who say
 * so of keys that are not in use any more change nothing.
 */
void ckpt_s3_credential_cache_expired(
	struct ckpt_s3_credential_cache *credentials, uint64_t serial);

/* A server's clock, less ours, as it was found out: by it, they expire, and services that give keys are asked. */
void ckpt_s3_credential_cache_clock(struct ckpt_s3_credential_cache *credentials, int64_t offset_s);

/* Ends what is under way; who waits is told -ECANCELED, and so is who wants any later. */
void ckpt_s3_credential_cache_stop(struct ckpt_s3_credential_cache *credentials);
/* Nothing is under way: it may be closed. `task` is woken when that has become so; NULL: nobody. */
bool ckpt_s3_credential_cache_idle(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_task *task);
/* Idle, and nobody waits. NULL is ignored. */
void ckpt_s3_credential_cache_close(struct ckpt_s3_credential_cache *credentials);

#endif
