/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What proves to the server that it has what was sent: a CRC32C, where it heeds one and TLS keeps others away from it,
 * and else the SHA-256 that is signed in any case. Whether it heeds one is asked, not told by its name.
 */
#include "store/store_s3.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"

void ckpt_s3_probe_name(struct ckpt_store_op *op)
{
	(void)snprintf(op->temp.path, sizeof(op->temp.path),
		CKPT_NAME_MARKER CKPT_STORE_TEMP "%016llx",
		(unsigned long long)ckpt_env_random(op->store->env));
}

enum ckpt_s3_proof ckpt_s3_proof_of(const struct ckpt_store_op *op)
{
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	bool sums = file->upload ? file->sums : ckpt_s3_store(op)->sums == CKPT_S3_SUMS_HEEDED;

	return sums ? CKPT_S3_PROOF_CRC32C : CKPT_S3_PROOF_SIGNED;
}

/* Whether it has answered, and not done it. */
static bool is_refused(const struct ckpt_s3_call *call)
{
	return call->result < 0 && call->req.result == 0 &&
	       ((call->req.status >= 400 && call->req.status < 500) || call->req.status == 501);
}

static struct ckpt_s3_call *ask_probe(struct ckpt_store_op *op, enum ckpt_s3_proof proof)
{
	static const char bytes[] = "of these, two sums are told";
	struct ckpt_s3_call *call = ckpt_s3_ask(op, CKPT_HTTP_PUT, op->temp.path, "write");

	call->body = bytes;
	call->body_length = sizeof(bytes) - 1;
	call->proof = proof;
	return ckpt_s3_aside(op);
}

/* A wrong sum is refused, and a right one is not: then it is the sum that was looked at. */
int ckpt_s3_probe_sums_body(struct ckpt_task *task)
{
	struct ckpt_store_op *op = ckpt_s3_op(task);
	struct ckpt_s3_work *work = ckpt_s3_work(op);
	struct ckpt_store_s3 *s = ckpt_s3_store(op);

	CKPT_TASK_BEGIN(task);
	ckpt_s3_probe_name(op);
	ckpt_s3_call_start(s->client, ask_probe(op, CKPT_S3_PROOF_WRONG));
	CKPT_AWAIT(task, work->call.done);
	op->progress = work->call.result == CKPT_EINTEGRITY;
	if (op->progress) {
		ckpt_s3_call_start(s->client, ask_probe(op, CKPT_S3_PROOF_CRC32C));
		CKPT_AWAIT(task, work->call.done);
	}
	if (work->call.result < 0 && !is_refused(&work->call))
		return ckpt_s3_tell(op);
	s->sums =
		op->progress && work->call.result == 0 ? CKPT_S3_SUMS_HEEDED : CKPT_S3_SUMS_IGNORED;
	if (s->sums == CKPT_S3_SUMS_IGNORED)
		ckpt_log(s->client->log, CKPT_LOG_INFO,
			"%s: this server does not check CRC32C: what is sent is hashed with "
			"SHA-256, "
			"which takes more of the processor",
			op->store->label);
	/* If it stays, it is as what a writer leaves that was killed. */
	if (work->call.result == 0) {
		ckpt_s3_ask(op, CKPT_HTTP_DELETE, op->temp.path, "remove")->err = NULL;
		ckpt_s3_call_start(s->client, &work->call);
		CKPT_AWAIT(task, work->call.done);
	}
	return ckpt_task_continue(task, ckpt_s3_create_body);
	CKPT_TASK_END(task);
}

bool ckpt_s3_whole_differs(const struct ckpt_store_op *op)
{
	const struct ckpt_s3_work *work = ckpt_s3_work(op);
	const struct ckpt_s3_file *file = ckpt_s3_file_of(op);
	struct ckpt_s3_completed said = {.sum = CKPT_S3_SUM_NONE};
	uint32_t *sums;
	bool differs;

	for (uint32_t i = 0; i < file->part_count; i++)
		if (!file->parts[i].has_crc32c)
			return false;
	/* Some say nothing that can be read of what they have done. */
	if (ckpt_s3_completed_parse(
		    work->call.req.reply, work->call.req.reply_length, op->path, NULL, &said) < 0 ||
		said.sum != CKPT_S3_SUM_PARTS)
		return false;
	sums = ckpt_alloc_array(file->part_count, sizeof(*sums));
	if (!sums)
		return false;
	for (uint32_t i = 0; i < file->part_count; i++)
		sums[i] = file->parts[i].crc32c;
	differs = ckpt_s3_crc32c_of_parts(sums, file->part_count) != said.crc32c;
	ckpt_free(sums);
	return differs;
}
