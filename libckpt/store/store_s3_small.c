/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the store in a bucket for small objects and names. */
#include "store/store_s3.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "io/listing.h"
#include "s3/escape.h"
#include "s3/response_list.h"

#define ERROR_MAX (UINT64_C(64) << 10)
/* Pages of a listing. An empty page may be followed by another. */
#define PAGES_MAX 100000

/* Publishing: an object that is created once, or not at all. */

static struct ckpt_s3_call *ask_put(struct ckpt_store_op *op, const char *path, bool once)
{
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_PUT, path, "write");

	call->body = op->data;
	call->body_length = op->length;
	call->not_after_ns = op->not_after_ns;
	if (once)
		call->headers[call->header_count++] =
			(struct ckpt_http_header){.name = "if-none-match", .value = "*"};
	call->conditional = once;
	return call;
}

static int put_done(struct ckpt_store_op *op)
{
	struct ckpt_s3_file none = {.size = op->length};

	op->store->bytes_written += op->length;
	return op->locked ? ckpt_s3_file_give(op, &none) : 0;
}

/*
 * The object exists, and may be ours: the request was repeated, or the server ignores conditions. The bytes tell,
 * because what is published contains a unique attempt or nonce.
 */
static int compare_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call;

	CKPT_TASK_BEGIN(task);
	call = ckpt_s3_ask(op, CKPT_HTTP_GET, op->path, "read back");
	call->reply_limit = ckpt_max_u64(op->length, ERROR_MAX);
	ckpt_s3_aside(op);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, call);
	CKPT_AWAIT(task, work->call.done);
	/* Longer than ours: it is another process's. */
	if (work->call.result < 0 && work->call.result != -EFBIG)
		return ckpt_s3_tell(op);
	if (work->call.result == 0 && work->call.req.reply_length == op->length &&
		memcmp(work->call.req.reply, op->data, op->length) == 0)
		return put_done(op);
	return op->quiet ? -EEXIST : ckpt_s3_store_fail(op, -EEXIST, "publish %s", op->path);
	CKPT_TASK_END(task);
}

/* The server ignores conditions: no other job may write here, and the object is compared afterwards. */
static int unconditional_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_ask(op, CKPT_HTTP_HEAD, op->path, "look at")->quiet = true;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result == 0)
		return ckpt_task_continue(task, compare_body);
	if (work->call.result != -ENOENT)
		return work->call.result;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, ask_put(op, op->path, false));
	CKPT_AWAIT(task, work->call.done);
	return work->call.result < 0 ? work->call.result : ckpt_task_continue(task, compare_body);
	CKPT_TASK_END(task);
}

/* The last writer wins, so there is no condition and no comparison. */
static int over_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, ask_put(op, op->path, false));
	CKPT_AWAIT(task, work->call.done);
	return work->call.result < 0 ? work->call.result : put_done(op);
	CKPT_TASK_END(task);
}

static int conditional_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	/* Creates the object only if none has this name. */
	ask_put(op, op->path, true);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, ckpt_s3_aside(op));
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result == 0)
		return put_done(op);
	if (work->call.result == -EEXIST)
		return ckpt_task_continue(task, compare_body);
	return ckpt_s3_tell(op);
	CKPT_TASK_END(task);
}

static void take_probe(struct ckpt_store_op *op, int second)
{
	struct ckpt_store_s3 *s = ckpt_s3_store(op);

	s->conditions = second == -EEXIST ? CKPT_S3_HEEDED : CKPT_S3_IGNORED;
	if (s->conditions == CKPT_S3_IGNORED)
		ckpt_log(s->client->log, CKPT_LOG_WARN,
			"%s: this server ignores If-None-Match: two jobs that write here at once "
			"would overwrite each other; make sure that only one does",
			op->store->label);
}

/*
 * Tests once whether the server supports conditions, with a test object that no reader takes for a file of the store.
 */
static int probe_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_store_s3 *s = ckpt_s3_store(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_probe_name(op);
	for (op->progress = 0; op->progress < 2; op->progress++) {
		ask_put(op, op->temp.path, true)->quiet = true;
		ckpt_s3_call_start(s->client, ckpt_s3_aside(op));
		CKPT_AWAIT(task, work->call.done);
		op->saved = work->call.result;
		if (op->saved < 0)
			break;
	}
	if (op->saved < 0 && op->saved != -EEXIST && op->saved != CKPT_EUNSUPPORTED)
		return ckpt_s3_tell(op);
	take_probe(op, op->saved);
	/* If it stays, it is like the leftovers of a killed writer. */
	ckpt_s3_ask(op, CKPT_HTTP_DELETE, op->temp.path, "remove")->err = NULL;
	ckpt_s3_call_start(s->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	return ckpt_task_continue(task, ckpt_s3_put_body);
	CKPT_TASK_END(task);
}

int ckpt_s3_put_body(struct ckpt_task *task)
{
	if (ckpt_s3_op(task)->over)
		return ckpt_task_continue(task, over_body);
	switch (ckpt_s3_store(ckpt_s3_op(task))->conditions) {
	case CKPT_S3_HEEDED:
		return ckpt_task_continue(task, conditional_body);
	case CKPT_S3_IGNORED:
		return ckpt_task_continue(task, unconditional_body);
	default:
		return ckpt_task_continue(task, probe_body);
	}
}

/* Reading a small object. */

int ckpt_s3_get_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_http_req *req = &work->call.req;

	CKPT_TASK_BEGIN(task);
	/* An error reply may be longer than the limit. */
	ckpt_s3_ask(op, CKPT_HTTP_GET, op->path, "read")->reply_limit =
		ckpt_max_u64(op->size, ERROR_MAX);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return work->call.result;
	if (req->reply_length > op->size)
		return ckpt_s3_store_fail(op, -EFBIG, "read %s", op->path);
	op->data = req->reply ? req->reply : ckpt_alloc(1);
	op->length = req->reply_length;
	req->reply = NULL;
	op->store->bytes_read += op->length;
	return op->data ? 0 : ckpt_s3_store_fail(op, -ENOMEM, "read %s", op->path);
	CKPT_TASK_END(task);
}

/* Names. */

int ckpt_s3_remove_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_ask(op, CKPT_HTTP_DELETE, op->path, "remove")->quiet = true;
	work->call.not_after_ns = op->not_after_ns;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	op->uncertain = work->call.uncertain;
	return work->call.result == -ENOENT ? 0 : work->call.result;
	CKPT_TASK_END(task);
}

void ckpt_s3_put_prefix(struct ckpt_buf *out, const struct ckpt_store_s3 *s, const char *path)
{
	if (*s->client->place.path) {
		ckpt_buf_puts(out, s->client->place.path);
		ckpt_buf_puts(out, "/");
	}
	if (strcmp(path, ".") != 0) {
		ckpt_buf_puts(out, path);
		ckpt_buf_puts(out, "/");
	}
	ckpt_buf_put(out, "", 1);
}

static int ask_page(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_GET, "", "list");

	work->query.len = 0;
	ckpt_buf_puts(&work->query, "list-type=2&delimiter=%2F&encoding-type=url&prefix=");
	ckpt_s3_escape(&work->query, work->body.data, work->body.len - 1);
	if (work->token) {
		ckpt_buf_puts(&work->query, "&continuation-token=");
		ckpt_s3_escape(&work->query, work->token, strlen(work->token));
	}
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "list %s", op->path);
	call->query = work->query.data;
	call->documents = true;
	return 0;
}

/* Adds a name directly below the directory: an object or a common prefix. */
static int add_name(struct ckpt_s3_work *work, const char *key, bool directory)
{
	size_t skip = work->body.len - 1;
	size_t length = strlen(key);

	if (length < skip || memcmp(key, work->body.data, skip) != 0)
		return CKPT_EFORMAT;
	key += skip;
	length -= skip;
	if (directory && length > 0 && key[length - 1] == '/')
		length--;
	/* A directory marker, as some programs create it. */
	if (length == 0)
		return 0;
	if (memchr(key, '/', length))
		return CKPT_EFORMAT;
	if (length > CKPT_S3_KEY_MAX)
		return CKPT_EFORMAT;
	if (work->name_count == CKPT_LISTING_MAX)
		return -EOVERFLOW;
	ckpt_buf_put(&work->names, key, length);
	ckpt_buf_put(&work->names, "", 1);
	work->name_count++;
	return work->names.failed ? -ENOMEM : 0;
}

static int take_page(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_object_list page = {0};
	int r = ckpt_s3_object_list_parse(
		work->call.req.reply, work->call.req.reply_length, op->path, op->err, &page);

	if (r < 0)
		return r;
	for (size_t i = 0; i < page.count && r == 0; i++)
		r = add_name(work, page.objects[i].key, page.objects[i].prefix);
	/* A server that repeats the token would cause an endless loop. */
	if (r == 0 && page.next_token && work->token && strcmp(page.next_token, work->token) == 0)
		r = CKPT_EFORMAT;
	if (r == 0 && page.next_token && ++op->progress == PAGES_MAX)
		r = -EOVERFLOW;
	ckpt_free(work->token);
	work->token = page.next_token;
	page.next_token = NULL;
	ckpt_s3_object_list_clear(&page);
	return r < 0 ? ckpt_s3_store_fail(op, r, "list %s", op->path) : 0;
}

static int end_list(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	if (work->name_count == 0 && strcmp(op->path, ".") != 0)
		return op->quiet ? -ENOENT : ckpt_s3_store_fail(op, -ENOENT, "list %s", op->path);
	int r = ckpt_listing_sort(&work->names, work->name_count, &op->listing);
	return r < 0 ? ckpt_s3_store_fail(op, r, "list %s", op->path) : 0;
}

int ckpt_s3_list_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	int r;

	CKPT_TASK_BEGIN(task);
	op->progress = 0;
	ckpt_s3_put_prefix(&work->body, ckpt_s3_store(op), op->path);
	if (work->body.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "list %s", op->path);
	do {
		r = ask_page(op);
		if (r < 0)
			return r;
		ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
		CKPT_AWAIT(task, work->call.done);
		r = work->call.result < 0 ? work->call.result : take_page(op);
		if (r < 0)
			return r;
	} while (work->token);
	return end_list(op);
	CKPT_TASK_END(task);
}
