/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library: named, with every signal blocked. */
#ifndef CKPT_BASE_THREAD_H
#define CKPT_BASE_THREAD_H

#include <pthread.h>
#include "base/compiler.h"

/* `name` at most 15 bytes. Returns 0 or -errno. */
int ckpt_thread_start(
	pthread_t *ret_thread, const char *name, void *(*body)(void *), void *argument);

/* The calling thread gives way to the others of the machine from now on: what it does nobody waits for. */
void ckpt_thread_give_way(void);

/* CPUs that this process may run on, at least 1. */
unsigned ckpt_thread_cpus(void);

/* Monotonic nanoseconds. They stand still while the machine is suspended: what is waited for is waited for whole. */
uint64_t ckpt_clock_ns(void);
/* The same of a clock that goes on then: how old something is. Not to be mixed with the other. */
uint64_t ckpt_age_clock_ns(void);

/* The monotonic time in timeout_ms from now; UINT64_MAX when it is negative: no end. */
uint64_t ckpt_deadline(int timeout_ms);
/* What is left until then, rounded up; -1: there is no end. */
int ckpt_deadline_left_ms(uint64_t deadline_ns);

/* Initialises a condition that waits on the monotonic clock. */
int ckpt_cond_init(pthread_cond_t *cond);

/* pthread_cond_timedwait with a monotonic deadline; UINT64_MAX: no end. False when it has passed. */
bool ckpt_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* How often this process has been a fork's child: handles remember it and compare. */
unsigned ckpt_fork_count(void);
/* Installs the pthread_atfork handler that counts. Called by every open; works once. */
int ckpt_fork_watch(void);

/*
 * A child gets a copy of every descriptor, and with it its parent's open-file locks: the parent's end
 * would not end them. `fd` is closed in children from now on, until it is forgotten, which must be
 * before it is closed. For as many at a time as there is room for; the others stay shared.
 */
void ckpt_fork_close(int fd);
void ckpt_fork_forget(int fd);

#endif
