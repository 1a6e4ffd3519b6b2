/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the server verifies what was sent: by CRC32C if it checks that and TLS protects the connection, else by the
 * signed SHA-256. Whether it checks CRC32C is tested, not assumed from the server's name.
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

/* Whether the server has answered and refused. */
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

/*
 * Sends a wrong and a right checksum. Only if the wrong one is refused and the right one is not does the server check
 * it.
 */
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
			"%s: this server does not check CRC32C: uploads are hashed with SHA-256, "
			"which takes more CPU time",
			op->store->label);
	/* If it stays, it is like the leftovers of a killed writer. */
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
	/* Some servers answer Complete without a readable body. */
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
