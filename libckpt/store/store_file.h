/* SPDX-License-Identifier: Apache-2.0 */
/* The store in a directory, as its own files see it. Each verb is a task over requests to the io. */
#ifndef CKPT_STORE_STORE_FILE_H
#define CKPT_STORE_STORE_FILE_H

#include "store/store.h"

struct ckpt_store_file {
	struct ckpt_store store;
	struct ckpt_io *io;
	int root;    /* borrowed */
	bool direct; /* shards are opened with O_DIRECT, from now on */
	char label[];
};

struct ckpt_store_op *ckpt_file_op(struct ckpt_task *task);
struct ckpt_store_file *ckpt_file_store(const struct ckpt_store_op *op);

/* Hands op->req to the io; then CKPT_AWAIT(task, !op->asked) and look at op->req.result. */
void ckpt_file_ask_path(struct ckpt_store_op *op, enum ckpt_io_op what, const char *path);
void ckpt_file_ask_open(struct ckpt_store_op *op, const char *path, unsigned flags);
/* What an open has come to. -EBUSY: somebody has a lease on the file, which is no lock. */
int ckpt_file_opened(const struct ckpt_store_op *op);
void ckpt_file_ask_rename(
	struct ckpt_store_op *op, const char *path, const char *new_path, unsigned flags);
void ckpt_file_ask_fd(struct ckpt_store_op *op, enum ckpt_io_op what, int fd);
void ckpt_file_ask_lock(struct ckpt_store_op *op, int fd);
void ckpt_file_ask_length(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t length);
/* WRITE and READ of [done, op->length) of op->data, which lies at op->offset in the file. */
void ckpt_file_ask_bytes(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t done);

/* Hands `fd` to the caller: op->object is op->path, open, and direct if op->temp is. */
void ckpt_file_give(struct ckpt_store_op *op, int fd);

/* Sets op->parent to the directory that holds `path`. */
void ckpt_file_set_parent(struct ckpt_store_op *op, const char *path);

/*
 * Words the failure into op->err: "cannot <what> in <store>: <why>: <what to do>", unless op->quiet
 * says that the code is an answer. Returns the code.
 */
CKPT_PRINTF(3, 4)
int ckpt_file_fail(struct ckpt_store_op *op, int code, const char *what, ...);

/*
 * After a failure on the way: closes and unlinks op->temp, then ends the operation with `code`.
 * `return ckpt_file_discard(op, code);`
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
