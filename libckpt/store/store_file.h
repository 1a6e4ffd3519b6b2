/* SPDX-License-Identifier: Apache-2.0 */
/* Internal header of the store in a directory. Each verb is a task over requests to the io. */
#ifndef CKPT_STORE_STORE_FILE_H
#define CKPT_STORE_STORE_FILE_H

#include "store/store.h"

struct ckpt_store_file {
	struct ckpt_store store;
	struct ckpt_io *io;
	int root;    /* borrowed */
	bool direct; /* whether shards are opened with O_DIRECT */
	char label[];
};

struct ckpt_store_op *ckpt_file_op(struct ckpt_task *task);
struct ckpt_store_file *ckpt_file_store(const struct ckpt_store_op *op);

/* Hands op->req to the io. Then CKPT_AWAIT(task, !op->asked), and look at op->req.result. */
void ckpt_file_ask_path(struct ckpt_store_op *op, enum ckpt_io_op what, const char *path);
void ckpt_file_ask_open(struct ckpt_store_op *op, const char *path, unsigned flags);
/* The result of an open. -EBUSY: another process has a lease on the file, which is no lock. */
int ckpt_file_opened(const struct ckpt_store_op *op);
void ckpt_file_ask_rename(
	struct ckpt_store_op *op, const char *path, const char *new_path, unsigned flags);
void ckpt_file_ask_fd(struct ckpt_store_op *op, enum ckpt_io_op what, int fd);
void ckpt_file_ask_lock(struct ckpt_store_op *op, int fd);
void ckpt_file_ask_length(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t length);
/* Transfers bytes [done, op->length) of op->data, which are at op->offset in the file. */
void ckpt_file_ask_bytes(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t done);

/* Hands `fd` to the caller: op->object becomes op->path, open, and direct if op->temp is. */
void ckpt_file_give(struct ckpt_store_op *op, int fd);

/* Sets op->parent to the directory of `path`. */
void ckpt_file_set_parent(struct ckpt_store_op *op, const char *path);

/*
 * Sets op->err to "cannot <what> in <store>: <why>: <what to do>", unless op->quiet and the code is an answer. Returns
 * the code.
 */
CKPT_PRINTF(3, 4)
int ckpt_file_fail(struct ckpt_store_op *op, int code, const char *what, ...);

/*
 * After a failure: closes and unlinks op->temp, then ends the operation with `code`. Use: `return ckpt_file_discard(op,
 * code);`
 */
int ckpt_file_discard(struct ckpt_store_op *op, int code);

/* One body for each verb. */
ckpt_task_fn ckpt_file_mkdir_body;
ckpt_task_fn ckpt_file_create_body;
ckpt_task_fn ckpt_file_write_body;
ckpt_task_fn ckpt_file_seal_body;
ckpt_task_fn ckpt_file_abandon_body;
ckpt_task_fn ckpt_file_put_body; /* PUT and PUBLISH */
ckpt_task_fn ckpt_file_sync_body;
ckpt_task_fn ckpt_file_get_body;
ckpt_task_fn ckpt_file_open_body;
ckpt_task_fn ckpt_file_read_body;
ckpt_task_fn ckpt_file_close_body;
ckpt_task_fn ckpt_file_list_body;
ckpt_task_fn ckpt_file_remove_body;
ckpt_task_fn ckpt_file_rmdir_body;
ckpt_task_fn ckpt_file_lock_body;

#endif
