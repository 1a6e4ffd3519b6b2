/* SPDX-License-Identifier: Apache-2.0 */
/* The store in a bucket: its table, and helpers of all verbs. */
#include "store/store_s3.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* The largest reply that is no file: an error or a page of a listing. */
#define REPLY_MAX (UINT64_C(4) << 20)

struct ckpt_store_op *ckpt_s3_op(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_store_op, task);
}

struct ckpt_store_s3 *ckpt_s3_store(const struct ckpt_store_op *op)
{
	return CKPT_CONTAINER(op->store, struct ckpt_store_s3, store);
}

struct ckpt_s3_work *ckpt_s3_work(const struct ckpt_store_op *op)
{
	return op->remote;
}

struct ckpt_s3_file *ckpt_s3_file_of(const struct ckpt_store_op *op)
{
	struct ckpt_store_s3 *s = ckpt_s3_store(op);

	CKPT_ASSERT(op->object->fd >= 0 && (size_t)op->object->fd < s->file_room);
	CKPT_ASSERT(s->files[op->object->fd].used);
	return &s->files[op->object->fd];
}

struct ckpt_s3_call *ckpt_s3_ask(
	struct ckpt_store_op *op, enum ckpt_http_method method, const char *path, const char *doing)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	ckpt_s3_call_clear(&work->call);
	work->call = (struct ckpt_s3_call){.method = method,
		.name = path,
		.query = "",
		.reply_limit = REPLY_MAX,
		.doing = doing,
		.err = op->err,
		.waiter = &op->task,
		.quiet = op->quiet,
		.stop = op->stop};
	return &work->call;
}

struct ckpt_s3_call *ckpt_s3_aside(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	ckpt_error_clear(&work->aside);
	work->call.err = &work->aside;
	return &work->call;
}

int ckpt_s3_tell(struct ckpt_store_op *op)
{
	const struct ckpt_s3_work *work = ckpt_s3_work(op);

	if (op->err && op->err->code == 0 && work->aside.code < 0)
		*op->err = work->aside;
	return work->call.result;
}

int ckpt_s3_store_fail(struct ckpt_store_op *op, int code, const char *what, ...)
{
	char text[512];
	va_list args;

	va_start(args, what);
	(void)vsnprintf(text, sizeof(text), what, args);
	va_end(args);
	return ckpt_fail_at(op->err, code,
		&(struct ckpt_where){.tier = op->store->ops->tier, .file = op->path},
		"cannot %s in %s: %s", text, op->store->label, ckpt_code_text(code));
}

static struct ckpt_s3_file *free_place(struct ckpt_store_s3 *s)
{
	for (size_t i = 0; i < s->file_room; i++)
		if (!s->files[i].used)
			return &s->files[i];
	size_t room = s->file_room ? 2 * s->file_room : 16;
	struct ckpt_s3_file *files = ckpt_realloc_array(s->files, room, sizeof(*files));
	if (!files)
		return NULL;
	memset(files + s->file_room, 0, (room - s->file_room) * sizeof(*files));
	s->files = files;
	files += s->file_room;
	s->file_room = room;
	return files;
}

int ckpt_s3_file_give(struct ckpt_store_op *op, struct ckpt_s3_file *file)
{
	struct ckpt_store_s3 *s = ckpt_s3_store(op);
	struct ckpt_s3_file *place = free_place(s);

	if (!place)
		return ckpt_s3_store_fail(op, -ENOMEM, "open %s", op->path);
	*place = *file;
	place->used = true;
	op->object->fd = (int)(place - s->files);
	op->object->direct = false;
	memcpy(op->object->path, op->path, sizeof(op->path));
	return 0;
}

void ckpt_s3_file_drop(struct ckpt_store_op *op)
{
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);

	ckpt_free(file->upload);
	ckpt_free(file->parts);
	ckpt_free(file->end);
	*file = (struct ckpt_s3_file){.used = false};
	op->object->fd = -1;
}

static int at_once_body(struct ckpt_task *task)
{
	(void)task;
	return 0;
}

static int shut_body(struct ckpt_task *task)
{
	ckpt_s3_file_drop(ckpt_s3_op(task));
	return 0;
}

static int lock_body(struct ckpt_task *task)
{
	struct ckpt_s3_file none = {.used = true};

	return ckpt_s3_file_give(ckpt_s3_op(task), &none);
}

static ckpt_task_fn *const bodies[] = {
	[CKPT_STORE_MKDIR] = at_once_body,
	[CKPT_STORE_CREATE] = ckpt_s3_create_body,
	[CKPT_STORE_WRITE] = ckpt_s3_write_body,
	[CKPT_STORE_SEAL] = ckpt_s3_seal_body,
	[CKPT_STORE_ABANDON] = ckpt_s3_abandon_body,
	[CKPT_STORE_PUT] = ckpt_s3_put_body,
	[CKPT_STORE_SYNC] = at_once_body,
	[CKPT_STORE_PUBLISH] = ckpt_s3_put_body,
	[CKPT_STORE_GET] = ckpt_s3_get_body,
	[CKPT_STORE_OPEN] = ckpt_s3_open_body,
	[CKPT_STORE_READ] = ckpt_s3_read_body,
	[CKPT_STORE_CLOSE] = shut_body,
	[CKPT_STORE_LIST] = ckpt_s3_list_body,
	[CKPT_STORE_REMOVE] = ckpt_s3_remove_body,
	[CKPT_STORE_RMDIR] = at_once_body,
	[CKPT_STORE_LOCK] = lock_body,
	[CKPT_STORE_SWEEP] = ckpt_s3_sweep_body,
};

static void work_free(struct ckpt_s3_work *work)
{
	ckpt_s3_call_clear(&work->call);
	ckpt_buf_free(&work->query);
	ckpt_buf_free(&work->body);
	ckpt_buf_free(&work->names);
	ckpt_free(work->token);
	ckpt_free(work);
}

static void op_done(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);

	if (op->remote)
		work_free(op->remote);
	op->remote = NULL;
	op->result = task->result;
	op->done = true;
	ckpt_task_wake(op->waiter);
}

static int no_memory_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);

	/* Also after a failure. */
	if ((op->verb == CKPT_STORE_SEAL || op->verb == CKPT_STORE_ABANDON) && op->object->fd >= 0)
		ckpt_s3_file_drop(op);
	return ckpt_s3_store_fail(op, -ENOMEM, "reach %s", op->path);
}

/* A close must not fail with -ENOMEM. */
static bool asks(enum ckpt_store_verb verb)
{
	return bodies[verb] != at_once_body && bodies[verb] != shut_body &&
	       bodies[verb] != lock_body;
}

static struct ckpt_s3_work *find_work(const struct ckpt_store_op *op)
{
	struct ckpt_s3_work *kept = NULL;

	if ((op->verb == CKPT_STORE_SEAL || op->verb == CKPT_STORE_ABANDON) &&
		op->object->fd >= 0) {
		kept = ckpt_s3_file_of(op)->end;
		ckpt_s3_file_of(op)->end = NULL;
	}
	return kept ? kept : ckpt_alloc(sizeof(*kept));
}

static void s3_submit(struct ckpt_store *store, struct ckpt_store_op *op)
{
	CKPT_ASSERT(op->verb >= CKPT_STORE_MKDIR && op->verb <= CKPT_STORE_SWEEP && !op->remote);
	/* Open only if the verb succeeds. */
	if (op->verb == CKPT_STORE_CREATE || op->verb == CKPT_STORE_OPEN ||
		op->verb == CKPT_STORE_LOCK || op->locked)
		op->object->fd = -1;
	op->remote = asks(op->verb) ? find_work(op) : NULL;
	ckpt_task_start(&op->task, store->sched,
		asks(op->verb) && !op->remote ? no_memory_body : bodies[op->verb], op_done);
}

static void s3_close(struct ckpt_store *store)
{
	struct ckpt_store_s3 *s = CKPT_CONTAINER(store, struct ckpt_store_s3, store);

	for (size_t i = 0; i < s->file_room; i++)
		CKPT_ASSERT(!s->files[i].used);
	ckpt_free(s->files);
	ckpt_free(s);
}

static const struct ckpt_store_ops s3_ops = {
	.name = "s3",
	.tier = "remote",
	.submit = s3_submit,
	.close = s3_close,
};

int ckpt_store_s3_open(struct ckpt_env *env, struct ckpt_sched *sched,
	struct ckpt_s3_client *client, uint64_t block_bytes, const char *label,
	struct ckpt_store **ret_store)
{
	struct ckpt_store_s3 *s = ckpt_alloc(sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->client = client;
	s->block_bytes = block_bytes;
	s->store = (struct ckpt_store){
		.ops = &s3_ops, .env = env, .sched = sched, .align = 1, .label = label};
	*ret_store = &s->store;
	return 0;
}
