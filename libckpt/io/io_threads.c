/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable backend: pread and pwrite on threads. Metadata operations have a pool of their own, so that they do not
 * wait behind transfers.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "io/io_direct.h"
#include "io/io_pool.h"

#define DATA_THREADS_MAX 8
#define FILE_THREADS     2

struct threads_io {
	struct ckpt_io io;
	struct ckpt_io_pool *data;
	struct ckpt_io_pool *files;
};

static void threads_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	struct threads_io *t = CKPT_CONTAINER(io, struct threads_io, io);
	bool data = req->op == CKPT_IO_OP_WRITE || req->op == CKPT_IO_OP_READ ||
		    req->op == CKPT_IO_OP_FDATASYNC;

	ckpt_io_pool_push(data ? t->data : t->files, req);
}

static int threads_close(struct ckpt_io *io, int timeout_ms)
{
	struct threads_io *t = CKPT_CONTAINER(io, struct threads_io, io);
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);

	int r = ckpt_io_pool_close(t->data, deadline_ns);
	int files = ckpt_io_pool_close(t->files, deadline_ns);
	/* A pool that stays allocated does not need this struct. */
	ckpt_free(t);
	return r < 0 ? r : files;
}

static const struct ckpt_io_ops threads_ops = {
	.name = "threads",
	.submit = threads_submit,
	.close = threads_close,
};

int ckpt_io_threads_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	struct threads_io *t = ckpt_alloc(sizeof(*t));
	unsigned depth = config->depth ? config->depth : CKPT_IO_DEPTH;

	if (!t)
		return -ENOMEM;
	t->io = (struct ckpt_io){
		.ops = &threads_ops, .inbox = config->inbox, .align = CKPT_IO_ALIGN};
	int r = ckpt_io_pool_open(
		ckpt_min_u64(depth, DATA_THREADS_MAX), "ckpt-io", config->inbox, &t->data);
	if (r == 0)
		r = ckpt_io_pool_open(FILE_THREADS, "ckpt-file", config->inbox, &t->files);
	if (r < 0) {
		(void)ckpt_io_pool_close(t->data, UINT64_MAX);
		ckpt_free(t);
		return r;
	}
	t->io.threads = ckpt_io_pool_threads(t->data) + ckpt_io_pool_threads(t->files);
	*ret_io = &t->io;
	return 0;
}
