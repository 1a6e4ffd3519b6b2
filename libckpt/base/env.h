/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world as the core sees it: time, randomness, and threads that do work for it. The real one is
 * env_os.c; the simulator brings its own, so that a seed decides everything.
 */
#ifndef CKPT_BASE_ENV_H
#define CKPT_BASE_ENV_H

#include "base/inbox.h"

struct ckpt_env;

/*
 * CPU work (copying, digests) handed to a worker. Owned by the worker from ckpt_env_run() until
 * `node` comes back through the inbox.
 */
struct ckpt_job {
	struct ckpt_node node; /* run() on the core's thread when the work is done */
	/*
	 * On a worker; must not block on anything but memory. Exceptions: s3/credential_fetch.h, s3/s3_bucket.h; and the
	 * worker of ckpt_devices_env(), which has nothing else to do.
	 */
	void (*work)(struct ckpt_job *job);
	struct ckpt_job *next;
	bool urgent; /* before those that are not: somebody waits */
};

struct ckpt_env_ops {
	const char *name;
	uint64_t (*now_ns)(struct ckpt_env *env); /* monotonic */
	/* Monotonic, and goes on while the machine is suspended. NULL: as now_ns, for it never is */
	uint64_t (*age_ns)(struct ckpt_env *env);
	/* Since the epoch; it may jump. For labels, and for dates that others have set. */
	uint64_t (*wall_ms)(struct ckpt_env *env);
	uint64_t (*random)(struct ckpt_env *env);
	void (*run)(struct ckpt_env *env, struct ckpt_job *job); /* never blocks, cannot fail */
};

struct ckpt_env {
	const struct ckpt_env_ops *ops;
	struct ckpt_inbox *inbox; /* where jobs and requests come back */
};

/* For what is waited for: no shorter than it should be. It stands still while the machine is suspended. */
uint64_t ckpt_env_now(struct ckpt_env *env);
/* For how old something is: what others have done since. Of one clock with itself alone, and not with the other. */
uint64_t ckpt_env_age(struct ckpt_env *env);
uint64_t ckpt_env_wall_ms(struct ckpt_env *env);
uint64_t ckpt_env_random(struct ckpt_env *env);
/* Preconditions: work and node.run are set, and the job is not under way. */
void ckpt_env_run(struct ckpt_env *env, struct ckpt_job *job);

/* The operating system's clock and random source, and `threads` workers that block all signals. */
struct ckpt_env_os;
int ckpt_env_os_open(unsigned threads, struct ckpt_inbox *inbox, struct ckpt_env_os **ret_env);
struct ckpt_env *ckpt_env_os_env(struct ckpt_env_os *os);
/* The workers are called ckpt-work-0 and so on; from now on `name`, of 8 characters at most, instead of ckpt-work. */
void ckpt_env_os_name(struct ckpt_env_os *os, const char *name);
unsigned ckpt_env_os_threads(const struct ckpt_env_os *os);
/* Finishes the jobs that were handed over, then ends the workers. NULL is ignored. */
void ckpt_env_os_close(struct ckpt_env_os *os);

#endif
