/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CREATE that resumes an unfinished upload. The server lists its parts, whose bytes are right because a name has only
 * one possible content and each part was verified when it was sent. If the name may have several contents, each part is
 * compared when it is to be written, see ckpt_store_resume_varied(). The parts may be larger than they would be today;
 * then later ones are equally large. An upload is replaced if its parts do not fit each other or whole blocks, or if it
 * was begun with CRC32C and must be without, or the reverse.
 */
#include "store/store_s3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "s3/escape.h"
#include "s3/response_list.h"

#define PAGES_MAX    100 /* of parts: a server lists a hundred or more at once */
#define REPLACED_MAX 16  /* aborted uploads: a server may list an aborted one forever */
/*
 * The largest part of an earlier attempt that is accepted, because a part must fit in memory. It is the largest block.
 */
#define CUT_MAX      (UINT64_C(64) << 20)

static ckpt_task_fn parts_body;

bool ckpt_s3_is_outside(int code)
{
	return code == CKPT_ENETWORK || code == -ETIMEDOUT || code == -ECANCELED || code == -ENOMEM;
}

/* After a failure of which the cause is the upload itself: begins another one. */
static int begin_anew(struct ckpt_store_op *op)
{
	return ckpt_s3_is_outside(ckpt_s3_work(op)->call.result)
		       ? ckpt_s3_tell(op)
		       : ckpt_task_continue(&op->task, ckpt_s3_begin_body);
}

static int ask_uploads(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_GET, "", "list the uploads of");
	char key[CKPT_S3_KEY_MAX + 1];

	ckpt_buf_free(&work->body);
	ckpt_buf_free(&work->query);
	ckpt_s3_uri_key(&ckpt_s3_store(op)->client->place, op->path, key);
	ckpt_buf_puts(&work->body, key);
	ckpt_buf_put(&work->body, "", 1);
	ckpt_buf_puts(&work->query, "uploads=&encoding-type=url&prefix=");
	ckpt_s3_escape(&work->query, key, strlen(key));
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed || work->body.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "list the uploads of %s", op->path);
	call->query = work->query.data;
	call->documents = true;
	ckpt_s3_aside(op);
	return 0;
}

/* The newest upload of exactly this key. False: there is none. */
static bool take_uploads(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_upload_list list = {0};
	const struct ckpt_s3_upload *found = NULL;

	if (ckpt_s3_upload_list_parse(
		    work->call.req.reply, work->call.req.reply_length, op->path, NULL, &list) < 0)
		return false;
	for (size_t i = 0; i < list.count; i++) {
		const struct ckpt_s3_upload *u = &list.uploads[i];
		if (strcmp(u->key, work->body.data) == 0 &&
			(!found || u->initiated_s >= found->initiated_s))
			found = u;
	}
	if (found)
		(void)snprintf(work->upload, sizeof(work->upload), "%s", found->upload_id);
	ckpt_s3_upload_list_clear(&list);
	return found != NULL;
}

int ckpt_s3_resume_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ask_uploads(op);
	if (r < 0)
		return r;
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	if (work->call.result < 0 || !take_uploads(op))
		return begin_anew(op);
	r = ckpt_s3_give_upload(op);
	if (r < 0)
		return r;
	work->strange = false;
	op->progress = 0; /* the part that is known last */
	op->saved = 0;    /* pages */
	return ckpt_task_continue(task, parts_body);
	CKPT_TASK_END(task);
}

static int ask_parts(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_GET, op->path, "list the parts of");

	ckpt_buf_free(&work->query);
	ckpt_buf_puts(&work->query, "uploadId=");
	ckpt_s3_escape(&work->query, work->upload, strlen(work->upload));
	if (op->progress > 0)
		ckpt_buf_printf(&work->query, "&part-number-marker=%" PRIu64, op->progress);
	ckpt_buf_put(&work->query, "", 1);
	if (work->query.failed)
		return -ENOMEM;
	call->query = work->query.data;
	call->documents = true;
	ckpt_s3_aside(op);
	return 0;
}

static uint64_t size_of(const struct ckpt_s3_file *file, uint32_t number)
{
	uint64_t at = (uint64_t)(number - 1) * file->part_bytes;

	return ckpt_min_u64(file->part_bytes, file->size - at);
}

/*
 * Whether the upload can be resumed: later parts must be with or without CRC32C as it was begun. If it has no parts and
 * the server does not tell, both are possible.
 */
static bool take_sums(struct ckpt_store_op *op)
{
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	bool heeded = ckpt_s3_store(op)->sums == CKPT_S3_SUMS_HEEDED;
	uint32_t known = 0;
	uint32_t summed = 0;

	for (uint32_t i = 0; i < file->part_count; i++) {
		known += file->parts[i].number > 0;
		summed += file->parts[i].number > 0 && file->parts[i].has_crc32c;
	}
	bool begun_so = file->sums || summed > 0;
	file->sums = begun_so && heeded;
	if (file->sums && summed < known)
		memset(file->parts, 0, file->part_count * sizeof(*file->parts));
	return begun_so ? heeded : !heeded || known > 0;
}

static bool fits(const struct ckpt_s3_file *file, const struct ckpt_s3_part *part)
{
	if (part->number < 1 || part->number > file->part_count || !part->etag[0])
		return false;
	/* Which one is the last is not known. */
	return part->size == size_of(file, part->number) ||
	       (file->varied && part->size < file->part_bytes);
}

/*
 * Uses larger parts if the upload has them. All parts but the last have one size. A single part may be the last one,
 * unless it is the first. False: the part size is unknown or cannot be used.
 */
static bool take_cut(struct ckpt_store_op *op, const struct ckpt_s3_part_list *list)
{
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	const struct ckpt_s3_part *first = &list->parts[0];
	uint64_t cut = first->size;

	if (list->count == 1 && !list->more && first->number > 1)
		return false;
	if (cut > file->part_bytes && cut <= CUT_MAX && cut % ckpt_s3_store(op)->block_bytes == 0) {
		file->part_bytes = cut;
		file->part_count = (uint32_t)((file->size + cut - 1) / cut);
		op->unit = cut;
	}
	return cut == file->part_bytes;
}

/* Whether there may be another page. */
static bool take_parts(struct ckpt_store_op *op)
{
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_part_list list = {0};

	if (ckpt_s3_part_list_parse(
		    work->call.req.reply, work->call.req.reply_length, op->path, NULL, &list) < 0)
		return false;
	if (list.count > 0 && op->progress == 0)
		work->strange = !take_cut(op, &list);
	/* If one part was cut differently, none is trusted, even if its size fits. */
	for (size_t i = 0; i < list.count && !work->strange; i++) {
		work->strange = !fits(file, &list.parts[i]);
		if (!work->strange)
			file->parts[list.parts[i].number - 1] = list.parts[i];
	}
	file->sums = file->sums || list.crc32c;
	bool more = !work->strange && list.more && list.next_marker > op->progress &&
		    ++op->saved < PAGES_MAX;
	op->progress = list.next_marker;
	ckpt_s3_part_list_clear(&list);
	return more;
}

/* Its parts cannot be used: aborts it, then resumes an older one or begins another. */
static int replace_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);

	CKPT_TASK_BEGIN(task);
	(void)ckpt_s3_ask_abort(op, op->path);
	if (work->query.failed)
		return ckpt_s3_store_fail(op, -ENOMEM, "abort the upload of %s", op->path);
	ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
	CKPT_AWAIT(task, work->call.done);
	/* It was aborted, and the answer to that was lost. */
	bool gone = work->call.result == -ESTALE || work->call.result == -ENOENT;
	return (work->call.result == 0 || gone) && ++work->replaced < REPLACED_MAX
		       ? ckpt_task_continue(task, ckpt_s3_resume_body)
		       : begin_anew(op);
	CKPT_TASK_END(task);
}

static int parts_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		r = ask_parts(op);
		if (r < 0) {
			ckpt_s3_file_drop(op);
			return ckpt_s3_store_fail(op, r, "list the parts of %s", op->path);
		}
		ckpt_s3_call_start(ckpt_s3_store(op)->client, &work->call);
		CKPT_AWAIT(task, work->call.done);
		/* It was completed or aborted meanwhile. */
		if (work->call.result < 0) {
			ckpt_s3_file_drop(op);
			return begin_anew(op);
		}
	} while (take_parts(op));
	if (!work->strange && take_sums(op))
		return 0;
	ckpt_s3_file_drop(op);
	return ckpt_task_continue(task, replace_body);
	CKPT_TASK_END(task);
}
