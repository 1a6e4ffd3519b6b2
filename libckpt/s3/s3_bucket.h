/* SPDX-License-Identifier: Apache-2.0 */
/* A bucket with the settings and keys of the environment, over libcurl. */
#ifndef CKPT_S3_S3_BUCKET_H
#define CKPT_S3_S3_BUCKET_H

#include <ckpt/error.h>
#include "base/env.h"
#include "base/log.h"
#include "base/task.h"
#include "base/timer.h"
#include "s3/uri.h"

struct ckpt_bucket;
struct ckpt_s3_client;

/* Context of the core; all borrowed. */
struct ckpt_bucket_core {
	struct ckpt_env *env;
	struct ckpt_sched *sched;
	struct ckpt_timers *timers;
	struct ckpt_log *log;      /* may be NULL */
	uint64_t send_bytes_per_s; /* upload limit; 0: none */
	unsigned sharers; /* processes of this node that use the bucket; 0 and 1: only this one */
	bool patient;     /* see s3/client.h */
	bool gives_way;   /* as in struct ckpt_http_config */
};

/* On the caller's thread: reads the environment and ~/.aws. Sends no request. `place` is remote. */
int ckpt_bucket_open(const struct ckpt_s3_uri *place, const struct ckpt_bucket_core *core,
	struct ckpt_error *err, struct ckpt_bucket **ret_bucket);
/* For the core's thread only. */
struct ckpt_s3_client *ckpt_bucket_client(struct ckpt_bucket *bucket);
/* Waits for its threads, which are idle: any thread. Nothing is in flight. NULL is ignored. */
void ckpt_bucket_close(struct ckpt_bucket *bucket);

#endif
