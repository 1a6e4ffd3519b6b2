/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of the store in a bucket for shards: multipart uploads, and reading of ranges. */
#include "store/store_s3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "s3/body_xml.h"
#include "s3/escape.h"

/* Aborting. Uploaded parts are invisible but cost money, so the upload is aborted. */

struct ckpt_s3_call *ckpt_s3_ask_abort(struct ckpt_store_op *op, const char *path)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_DELETE, path, "give up");

	/* A failed earlier call may have left its query. */
	ckpt_buf_free(&work->query);
	ckpt_buf_puts(&work->query, "uploadId=");
	ckpt_s3_escape(&work->query, work->upload, strlen(work->upload));
	ckpt_buf_put(&work->query, "", 1);
	call->query = work->query.data;
	return ckpt_s3_aside(op);
}

/* Aborts work->upload. Ends with op->saved, and keeps the error that is set. */
static int abort_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	(void)ckpt_s3_ask_abort(op, op->path);
	if (work->query.failed) {
		work->call.result = ckpt_fail(&work->aside, -ENOMEM, "out of memory to abort it");
	} else {
		ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
		CKPT_AWAIT(task, work->call.done);
	}
	/* It is gone: an earlier try aborted it, or the upload was completed. */
	if (work->call.result < 0 && work->call.result != -ESTALE && work->call.result != -ENOENT)
		ckpt_log(ckpt_s3_store(op)->client->log, CKPT_LOG_WARN,
			"cannot abort the unfinished upload of %s in %s; it takes up space until "
			"it is aborted, for example by a lifecycle rule: %s",
			op->path, op->store->label, work->aside.message);
	return op->saved;
	CKPT_TASK_END(task);
}

/* Closes op->object, and aborts its upload if it has one. Ends with `code`. */
static int give_up(struct ckpt_store_op *op, int code)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	bool uploads = file->upload;

	if (uploads)
		(void)snprintf(work->upload, sizeof(work->upload), "%s", file->upload);
	ckpt_s3_file_drop(op);
	op->saved = code;
	return uploads ? ckpt_task_continue(&op->task, abort_body) : code;
}

/* Sizes of parts. */

/* Only AWS is known to refuse small parts. */
static struct ckpt_s3_limits limits_of(const struct ckpt_s3_client *client)
{
	struct ckpt_s3_limits limits = client->limits ? *client->limits : ckpt_s3_limits;

	if (!client->endpoint.aws)
		limits.part_min = 0;
	return limits;
}

static uint64_t room_of(const struct ckpt_store_op *op)
{
	const struct ckpt_store_s3 *s = ckpt_s3_store(op);
	const struct ckpt_s3_limits limits = limits_of(s->client);

	return ckpt_s3_parts_room(&limits, s->block_bytes);
}

static void plan_parts(struct ckpt_store_op *op)
{
	const struct ckpt_store_s3 *s = ckpt_s3_store(op);
	const struct ckpt_s3_limits limits = limits_of(s->client);

	op->unit = ckpt_s3_parts_bytes(&limits, s->block_bytes, op->size);
}

/*
 * Creating. Each name is used once and repeated requests are the same, so existing objects are not looked for. If the
 * answer to Create is lost, another upload is begun; the unknown one has no parts and costs nothing.
 */

int ckpt_s3_give_upload(struct ckpt_store_op *op)
{
	const struct ckpt_s3_work *work = ckpt_s3_work(op);

	plan_parts(op);
	struct ckpt_s3_file file = {.size = op->size,
		.part_bytes = op->unit,
		.part_count = (uint32_t)((op->size + op->unit - 1) / op->unit),
		.sums = work->sums,
		.resumed = op->resume,
		.varied = op->varied};
	int r = -ENOMEM;

	file.upload = ckpt_strdup(work->upload);
	file.parts = ckpt_alloc_array(file.part_count, sizeof(*file.parts));
	file.end = ckpt_alloc(sizeof(*file.end));
	if (file.parts && file.upload && file.end)
		r = ckpt_s3_file_give(op, &file);
	else
		(void)ckpt_s3_store_fail(op, r, "begin an upload of %s", op->path);
	if (r < 0) {
		ckpt_free(file.end);
		ckpt_free(file.parts);
		ckpt_free(file.upload);
	}
	return r;
}

int ckpt_s3_begin_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call;

	CKPT_TASK_BEGIN(task);
	work->upload[0] = '\0';
	call = ckpt_s3_ask(op, CKPT_HTTP_POST, op->path, "begin an upload of");
	call->query = "uploads=";
	work->sums = ckpt_s3_store(op)->sums == CKPT_S3_SUMS_HEEDED;
	if (work->sums)
		call->headers[call->header_count++] = (struct ckpt_http_header){
			.name = "x-amz-checksum-algorithm", .value = "CRC32C"};
	call->documents = true;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return work->call.result;
	op->saved = ckpt_s3_upload_parse(
		work->call.req.reply, work->call.req.reply_length, op->path, op->err, work->upload);
	if (op->saved == 0)
		op->saved = ckpt_s3_give_upload(op);
	/* No other process knows this upload. */
	return op->saved < 0 && work->upload[0] ? ckpt_task_continue(task, abort_body) : op->saved;
	CKPT_TASK_END(task);
}

int ckpt_s3_create_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	uint64_t room = room_of(op);

	if (op->size > room)
		return ckpt_s3_store_fail(op, -EFBIG,
			"upload %s, which has %" PRIu64 " bytes: an object has at most %" PRIu64
			": spread the tensors over more ranks",
			op->path, op->size, room);
	plan_parts(op);
	struct ckpt_s3_file file = {.size = op->size, .part_bytes = op->unit, .varied = op->varied};

	/* Without TLS the bytes are signed in any case. */
	if (ckpt_s3_store(op)->sums == CKPT_S3_SUMS_UNPROBED &&
		ckpt_s3_store(op)->client->endpoint.tls && op->size > 0)
		return ckpt_task_continue(task, ckpt_s3_probe_sums_body);
	if (op->size <= op->unit)
		return ckpt_s3_file_give(op, &file);
	ckpt_s3_work(op)->replaced = 0;
	return ckpt_task_continue(task, op->resume ? ckpt_s3_resume_body : ckpt_s3_begin_body);
}

/* Writing. */

static int write_whole_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call;

	CKPT_TASK_BEGIN(task);
	call = ckpt_s3_ask(op, CKPT_HTTP_PUT, op->path, "write");
	call->body = op->data;
	call->body_length = op->length;
	call->proof = ckpt_s3_proof_of(op);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return work->call.result;
	ckpt_s3_file_of(op)->made = true;
	op->store->bytes_written += op->length;
	CKPT_TASK_END(task);
}

static int ask_part(struct ckpt_store_op *op)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_PUT, op->path, "write a part of");

	ckpt_buf_printf(&work->query,
		"partNumber=%" PRIu64 "&uploadId=", op->offset / file->part_bytes + 1);
	ckpt_s3_escape(&work->query, file->upload, strlen(file->upload));
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "write a part of %s", op->path);
	call->query = work->query.data;
	call->body = op->data;
	call->body_length = op->length;
	call->proof = ckpt_s3_proof_of(op);
	call->part = true;
	return 0;
}

static int take_part(struct ckpt_store_op *op)
{
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	uint64_t at = op->offset / file->part_bytes;
	struct ckpt_s3_part *part = &file->parts[at];

	ckpt_s3_call_etag(&work->call, part->etag);
	if (!part->etag[0])
		return ckpt_s3_store_fail(op, CKPT_ENETWORK,
			"write a part of %s, because the server's answer has no ETag", op->path);
	part->number = (uint32_t)at + 1;
	part->size = op->length;
	part->has_crc32c = work->call.proof == CKPT_S3_PROOF_CRC32C;
	part->crc32c = work->call.crc32c;
	op->store->bytes_written += op->length;
	return 0;
}

/*
 * The server checks the CRC32C of an object but not that of a part. The part is sent again with a signed SHA-256, and
 * so are later ones.
 */
static bool is_unproven(struct ckpt_store_op *op)
{
	const struct ckpt_s3_work *work = ckpt_s3_work(op);
	uint32_t theirs;

	if (work->call.proof != CKPT_S3_PROOF_CRC32C || ckpt_s3_call_crc32c(&work->call, &theirs))
		return false;
	ckpt_s3_store(op)->sums = CKPT_S3_SUMS_IGNORED;
	ckpt_s3_file_of(op)->sums = false;
	return true;
}

static int write_part_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ask_part(op);
	if (r < 0)
		return r;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return work->call.result;
	return is_unproven(op) ? ckpt_task_continue(task, write_part_body) : take_part(op);
	CKPT_TASK_END(task);
}

static void sum_work(struct ckpt_job *job)
{
	struct ckpt_s3_work *work = CKPT_CONTAINER(job, struct ckpt_s3_work, sum.job);

	work->crc32c = ckpt_s3_crc32c(0, work->sum_of, work->sum_length);
}

/* An earlier attempt uploaded this part, of the same content if the server has the same CRC32C of it. */
static int compare_part_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_part *part;

	CKPT_TASK_BEGIN(task);
	work->sum_of = op->data;
	work->sum_length = op->length;
	ckpt_task_job_start_behind(&work->sum, op->store->env, task, sum_work);
	CKPT_AWAIT(task, work->sum.done);
	part = &ckpt_s3_file_of(op)->parts[op->offset / ckpt_s3_file_of(op)->part_bytes];
	if (part->crc32c == work->crc32c)
		return 0;
	part->number = 0;
	return ckpt_task_continue(task, write_part_body);
	CKPT_TASK_END(task);
}

int ckpt_s3_write_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	uint64_t most = ckpt_min_u64(file->part_bytes, file->size - op->offset);

	CKPT_ASSERT(op->offset % file->part_bytes == 0 && op->offset < file->size);
	CKPT_ASSERT(op->length == most || (file->varied && op->length < most));
	if (!file->upload)
		return ckpt_task_continue(task, write_whole_body);
	/* An earlier attempt uploaded this part. */
	struct ckpt_s3_part *part = &file->parts[op->offset / file->part_bytes];
	if (file->resumed && part->number) {
		if (!file->varied)
			return 0;
		if (part->has_crc32c && part->size == op->length)
			return ckpt_task_continue(task, compare_part_body);
		part->number = 0;
	}
	return ckpt_task_continue(task, write_part_body);
}

/* Sealing. */

/* The server has not refused it, so the upload can be resumed later. */
static bool outlives(struct ckpt_store_op *op, int code)
{
	const struct ckpt_http_req *req = &ckpt_s3_work(op)->call.req;

	/* A server can send status 200 before the result. A cancelled operation has no result. */
	return ckpt_s3_file_of(op)->resumed && ckpt_s3_is_outside(code) &&
	       (code == -ECANCELED || req->result < 0 || req->status == 429 || req->status >= 500);
}

/* A seal always closes its object. */
static int end_seal(struct ckpt_store_op *op, int code)
{
	if (code < 0 && !outlives(op, code))
		return give_up(op, code);
	ckpt_s3_file_drop(op);
	return code;
}

/* The server has acknowledged every part. Now the size of the object is compared. */
static int check_size_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	uint64_t size = 0;

	CKPT_TASK_BEGIN(task);
	ckpt_s3_call_start(
		ckpt_s3_store(op)->client, ckpt_s3_ask(op, CKPT_HTTP_HEAD, op->path, "look at"));
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return end_seal(op, work->call.result);
	if (!ckpt_s3_call_length(&work->call, &size) || size != op->size)
		return end_seal(op, ckpt_s3_store_fail(op, CKPT_ENETWORK,
					    "seal %s, which has %" PRIu64
					    " bytes in the bucket instead of %" PRIu64,
					    op->path, size, op->size));
	return end_seal(op, 0);
	CKPT_TASK_END(task);
}

static int ask_complete(struct ckpt_store_op *op)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_POST, op->path, "complete");

	for (uint32_t i = 0; i < file->part_count; i++)
		if (!file->parts[i].number)
			return ckpt_s3_store_fail(
				op, -EIO, "complete %s, whose part %u is missing", op->path, i + 1);
	ckpt_s3_body_complete(file->parts, file->part_count, &work->body);
	ckpt_buf_puts(&work->query, "uploadId=");
	ckpt_s3_escape(&work->query, file->upload, strlen(file->upload));
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed || work->body.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "complete %s", op->path);
	call->query = work->query.data;
	call->body = work->body.data;
	call->body_length = work->body.len;
	call->documents = true;
	return 0;
}

static int complete_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ask_complete(op);
	if (r < 0)
		return end_seal(op, r);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, ckpt_s3_aside(op));
	CKPT_AWAIT(task, work->call.done);
	r = work->call.result;
	/* The upload is unknown: an earlier try may have completed it. The object tells. */
	if (r < 0 && r != -ESTALE && r != -ENOENT)
		return end_seal(op, ckpt_s3_tell(op));
	if (r == 0 && ckpt_s3_whole_differs(op))
		return end_seal(op, ckpt_s3_store_fail(op, CKPT_EINTEGRITY,
					    "seal %s: the server reports another CRC32C than "
					    "that of its parts",
					    op->path));
	return ckpt_task_continue(task, check_size_body);
	CKPT_TASK_END(task);
}

/* Nothing has created an empty object yet. */
static int seal_empty_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_call_start(
		ckpt_s3_store(op)->client, ckpt_s3_ask(op, CKPT_HTTP_PUT, op->path, "write"));
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return end_seal(op, work->call.result);
	return ckpt_task_continue(task, check_size_body);
	CKPT_TASK_END(task);
}

/* What is sealed may be shorter than was thought. Parts behind it, of another content, do not become part of it. */
static void take_size(struct ckpt_s3_file *file, uint64_t size)
{
	if (!file->varied || size == 0 || size > file->size)
		return;
	file->size = size;
	if (file->upload)
		file->part_count = (uint32_t)((size + file->part_bytes - 1) / file->part_bytes);
}

int ckpt_s3_seal_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);

	take_size(file, op->size);
	if (op->size != file->size)
		return end_seal(op, ckpt_s3_store_fail(op, -EINVAL,
					    "seal %s with %" PRIu64 " bytes instead of %" PRIu64,
					    op->path, op->size, file->size));
	if (file->size == 0)
		return ckpt_task_continue(task, seal_empty_body);
	if (!file->upload && !file->made)
		return end_seal(op, ckpt_s3_store_fail(op, -EIO,
					    "seal %s, which was not written completely", op->path));
	return ckpt_task_continue(task, file->upload ? complete_body : check_size_body);
}

int ckpt_s3_abandon_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);

	if (op->object->fd >= 0 && ckpt_s3_file_of(op)->upload)
		return give_up(op, 0);
	if (op->object->fd >= 0)
		ckpt_s3_file_drop(op);
	return ckpt_task_continue(task, ckpt_s3_remove_body);
}

/* Reading. */

int ckpt_s3_open_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_call_start(
		ckpt_s3_store(op)->client, ckpt_s3_ask(op, CKPT_HTTP_HEAD, op->path, "open"));
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0)
		return work->call.result;
	struct ckpt_s3_file file = {.size = 0};
	ckpt_s3_call_etag(&work->call, file.etag);
	if (!ckpt_s3_call_length(&work->call, &file.size))
		return ckpt_s3_store_fail(op, CKPT_ENETWORK,
			"open %s (the server does not say how long it is)", op->path);
	op->size = file.size;
	return ckpt_s3_file_give(op, &file);
	CKPT_TASK_END(task);
}

static void ask_range(struct ckpt_store_op *op)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_GET, op->path, "read");

	(void)snprintf(work->range, sizeof(work->range), "bytes=%" PRIu64 "-%" PRIu64, op->offset,
		op->offset + op->length - 1);
	call->headers[call->header_count++] =
		(struct ckpt_http_header){.name = "range", .value = work->range};
	if (file->etag[0]) {
		memcpy(work->etag, file->etag, sizeof(work->etag));
		call->headers[call->header_count++] =
			(struct ckpt_http_header){.name = "if-match", .value = work->etag};
		call->conditional = true;
	}
	call->sink = op->data;
	call->room = op->length;
	call->part = true;
}

/* Whether the reply is the requested range: a proxy may have answered with another one. */
static bool is_range(const struct ckpt_store_op *op)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	const struct ckpt_http_req *req = &ckpt_s3_work(op)->call.req;
	char value[96];
	char want[96];

	if (req->received != op->length)
		return false;
	if (req->status == 200)
		return op->offset == 0 && op->length == file->size;
	(void)snprintf(want, sizeof(want), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, op->offset,
		op->offset + op->length - 1, file->size);
	return req->status == 206 && ckpt_http_header(req, "content-range", value, sizeof(value)) &&
	       strcmp(value, want) == 0;
}

int ckpt_s3_read_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	uint64_t size = ckpt_s3_file_of(op)->size;
	int r;

	CKPT_TASK_BEGIN(task);
	if (op->offset + op->length > size)
		return ckpt_s3_store_fail(op, CKPT_EINCOMPLETE,
			"read %" PRIu64 " bytes at offset %" PRIu64 " of %s, which has %" PRIu64,
			op->length, op->offset, op->path, size);
	ask_range(op);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, ckpt_s3_aside(op));
	CKPT_AWAIT(task, work->call.done);
	r = work->call.result;
	if (r == -EEXIST)
		return ckpt_s3_store_fail(
			op, -EBUSY, "read %s, which was replaced while it was read", op->path);
	/* A server that ignores ranges sends more than that. */
	if (r < 0 && r != -EFBIG)
		return ckpt_s3_tell(op);
	if (r == -EFBIG || !is_range(op))
		return ckpt_s3_store_fail(op, CKPT_ENETWORK,
			"read %" PRIu64 " bytes at offset %" PRIu64
			" of %s: the server or a proxy answered with another range",
			op->length, op->offset, op->path);
	op->size = op->length;
	op->store->bytes_read += op->length;
	CKPT_TASK_END(task);
}
