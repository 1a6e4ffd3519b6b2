/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the directory store for names and locks. */
#include <errno.h>

#include "store/store_file.h"

/*
 * The parent is synced even if the directory exists: its creator may have died before syncing, and files put into the
 * directory could be lost with it.
 */
int ckpt_file_mkdir_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_path(op, CKPT_IO_OP_MKDIR, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	if (r < 0 && r != -EEXIST)
		return ckpt_file_fail(op, r, "make the directory %s", op->path);
	ckpt_file_set_parent(op, op->path);
	ckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->parent);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	return r < 0 ? ckpt_file_fail(op, r, "sync the directory %s", op->parent) : 0;
	CKPT_TASK_END(task);
}

int ckpt_file_sync_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_path(op, CKPT_IO_OP_SYNC_DIR, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	return r < 0 ? ckpt_file_fail(op, r, "sync the directory %s", op->path) : 0;
	CKPT_TASK_END(task);
}

int ckpt_file_list_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_path(op, CKPT_IO_OP_LIST, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	if (r < 0)
		return ckpt_file_fail(op, r, "list the directory %s", op->path);
	op->listing = op->req.listing;
	CKPT_TASK_END(task);
}

int ckpt_file_remove_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_path(op, CKPT_IO_OP_UNLINK, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	return r < 0 && r != -ENOENT ? ckpt_file_fail(op, r, "remove %s", op->path) : 0;
	CKPT_TASK_END(task);
}

int ckpt_file_rmdir_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_path(op, CKPT_IO_OP_RMDIR, op->path);
	CKPT_AWAIT(task, !op->asked);
	r = (int)op->req.result;
	if (r < 0 && r != -ENOENT && r != -ENOTEMPTY && r != -EEXIST)
		return ckpt_file_fail(op, r, "remove the directory %s", op->path);
	CKPT_TASK_END(task);
}

int ckpt_file_close_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->object->fd);
	CKPT_AWAIT(task, !op->asked);
	op->object->fd = -1;
	r = (int)op->req.result;
	return r < 0 ? ckpt_file_fail(op, r, "close %s", op->path) : 0;
	CKPT_TASK_END(task);
}

int ckpt_file_lock_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	ckpt_file_ask_open(op, op->path, op->shared ? 0 : CKPT_OPEN_RDWR);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result < 0)
		return ckpt_file_fail(op, ckpt_file_opened(op), "open %s to lock it", op->path);
	op->temp.fd = (int)op->req.result;
	ckpt_file_ask_lock(op, op->temp.fd);
	CKPT_AWAIT(task, !op->asked);
	if (op->req.result < 0) {
		op->saved = ckpt_file_fail(op, (int)op->req.result, "lock %s", op->path);
		ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
		CKPT_AWAIT(task, !op->asked);
		return op->saved;
	}
	ckpt_file_give(op, op->temp.fd);
	CKPT_TASK_END(task);
}
