/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the directory store for large files: written once, sealed, and read. */
#include <errno.h>
#include <string.h>

#include "store/store_file.h"

#define MIB      ((double)(1 << 20))
/* Short transfers in a row, each below the alignment, before the operation fails. */
#define IDLE_MAX 4

static uint64_t align_down(uint64_t n, uint64_t to)
{
	return n & ~(to - 1);
}

/* The alignment at which a short transfer can continue. */
static uint64_t unit(const struct ckpt_store_op *op)
{
	return op->object->direct ? op->store->align : 1;
}

/* Offset in the file of the next byte to transfer. */
static unsigned long long position(const struct ckpt_store_op *op)
{
	return op->offset + op->progress;
}

/*
 * This file system refuses O_DIRECT although the io found that it works: this store opens later files through the page
 * cache. True the first time.
 */
static bool give_up_direct(const struct ckpt_store_op *op)
{
	struct ckpt_store_file *file = ckpt_file_store(op);

	if (op->req.result != -EINVAL || !(op->req.flags & CKPT_OPEN_DIRECT))
		return false;
	file->direct = false;
	return true;
}

static unsigned direct_flag(const struct ckpt_store_op *op)
{
	return ckpt_file_store(op)->direct ? CKPT_OPEN_DIRECT : 0;
}

/* Space is reserved before the first write, so that a full disk is found early. */
static int reserve_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (op->size > 0) {
		ckpt_file_ask_length(op, CKPT_IO_OP_ALLOCATE, op->temp.fd, op->size);
		CKPT_AWAIT(task, !op->asked);
		r = (int)op->req.result;
		/* If the file system cannot reserve space, a write fails instead. */
		if (r < 0 && r != -EOPNOTSUPP && r != -ENOSYS)
			return ckpt_file_discard(
				op, ckpt_file_fail(op, r, "reserve %.1f MiB for %s",
					    (double)op->size / MIB, op->path));
	}
	ckpt_file_give(op, op->temp.fd);
	CKPT_TASK_END(task);
}

int ckpt_file_create_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_open(op, op->path, CKPT_OPEN_CREATE | direct_flag(op));
	CKPT_AWAIT(task, !op->asked);
	if (give_up_direct(op)) {
		/* The open may have failed after the file was created. */
		ckpt_file_ask_path(op, CKPT_IO_OP_UNLINK, op->path);
		CKPT_AWAIT(task, !op->asked);
		/* Its name would stay taken, and the next attempt would blame another process. */
		if (op->req.result < 0 && op->req.result != -ENOENT)
			return ckpt_file_fail(op, (int)op->req.result, "create %s", op->path);
		ckpt_file_ask_open(op, op->path, CKPT_OPEN_CREATE);
		CKPT_AWAIT(task, !op->asked);
	}
	if (op->req.result < 0)
		return ckpt_file_fail(op, (int)op->req.result, "create %s", op->path);
	op->temp.fd = (int)op->req.result;
	op->temp.direct = op->req.flags & CKPT_OPEN_DIRECT;
	memcpy(op->temp.path, op->path, sizeof(op->path));
	return ckpt_task_continue(task, reserve_body);
	CKPT_TASK_END(task);
}

/* Counts the bytes written. Fails if nothing moves any more. */
static int count_written(struct ckpt_store_op *op)
{
	int64_t moved = op->req.result;
	uint64_t before = op->progress;

	if (moved < 0)
		return (int)moved;
	CKPT_ASSERT((uint64_t)moved <= op->length - before);
	/* Where the transfer can continue; `length` is aligned. */
	op->progress = align_down(op->progress + (uint64_t)moved, unit(op));
	op->store->bytes_written += op->progress - before;
	if (op->progress > before)
		op->saved = 0;
	else if (moved == 0 || ++op->saved == IDLE_MAX)
		return -EIO;
	return 0;
}

int ckpt_file_write_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	while (op->progress < op->length) {
		ckpt_file_ask_bytes(op, CKPT_IO_OP_WRITE, op->object->fd, op->progress);
		CKPT_AWAIT(task, !op->asked);
		r = count_written(op);
		if (r < 0)
			return ckpt_file_fail(op, r, "write %.1f MiB at offset %llu of %s",
				(double)(op->length - op->progress) / MIB, position(op), op->path);
	}
	CKPT_TASK_END(task);
}

/*
 * The only sync of a shard. If it fails, the kernel has dropped the pages that it could not write, and a second sync
 * would succeed. So it is not repeated, and the file is not used.
 */
int ckpt_file_seal_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_length(op, CKPT_IO_OP_TRUNCATE, op->object->fd, op->size);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result < 0) {
		op->saved = ckpt_file_fail(op, (int)op->req.result, "cut %s to %llu bytes",
			op->path, (unsigned long long)op->size);
	} else {
		ckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->object->fd);
		CKPT_AWAIT(task, !op->asked);
		if (op->req.result < 0)
			op->saved = ckpt_file_fail(op, (int)op->req.result, "sync %s", op->path);
	}
	ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->object->fd);
	CKPT_AWAIT(task, !op->asked);
	op->object->fd = -1;
	if (op->saved == 0 && op->req.result < 0)
		op->saved = ckpt_file_fail(op, (int)op->req.result, "close %s", op->path);
	return op->saved;
	CKPT_TASK_END(task);
}

int ckpt_file_abandon_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (op->object->fd >= 0) {
		/* Its result does not matter: the file is deleted. */
		ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->object->fd);
		CKPT_AWAIT(task, !op->asked);
		op->object->fd = -1;
	}
	ckpt_file_ask_path(op, CKPT_IO_OP_UNLINK, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	return r < 0 && r != -ENOENT ? ckpt_file_fail(op, r, "remove %s", op->path) : 0;
	CKPT_TASK_END(task);
}

int ckpt_file_open_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_open(op, op->path, op->cached ? CKPT_OPEN_EXACT : direct_flag(op));
	CKPT_AWAIT(task, !op->asked);
	if (give_up_direct(op)) {
		ckpt_file_ask_open(op, op->path, 0);
		CKPT_AWAIT(task, !op->asked);
	}
	if (op->req.result < 0)
		return ckpt_file_fail(op, ckpt_file_opened(op), "open %s", op->path);
	op->size = op->req.size;
	op->temp.direct = op->req.flags & CKPT_OPEN_DIRECT;
	ckpt_file_give(op, (int)op->req.result);
	CKPT_TASK_END(task);
}

/*
 * A direct transfer continues only at a multiple of the alignment, so the last unaligned bytes are read again. If no
 * more bytes come, the file ends there.
 */
int ckpt_file_read_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	uint64_t end;

	CKPT_TASK_BEGIN(task);
	while (op->progress < op->length) {
		ckpt_file_ask_bytes(
			op, CKPT_IO_OP_READ, op->object->fd, align_down(op->progress, unit(op)));
		CKPT_AWAIT(task, !op->asked);
		if (op->req.result < 0)
			return ckpt_file_fail(op, (int)op->req.result,
				"read %.1f MiB at offset %llu of %s",
				(double)(op->length - op->progress) / MIB, position(op), op->path);
		end = op->req.off - op->offset + (uint64_t)op->req.result;
		CKPT_ASSERT(end <= op->length);
		if (end <= op->progress)
			break;
		op->progress = end;
	}
	op->store->bytes_read += op->progress;
	op->size = op->progress;
	if (op->length - op->progress >= op->store->align)
		return ckpt_file_fail(op, CKPT_EINCOMPLETE,
			"read %llu bytes at offset %llu of %s, which ends at %llu",
			(unsigned long long)op->length, (unsigned long long)op->offset, op->path,
			position(op));
	CKPT_TASK_END(task);
}
