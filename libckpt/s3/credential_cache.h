/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of one engine. They are fetched when first needed, and again before they expire, by one fetch at a time for
 * all requests. On the core's thread.
 *
 *
 *
 *
 *
 *
 *
 *
 * Fifteen minutes before they expire (some minutes later at random, so that not all ranks ask at once) they are fetched
 * in the background; from ten minutes before that, requests wait. If a fetch fails, the current keys are used and it is
 * repeated later, but keys with less than a minute left are not used. Keys with a short lifetime are fetched again in
 * its last third.
 */
#ifndef CKPT_S3_CREDENTIAL_CACHE_H
#define CKPT_S3_CREDENTIAL_CACHE_H

#include "base/log.h"
#include "s3/credential_http.h"
#include "s3/credentials.h"
#include "s3/environ.h"
#include "s3/settings.h"

struct ckpt_s3_credential_cache;

/* All borrowed until the cache is closed. */
struct ckpt_s3_credential_cache_config {
	struct ckpt_s3_asking with;
	const struct ckpt_s3_environ *vars;
	const struct ckpt_s3_settings *settings;
	struct ckpt_log *log; /* may be NULL */
	unsigned process_ms;  /* time limit of a credential_process; 0: a minute */
};

/* Zero before and after its use. */
struct ckpt_s3_want {
	bool done;
	int result;
	uint64_t serial; /* of the keys */
	struct ckpt_task *task;
	struct ckpt_s3_want *next;
};

/* Sends no request. 0 or -ENOMEM. */
int ckpt_s3_credential_cache_open(const struct ckpt_s3_credential_cache_config *config,
	struct ckpt_s3_credential_cache **ret_credentials);

/* It may be done at once. */
void ckpt_s3_credential_cache_want(struct ckpt_s3_credential_cache *credentials,
	struct ckpt_s3_want *want, struct ckpt_task *task);
/* Cancels the want. Does nothing if it is done. */
void ckpt_s3_credential_cache_unwant(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_s3_want *want);
/* After a successful want, valid until the task returns. NULL: requests are not signed. */
const struct ckpt_s3_credentials *ckpt_s3_credential_cache_keys(
	const struct ckpt_s3_credential_cache *credentials);
/* The error of the last failed want. */
const struct ckpt_error *ckpt_s3_credential_cache_error(
	const struct ckpt_s3_credential_cache *credentials);
/* The source of the keys, for messages: "profile 'x' in ~/.aws/config"; "" before there are any. */
const char *ckpt_s3_credential_cache_from(const struct ckpt_s3_credential_cache *credentials);
/*
 * A server has rejected the keys of this want as expired (ExpiredToken): the next want waits for new ones. Does nothing
 * if other keys are in use already.
 */
void ckpt_s3_credential_cache_expired(
	struct ckpt_s3_credential_cache *credentials, uint64_t serial);

/* Sets the server's clock minus ours. Expiry is computed by it, and requests for keys are signed with it. */
void ckpt_s3_credential_cache_clock(struct ckpt_s3_credential_cache *credentials, int64_t offset_s);

/* Cancels a running fetch. Waiting and later wants get -ECANCELED. */
void ckpt_s3_credential_cache_stop(struct ckpt_s3_credential_cache *credentials);
/* Whether no fetch is running, so that it can be closed. `task` is woken when that becomes so; NULL: none. */
bool ckpt_s3_credential_cache_idle(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_task *task);
/* It is idle, and nothing waits. NULL is ignored. */
void ckpt_s3_credential_cache_close(struct ckpt_s3_credential_cache *credentials);

#endif
