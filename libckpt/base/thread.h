/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library, with a name and all signals blocked. */
#ifndef CKPT_BASE_THREAD_H
#define CKPT_BASE_THREAD_H

#include <pthread.h>
#include "base/compiler.h"

/* `name` has at most 15 bytes. Returns 0 or -errno. */
int ckpt_thread_start(
	pthread_t *ret_thread, const char *name, void *(*body)(void *), void *argument);

/* Lowers the priority of the calling thread, because nobody waits for its work. */
void ckpt_thread_give_way(void);

/* CPUs that this process may run on, at least 1. */
unsigned ckpt_thread_cpus(void);

/* Monotonic nanoseconds, for timeouts. They stand still while the machine is suspended. */
uint64_t ckpt_clock_ns(void);
/* The same including suspended time, for ages. Do not mix it with the other. */
uint64_t ckpt_age_clock_ns(void);

/* The monotonic time timeout_ms from now; UINT64_MAX if it is negative: no limit. */
uint64_t ckpt_deadline(int timeout_ms);
/* Milliseconds until then, rounded up; -1: no limit. */
int ckpt_deadline_left_ms(uint64_t deadline_ns);

/* Initialises a condition that waits on the monotonic clock. */
int ckpt_cond_init(pthread_cond_t *cond);

/* pthread_cond_timedwait with a monotonic deadline; UINT64_MAX: no limit. False when it has passed. */
bool ckpt_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* How often this process was forked: handles store it and compare. */
unsigned ckpt_fork_count(void);
/* Installs the pthread_atfork handler that counts. Called by every open; has an effect once. */
int ckpt_fork_watch(void);

/*
 * A child inherits every descriptor, and with it the locks of its parent, which then outlive the parent. Has children
 * close `fd`, until ckpt_fork_forget(), which must be called before it is closed. For a limited number of descriptors;
 * others stay inherited.
 */
void ckpt_fork_close(int fd);
void ckpt_fork_forget(int fd);

#endif
