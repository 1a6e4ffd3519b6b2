/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, got on the thread of the test: jobs are done when the rig runs, requests are answered by a function of the
 * test, and the clocks stand until they are set on.
 */
#ifndef CKPT_TESTS_KEY_RIG_H
#define CKPT_TESTS_KEY_RIG_H

#include "s3/credential_cache.h"

#define KEY_RIG_LINES 24
#define KEY_RIG_WALL  UINT64_C(1800000000) /* 2027-01-15T08:00:00Z */

/* What one request is answered. */
struct key_answer {
	int result; /* 0: an answer */
	int status;
	const char *text;
};

struct key_rig {
	char *dir; /* HOME */
	char home[512];
	const char *lines[KEY_RIG_LINES + 2];
	struct ckpt_s3_options options;
	struct ckpt_s3_environ vars;
	struct ckpt_s3_settings settings;
	struct ckpt_sched sched;
	struct ckpt_timers timers;
	struct ckpt_env env;
	struct ckpt_http http;
	struct ckpt_log *log;
	struct ckpt_s3_credential_cache *credentials;
	struct ckpt_error err;
	uint64_t now_ns;
	uint64_t wall_s;
	uint64_t random;
	unsigned process_ms;

	struct ckpt_job *job;
	struct ckpt_http_req *req;
	bool hold; /* requests are not answered */
	/* Decides; `number` counts from 1. NULL: nobody answers. */
	struct key_answer (*answer)(
		struct key_rig *rig, const struct ckpt_http_req *req, unsigned number);
	unsigned asked;
	char urls[2048]; /* "GET http://...\n" each */
};

/* A directory, and nothing else. */
void key_rig_make(struct key_rig *rig);
/* Below HOME; folders are made. */
void key_rig_put(struct key_rig *rig, const char *name, const char *text);
/* One more variable: "NAME=value", which is kept. */
void key_rig_set(struct key_rig *rig, const char *line);
/* Settings and keys. */
int key_rig_open(struct key_rig *rig);
/* Goes on until nothing moves, but for what waits for the clock. */
void key_rig_run(struct key_rig *rig);
void key_rig_sleep(struct key_rig *rig, uint64_t s);
/* Wants keys, and lets time pass until that has ended. Words are in rig->err. */
int key_rig_want(struct key_rig *rig);
/* The header that was sent with the request; NULL: none. */
const char *key_rig_header(const struct ckpt_http_req *req, const char *name);
/* Ends it; the log is read to its end, and nothing in it may hold `canary` (NULL: anything). */
void key_rig_close(struct key_rig *rig, const char *canary);

#endif
