/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of the core: time, randomness, and worker threads. The real one is env_os.c; the simulator has its
 * own, so that a seed determines everything.
 */
#ifndef CKPT_BASE_ENV_H
#define CKPT_BASE_ENV_H

#include "base/inbox.h"

struct ckpt_env;

/*
 * Work for the CPU (copying, digests) on a worker. Owned by the worker from ckpt_env_run() until `node` returns through
 * the inbox.
 */
struct ckpt_job {
	struct ckpt_node node; /* run() is called on the core's thread when the work is done */
	/*
	 * On a worker; must not block on anything but memory. Exceptions: s3/credential_fetch.h, s3/s3_bucket.h, and
	 * the worker of ckpt_devices_env(), which does nothing else.
	 */
	void (*work)(struct ckpt_job *job);
	struct ckpt_job *next;
	bool urgent; /* runs before other jobs, because somebody waits */
};

struct ckpt_env_ops {
	const char *name;
	uint64_t (*now_ns)(struct ckpt_env *env); /* monotonic */
	/* Monotonic, including the time when the machine is suspended. NULL: now_ns, because it never is. */
	uint64_t (*age_ns)(struct ckpt_env *env);
	/* Since the epoch; may jump. For labels, and for comparing with dates of others. */
	uint64_t (*wall_ms)(struct ckpt_env *env);
	uint64_t (*random)(struct ckpt_env *env);
	void (*run)(struct ckpt_env *env, struct ckpt_job *job); /* never blocks, cannot fail */
};

struct ckpt_env {
	const struct ckpt_env_ops *ops;
	struct ckpt_inbox *inbox; /* receives completed jobs and requests */
};

/* For timeouts. Stands still while the machine is suspended. */
uint64_t ckpt_env_now(struct ckpt_env *env);
/* For the age of something. Compare it only with other values of this clock. */
uint64_t ckpt_env_age(struct ckpt_env *env);
uint64_t ckpt_env_wall_ms(struct ckpt_env *env);
uint64_t ckpt_env_random(struct ckpt_env *env);
/* Requires that work and node.run are set, and that the job is not running. */
void ckpt_env_run(struct ckpt_env *env, struct ckpt_job *job);

/* The operating system's clocks and random source, and `threads` workers that block all signals. */
struct ckpt_env_os;
int ckpt_env_os_open(unsigned threads, struct ckpt_inbox *inbox, struct ckpt_env_os **ret_env);
struct ckpt_env *ckpt_env_os_env(struct ckpt_env_os *os);
/* Workers are named ckpt-work-0 and so on; this replaces ckpt-work by `name`, of at most 8 characters. */
void ckpt_env_os_name(struct ckpt_env_os *os, const char *name);
unsigned ckpt_env_os_threads(const struct ckpt_env_os *os);
/* Finishes all jobs, then ends the workers. NULL is ignored. */
void ckpt_env_os_close(struct ckpt_env_os *os);

#endif
