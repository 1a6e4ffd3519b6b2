/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that execute requests, oldest first. Used by both backends. */
#ifndef CKPT_IO_IO_POOL_H
#define CKPT_IO_IO_POOL_H

#include "io/io.h"

struct ckpt_io_pool;

/* Starts up to `threads` threads, at least one. `name` has at most 12 bytes. */
int ckpt_io_pool_open(unsigned threads, const char *name, struct ckpt_inbox *inbox,
	struct ckpt_io_pool **ret_pool);
unsigned ckpt_io_pool_threads(const struct ckpt_io_pool *pool);
/* Any thread. */
void ckpt_io_pool_push(struct ckpt_io_pool *pool, struct ckpt_io_req *req);
/*
 * Finishes all requests, ends the threads and frees. -ETIMEDOUT if that is not done by `deadline_ns`: the pool stays
 * allocated, and starts no more requests. NULL is ignored.
 */
int ckpt_io_pool_close(struct ckpt_io_pool *pool, uint64_t deadline_ns);

#endif
