/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the directory store for small files: put, publish, get. */
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "store/store_file.h"

#define TEMP_TRIES 8

static int put_end_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
	CKPT_AWAIT(task, !op->asked);
	op->temp.fd = -1;
	r = (int)op->req.result;
	return r < 0 ? ckpt_file_discard(op, ckpt_file_fail(op, r, "close %s", op->path)) : 0;
	CKPT_TASK_END(task);
}

/* The file has its name, which is durable once its directory is synced. */
static int publish_sync_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_set_parent(op, op->path);
	ckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->parent);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result >= 0) {
		if (op->locked)
			ckpt_file_give(op, op->temp.fd);
		return 0;
	}
	op->saved = ckpt_file_fail(op, (int)op->req.result,
		"sync the directory of %s, which may not survive a power cut", op->path);
	if (op->temp.fd >= 0) {
		ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
		CKPT_AWAIT(task, !op->asked);
	}
	return op->saved;
	CKPT_TASK_END(task);
}

/* Another process gave the name, and may have died before syncing the directory. -EEXIST must be durable, too. */
static int taken_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_set_parent(op, op->path);
	ckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->parent);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result < 0)
		return ckpt_file_discard(op, ckpt_file_fail(op, (int)op->req.result,
						     "sync the directory of %s, which exists but "
						     "may not survive a power cut",
						     op->path));
	return ckpt_file_discard(op, ckpt_file_fail(op, -EEXIST, "publish %s", op->path));
	CKPT_TASK_END(task);
}

/* The temporary file is durable. The lock is taken before any process can know the name. */
static int publish_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (op->locked)
		ckpt_file_ask_lock(op, op->temp.fd);
	else
		ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
	CKPT_AWAIT(task, !op->asked);
	if (!op->locked)
		op->temp.fd = -1;
	r = (int)op->req.result;
	if (r < 0)
		return ckpt_file_discard(op, ckpt_file_fail(op, r, "%s %s",
						     op->locked ? "lock" : "close", op->temp.path));
	if (op->not_after_ns && ckpt_env_age(op->store->env) > op->not_after_ns)
		return ckpt_file_discard(
			op, ckpt_file_fail(op, -ETIMEDOUT, "publish %s", op->path));
	ckpt_file_ask_rename(op, op->temp.path, op->path, op->over ? CKPT_RENAME_REPLACE : 0);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	if (r == -EEXIST && !op->fleeting)
		return ckpt_task_continue(task, taken_body);
	if (r < 0)
		return ckpt_file_discard(op, ckpt_file_fail(op, r, "publish %s", op->path));
	if (op->fleeting)
		return 0;
	return ckpt_task_continue(task, publish_sync_body);
	CKPT_TASK_END(task);
}

static int count_written(struct ckpt_store_op *op)
{
	int64_t moved = op->req.result;

	if (moved <= 0)
		return moved < 0 ? (int)moved : -EIO;
	CKPT_ASSERT((uint64_t)moved <= op->length - op->progress);
	op->progress += (uint64_t)moved;
	op->store->bytes_written += (uint64_t)moved;
	return 0;
}

static int put_write_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	while (op->progress < op->length) {
		ckpt_file_ask_bytes(op, CKPT_IO_OP_WRITE, op->temp.fd, op->progress);
		CKPT_AWAIT(task, !op->asked);
		r = count_written(op);
		if (r < 0)
			return ckpt_file_discard(
				op, ckpt_file_fail(op, r, "write %llu bytes of %s",
					    (unsigned long long)op->length, op->temp.path));
	}
	if (op->fleeting)
		return ckpt_task_continue(task, publish_body);
	/* Called once: see ckpt_file_seal_body(). */
	ckpt_file_ask_fd(op, CKPT_IO_OP_FDATASYNC, op->temp.fd);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	if (r < 0)
		return ckpt_file_discard(op, ckpt_file_fail(op, r, "sync %s", op->temp.path));
	return ckpt_task_continue(task, op->verb == CKPT_STORE_PUT ? put_end_body : publish_body);
	CKPT_TASK_END(task);
}

static void name_temp(struct ckpt_store_op *op)
{
	int len;

	if (op->verb == CKPT_STORE_PUT)
		len = snprintf(op->temp.path, sizeof(op->temp.path), "%s", op->path);
	else
		len = snprintf(op->temp.path, sizeof(op->temp.path), "%s" CKPT_STORE_TEMP "%016llx",
			op->path, (unsigned long long)ckpt_env_random(op->store->env));
	CKPT_ASSERT(len > 0 && (size_t)len < sizeof(op->temp.path));
}

int ckpt_file_put_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		name_temp(op);
		ckpt_file_ask_open(op, op->temp.path, CKPT_OPEN_CREATE);
		CKPT_AWAIT(task, !op->asked);
		r = (int)op->req.result;
	} while (r == -EEXIST && op->verb == CKPT_STORE_PUBLISH && ++op->saved < TEMP_TRIES);
	/* A temporary name that exists is no answer about the published name. */
	if (r == -EEXIST && op->verb == CKPT_STORE_PUBLISH)
		r = -EIO;
	if (r < 0)
		return ckpt_file_fail(op, r, "create %s", op->temp.path);
	op->temp.fd = r;
	return ckpt_task_continue(task, put_write_body);
	CKPT_TASK_END(task);
}

static int get_close_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	/* Nothing was written, so nothing can be lost. */
	ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
	CKPT_AWAIT(task, !op->asked);
	if (op->saved < 0) {
		ckpt_free(op->data);
		op->data = NULL;
		op->length = 0;
	}
	return op->saved;
	CKPT_TASK_END(task);
}

static int get_read_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	while (op->progress < op->length) {
		ckpt_file_ask_bytes(op, CKPT_IO_OP_READ, op->temp.fd, op->progress);
		CKPT_AWAIT(task, !op->asked);
		if (op->req.result < 0) {
			op->saved = ckpt_file_fail(op, (int)op->req.result, "read %s", op->path);
			break;
		}
		if (op->req.result == 0)
			break;
		CKPT_ASSERT((uint64_t)op->req.result <= op->length - op->progress);
		op->progress += (uint64_t)op->req.result;
	}
	op->length = op->progress;
	op->store->bytes_read += op->progress;
	return ckpt_task_continue(task, get_close_body);
	CKPT_TASK_END(task);
}

int ckpt_file_get_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	uint64_t limit = op->size;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_open(op, op->path, 0);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result < 0)
		return ckpt_file_fail(op, ckpt_file_opened(op), "open %s", op->path);
	op->temp.fd = (int)op->req.result;
	if (op->req.size > limit) {
		op->saved = ckpt_file_fail(op, -EFBIG,
			"read %s, which has %llu bytes: at most %llu are taken", op->path,
			(unsigned long long)op->req.size, (unsigned long long)limit);
		return ckpt_task_continue(task, get_close_body);
	}
	/* A NUL after it, for callers that read it as a string. */
	op->data = ckpt_alloc(op->req.size + 1);
	if (!op->data) {
		op->saved = ckpt_file_fail(op, -ENOMEM, "read %s", op->path);
		return ckpt_task_continue(task, get_close_body);
	}
	op->length = op->req.size;
	return ckpt_task_continue(task, get_read_body);
	CKPT_TASK_END(task);
}
