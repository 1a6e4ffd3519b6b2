/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_io_ops, and the choice of a backend. */
#include "io/io.h"

#include <errno.h>
#include <ckpt/engine.h>

#include "config.h"
#include "io/io_direct.h"

static bool uses_path(enum ckpt_io_op op)
{
	return op == CKPT_IO_OP_OPEN || op == CKPT_IO_OP_MKDIR || op == CKPT_IO_OP_RENAME ||
	       op == CKPT_IO_OP_UNLINK || op == CKPT_IO_OP_RMDIR || op == CKPT_IO_OP_SYNC_DIR ||
	       op == CKPT_IO_OP_LIST;
}

static void check(const struct ckpt_io_req *req)
{
	CKPT_ASSERT(req->op >= CKPT_IO_OP_WRITE && req->op <= CKPT_IO_OP_FORGET);
	CKPT_ASSERT(req->node.run != NULL);
	if (uses_path(req->op)) {
		CKPT_ASSERT(req->root >= 0 && req->path);
		CKPT_ASSERT(req->op != CKPT_IO_OP_RENAME || req->new_path);
	} else if (req->op == CKPT_IO_OP_FORGET) {
		CKPT_ASSERT(req->slot >= 0 && req->len > 0);
	} else {
		CKPT_ASSERT(req->fd >= 0);
		CKPT_ASSERT(req->len <= INT64_MAX && req->off <= INT64_MAX - req->len);
	}
	if (req->op == CKPT_IO_OP_WRITE || req->op == CKPT_IO_OP_READ)
		CKPT_ASSERT(req->buf && req->len > 0);
}

void ckpt_io_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	check(req);
	req->result = 0;
	req->size = 0;
	req->listing = (struct ckpt_listing){0};
	req->next = NULL;
	req->tries = 0;
	io->ops->submit(io, req);
}

int ckpt_io_register_slots(struct ckpt_io *io, void *base, size_t size, unsigned count)
{
	CKPT_ASSERT(base && size > 0 && count > 0 && !io->registered);
	if (!io->ops->register_slots)
		return -EOPNOTSUPP;
	int r = io->ops->register_slots(io, base, size, count);
	CKPT_ASSERT(r <= 0 && io->registered == (r == 0));
	return r;
}

int ckpt_io_close(struct ckpt_io *io, int timeout_ms)
{
	if (!io)
		return 0;
	int r = io->ops->close(io, timeout_ms);
	CKPT_ASSERT(r == 0 || r == -ETIMEDOUT);
	return r;
}

#if !CKPT_HAVE_IO_URING
int ckpt_io_uring_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	(void)config;
	(void)ret_io;
	return -ENOSYS;
}
#endif

static int open_backend(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	int probe_error = 0;

	if (config->kind != CKPT_IO_THREADS) {
		int r = ckpt_io_uring_open(config, ret_io);
		if (r == 0 || config->kind == CKPT_IO_URING)
			return r;
		probe_error = r;
	}
	int r = ckpt_io_threads_open(config, ret_io);
	if (r == 0)
		(*ret_io)->probe_error = probe_error;
	return r;
}

int ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	struct ckpt_io *io;

	CKPT_ASSERT(config->inbox);
	if (config->kind > CKPT_IO_THREADS || config->depth > CKPT_IO_DEPTH_MAX)
		return -EINVAL;
	int r = open_backend(config, &io);
	if (r < 0)
		return r;
	io->align = CKPT_IO_ALIGN;
	io->direct = config->root >= 0 && ckpt_io_direct_works(config->root, config->read_only);
	*ret_io = io;
	return 0;
}
