/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that execute requests, oldest first. What both backends are made of. */
#ifndef CKPT_IO_IO_POOL_H
#define CKPT_IO_IO_POOL_H

#include "io/io.h"

struct ckpt_io_pool;

/* Starts at most `threads`, at least one. `name` at most 12 bytes. */
int ckpt_io_pool_open(unsigned threads, const char *name, struct ckpt_inbox *inbox,
	struct ckpt_io_pool **ret_pool);
unsigned ckpt_io_pool_threads(const struct ckpt_io_pool *pool);
/* Any thread. */
void ckpt_io_pool_push(struct ckpt_io_pool *pool, struct ckpt_io_req *req);
/*
 * Finishes what was pushed, ends the threads and frees. -ETIMEDOUT when that takes beyond
 * `deadline_ns`: the pool stays behind, and starts nothing any more. NULL is ignored.
 */
int ckpt_io_pool_close(struct ckpt_io_pool *pool, uint64_t deadline_ns);

#endif
