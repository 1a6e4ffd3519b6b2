/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SWEEP: aborts unfinished uploads of names directly below a directory, whose writers have ended. The first page of the
 * listing is requested until it is empty, because aborted uploads are not listed any more.
 */
#include "store/store_s3.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "s3/escape.h"
#include "s3/response_list.h"

#define ROUNDS_MAX 100 /* of up to 1,000 uploads */

static ckpt_task_fn page_body;

/* The sweep cannot be done, and the directory is as usable as before. Warns once: the next sweep would fail alike. */
static int leave(struct ckpt_store_op *op, const char *why)
{
	struct ckpt_store_s3 *s = ckpt_s3_store(op);

	if (!s->unswept)
		ckpt_log(s->client->log, CKPT_LOG_WARN,
			"cannot abort unfinished uploads of earlier processes in %s of %s; they "
			"take up space until a lifecycle rule aborts them: %s",
			op->path, s->store.label, why);
	s->unswept = true;
	return 0;
}

static int ask_page(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_GET, "", "list the uploads of");

	ckpt_buf_free(&work->query);
	ckpt_buf_puts(&work->query, "uploads=&encoding-type=url&prefix=");
	ckpt_s3_escape(&work->query, work->body.data, work->body.len - 1);
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed)
		return -ENOMEM;
	call->query = work->query.data;
	call->documents = true;
	ckpt_s3_aside(op);
	return 0;
}

/* Appends key and upload id, each NUL-terminated, of the uploads in this directory. */
static int take_page(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_upload_list list = {0};
	size_t skip = work->body.len - 1;
	int r = ckpt_s3_upload_list_parse(
		work->call.req.reply, work->call.req.reply_length, op->path, &work->aside, &list);

	work->names.len = 0;
	work->name_count = 0;
	for (size_t i = 0; i < list.count && r == 0; i++) {
		const struct ckpt_s3_upload *u = &list.uploads[i];
		const char *name = strncmp(u->key, work->body.data, skip) == 0 ? u->key + skip : "";
		if (!*name || strchr(name, '/') ||
			strlen(op->path) + 1 + strlen(name) >= sizeof(op->temp.path) ||
			strlen(u->upload_id) >= sizeof(work->upload))
			continue;
		ckpt_buf_put(&work->names, name, strlen(name) + 1);
		ckpt_buf_put(&work->names, u->upload_id, strlen(u->upload_id) + 1);
		work->name_count++;
	}
	ckpt_s3_upload_list_clear(&list);
	return r < 0 || !work->names.failed ? r : -ENOMEM;
}

/* Moves to the next upload of the page, in op->temp.path and work->upload. */
static void next_upload(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	const char *name = work->names.data + op->progress;
	const char *id = name + strlen(name) + 1;

	(void)snprintf(op->temp.path, sizeof(op->temp.path), "%s/%s", op->path, name);
	(void)snprintf(work->upload, sizeof(work->upload), "%s", id);
	op->progress += strlen(name) + 1 + strlen(id) + 1;
}

static int abort_all_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	for (op->progress = 0; op->progress < work->names.len;) {
		next_upload(op);
		(void)ckpt_s3_ask_abort(op, op->temp.path);
		if (work->query.failed)
			return leave(op, "out of memory");
		ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
		CKPT_AWAIT(task, work->call.done);
		/* It is gone: its writer is alive, and has completed or aborted it. */
		if (work->call.result < 0 && work->call.result != -ESTALE &&
			work->call.result != -ENOENT)
			return leave(op, work->aside.message);
	}
	return ckpt_task_continue(task, page_body);
	CKPT_TASK_END(task);
}

static int page_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	if (ask_page(op) < 0)
		return leave(op, "out of memory");
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return leave(op, work->aside.message);
	if (take_page(op) < 0)
		return leave(op, work->aside.code < 0 ? work->aside.message : "out of memory");
	/* A server that lists an aborted upload would cause an endless loop. */
	if (work->name_count == 0 || ++op->saved == ROUNDS_MAX)
		return 0;
	return ckpt_task_continue(task, abort_all_body);
	CKPT_TASK_END(task);
}

int ckpt_s3_sweep_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	op->saved = 0; /* rounds */
	ckpt_s3_put_prefix(&work->body, ckpt_s3_store(op), op->path);
	if (work->body.failed)
		return leave(op, "out of memory");
	return ckpt_task_continue(task, page_body);
}
