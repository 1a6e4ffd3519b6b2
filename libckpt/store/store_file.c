/* SPDX-License-Identifier: Apache-2.0 */
/* The store in a directory: its table, and helpers of all verbs. */
#include "store/store_file.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

struct ckpt_store_op *ckpt_file_op(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_store_op, task);
}

struct ckpt_store_file *ckpt_file_store(const struct ckpt_store_op *op)
{
	return CKPT_CONTAINER(op->store, struct ckpt_store_file, store);
}

static void request_back(struct ckpt_node *node)
{
	struct ckpt_io_req *req = CKPT_CONTAINER(node, struct ckpt_io_req, node);
	struct ckpt_store_op *op = CKPT_CONTAINER(req, struct ckpt_store_op, req);

	CKPT_ASSERT(op->asked);
	op->asked = false;
	ckpt_task_wake(&op->task);
}

static void ask(struct ckpt_store_op *op, struct ckpt_io_req req)
{
	CKPT_ASSERT(!op->asked);
	op->store->fsyncs += req.op == CKPT_IO_OP_FDATASYNC || req.op == CKPT_IO_OP_SYNC_DIR;
	req.node.run = request_back;
	op->req = req;
	op->asked = true;
	ckpt_io_submit(ckpt_file_store(op)->io, &op->req);
}

void ckpt_file_ask_path(struct ckpt_store_op *op, enum ckpt_io_op what, const char *path)
{
	ask(op, (struct ckpt_io_req){
			.op = what, .root = ckpt_file_store(op)->root, .path = path, .slot = -1});
}

void ckpt_file_ask_open(struct ckpt_store_op *op, const char *path, unsigned flags)
{
	ask(op, (struct ckpt_io_req){.op = CKPT_IO_OP_OPEN,
			.flags = flags,
			.root = ckpt_file_store(op)->root,
			.path = path,
			.slot = -1});
}

int ckpt_file_opened(const struct ckpt_store_op *op)
{
	return op->req.result == -EAGAIN ? -EBUSY : (int)op->req.result;
}

void ckpt_file_ask_rename(
	struct ckpt_store_op *op, const char *path, const char *new_path, unsigned flags)
{
	ask(op, (struct ckpt_io_req){.op = CKPT_IO_OP_RENAME,
			.flags = flags,
			.root = ckpt_file_store(op)->root,
			.path = path,
			.new_path = new_path,
			.slot = -1});
}

void ckpt_file_ask_fd(struct ckpt_store_op *op, enum ckpt_io_op what, int fd)
{
	ckpt_file_ask_length(op, what, fd, 0);
}

void ckpt_file_ask_lock(struct ckpt_store_op *op, int fd)
{
	/* PUBLISH uses them for its data. */
	bool some = op->verb == CKPT_STORE_LOCK;

	ask(op, (struct ckpt_io_req){.op = CKPT_IO_OP_LOCK,
			.flags = op->shared ? CKPT_LOCK_SHARED : 0,
			.fd = fd,
			.off = some ? op->offset : 0,
			.len = some ? op->length : 0,
			.slot = -1});
}

void ckpt_file_ask_length(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t length)
{
	ask(op, (struct ckpt_io_req){.op = what, .fd = fd, .len = length, .slot = -1});
}

void ckpt_file_ask_bytes(struct ckpt_store_op *op, enum ckpt_io_op what, int fd, uint64_t done)
{
	CKPT_ASSERT(done < op->length);
	ask(op, (struct ckpt_io_req){.op = what,
			.fd = fd,
			.buf = (char *)op->data + done,
			.len = op->length - done,
			.off = op->offset + done,
			.slot = op->slot});
}

void ckpt_file_give(struct ckpt_store_op *op, int fd)
{
	CKPT_ASSERT(op->object && fd >= 0);
	op->object->fd = fd;
	op->object->direct = op->temp.direct;
	memcpy(op->object->path, op->path, sizeof(op->path));
}

void ckpt_file_set_parent(struct ckpt_store_op *op, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 1;

	CKPT_ASSERT(len > 0 && len < sizeof(op->parent));
	memcpy(op->parent, slash ? path : ".", len);
	op->parent[len] = 0;
}

static int discard_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_TASK_BEGIN(task);
	if (op->temp.fd >= 0) {
		ckpt_file_ask_fd(op, CKPT_IO_OP_CLOSE, op->temp.fd);
		CKPT_AWAIT(task, !op->asked);
	}
	/* If it fails, the name is still never used again. */
	ckpt_file_ask_path(op, CKPT_IO_OP_UNLINK, op->temp.path);
	CKPT_AWAIT(task, !op->asked);
	return op->saved;
	CKPT_TASK_END(task);
}

int ckpt_file_discard(struct ckpt_store_op *op, int code)
{
	CKPT_ASSERT(code < 0 && op->temp.path[0]);
	op->saved = code;
	return ckpt_task_continue(&op->task, discard_body);
}

/* Verbs with nothing to do: in a directory every file is in its listing. */
static int at_once_body(struct ckpt_task *task)
{
	(void)task;
	return 0;
}

static ckpt_task_fn *const bodies[] = {
	[CKPT_STORE_MKDIR] = ckpt_file_mkdir_body,
	[CKPT_STORE_CREATE] = ckpt_file_create_body,
	[CKPT_STORE_WRITE] = ckpt_file_write_body,
	[CKPT_STORE_SEAL] = ckpt_file_seal_body,
	[CKPT_STORE_ABANDON] = ckpt_file_abandon_body,
	[CKPT_STORE_PUT] = ckpt_file_put_body,
	[CKPT_STORE_SYNC] = ckpt_file_sync_body,
	[CKPT_STORE_PUBLISH] = ckpt_file_put_body,
	[CKPT_STORE_GET] = ckpt_file_get_body,
	[CKPT_STORE_OPEN] = ckpt_file_open_body,
	[CKPT_STORE_READ] = ckpt_file_read_body,
	[CKPT_STORE_CLOSE] = ckpt_file_close_body,
	[CKPT_STORE_LIST] = ckpt_file_list_body,
	[CKPT_STORE_REMOVE] = ckpt_file_remove_body,
	[CKPT_STORE_RMDIR] = ckpt_file_rmdir_body,
	[CKPT_STORE_LOCK] = ckpt_file_lock_body,
	[CKPT_STORE_SWEEP] = at_once_body,
};

static void op_done(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_file_op(task);

	CKPT_ASSERT(!op->asked);
	op->result = task->result;
	op->done = true;
	ckpt_task_wake(op->waiter);
}

static void file_submit(struct ckpt_store *store, struct ckpt_store_op *op)
{
	CKPT_ASSERT(op->verb >= CKPT_STORE_MKDIR && op->verb <= CKPT_STORE_SWEEP);
	CKPT_ASSERT(!op->asked);
	op->temp.fd = -1;
	op->temp.direct = false;
	op->temp.path[0] = 0;
	op->progress = 0;
	op->saved = 0;
	ckpt_task_start(&op->task, store->sched, bodies[op->verb], op_done);
}

static void file_close(struct ckpt_store *store)
{
	ckpt_free(CKPT_CONTAINER(store, struct ckpt_store_file, store));
}

static const struct ckpt_store_ops file_ops = {
	.name = "file",
	.tier = "local",
	.submit = file_submit,
	.close = file_close,
};

void ckpt_store_file_set_direct(struct ckpt_store *store, bool direct)
{
	CKPT_CONTAINER(store, struct ckpt_store_file, store)->direct = direct;
}

int ckpt_store_file_open(struct ckpt_env *env, struct ckpt_sched *sched, struct ckpt_io *io,
	int root, const char *label, struct ckpt_store **ret_store)
{
	size_t len = strlen(label);
	struct ckpt_store_file *file = ckpt_alloc(sizeof(*file) + len + 1);

	CKPT_ASSERT(root >= 0 && io->align > 0 && (io->align & (io->align - 1)) == 0);
	if (!file)
		return -ENOMEM;
	memcpy(file->label, label, len + 1);
	file->io = io;
	file->root = root;
	file->direct = io->direct;
	file->store = (struct ckpt_store){.ops = &file_ops,
		.env = env,
		.sched = sched,
		.align = io->align,
		.label = file->label};
	*ret_store = &file->store;
	return 0;
}
