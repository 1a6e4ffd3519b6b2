/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and decodes a catalog. A worker decodes it, because it may have hundreds of megabytes. */
#include "engine/reshard/catalog_map_reader.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/core/core.h"

static struct ckpt_catalog_map_reader *reader_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_catalog_map_reader, task);
}

static void open_work(struct ckpt_job *job)
{
	struct ckpt_catalog_map_reader *r =
		CKPT_CONTAINER(job, struct ckpt_catalog_map_reader, job);
	char *file = r->op.data;

	r->op.data = NULL;
	r->job_result = ckpt_catalog_map_open(file, r->op.length, &r->pick->manifest.catalog,
		r->pick->manifest.world, r->path, &r->job_error, &r->catalog_map);
}

static void job_back(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_catalog_map_reader *r =
		CKPT_CONTAINER(job, struct ckpt_catalog_map_reader, job);

	r->job_done = true;
	ckpt_task_wake(&r->task);
}

static int fail_size(const struct ckpt_catalog_map_reader *r)
{
	return ckpt_fail_at(r->err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(r->core->store), .file = r->path},
		"%s in %s has only %llu bytes, the manifest says %llu: it was truncated; delete "
		"it, the step can be restored without it",
		r->path, r->core->parts.label, (unsigned long long)r->op.length,
		(unsigned long long)r->pick->manifest.catalog_bytes);
}

static int fail_read(const struct ckpt_catalog_map_reader *r)
{
	const struct ckpt_where where = {.tier = ckpt_store_tier(r->core->store), .file = r->path};
	int code = r->op.result;

	if (code == -EFBIG)
		return ckpt_fail_at(r->err, CKPT_EINTEGRITY, &where,
			"%s in %s has more than the %llu bytes in the manifest: something was "
			"appended; delete it, the step can be restored without it",
			r->path, r->core->parts.label,
			(unsigned long long)r->pick->manifest.catalog_bytes);
	if (ckpt_fail_said(r->err, code, &where, &r->said))
		return code;
	return ckpt_fail_at(r->err, ckpt_store_is_no_file(code) ? CKPT_EINTEGRITY : code, &where,
		"cannot read %s in %s: %s", r->path, r->core->parts.label, ckpt_code_text(code));
}

static int reader_body(struct ckpt_task *task)
{
	struct ckpt_catalog_map_reader *r = reader_of(task);
	const struct ckpt_manifest *manifest = &r->pick->manifest;

	CKPT_TASK_BEGIN(task);
	ckpt_name_catalog(r->path, r->pick->chosen.generation, &manifest->catalog);
	ckpt_store_get(r->core->store, &r->op, r->path, manifest->catalog_bytes);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result < 0)
		return fail_read(r);
	if (r->op.length != manifest->catalog_bytes) {
		ckpt_free(r->op.data);
		r->op.data = NULL;
		return fail_size(r);
	}
	r->job = (struct ckpt_job){.work = open_work, .urgent = true};
	r->job.node.run = job_back;
	ckpt_env_run(r->core->parts.env, &r->job);
	CKPT_AWAIT(task, r->job_done);
	if (r->job_result < 0)
		*r->err = r->job_error;
	return r->job_result;
	CKPT_TASK_END(task);
}

static void reader_done(struct ckpt_task *task)
{
	ckpt_task_wake(reader_of(task)->waiter);
}

struct ckpt_catalog_map_reader *ckpt_catalog_map_reader_new(struct ckpt_core *core,
	const struct ckpt_select *pick, struct ckpt_error *err, struct ckpt_task *waiter)
{
	struct ckpt_catalog_map_reader *reader = ckpt_alloc(sizeof(*reader));

	CKPT_ASSERT(pick->manifest.catalog_bytes > 0);
	if (!reader)
		return NULL;
	reader->core = core;
	reader->pick = pick;
	reader->err = err;
	reader->waiter = waiter;
	ckpt_error_clear(&reader->job_error);
	ckpt_error_clear(&reader->said);
	ckpt_store_op_init(&reader->op, &reader->task, &reader->said);
	reader->op.stop = pick->stop;
	ckpt_task_start(&reader->task, &core->sched, reader_body, reader_done);
	return reader;
}

int ckpt_catalog_map_reader_take(const struct ckpt_catalog_map_reader *reader, const char *copied)
{
	if (reader->task.result == 0 || reader->task.result == -ENOMEM)
		return reader->task.result;
	ckpt_log(reader->core->parts.log, CKPT_LOG_WARN,
		"step %llu is %s without its catalog: %.800s",
		(unsigned long long)reader->pick->chosen.step, copied, reader->err->message);
	ckpt_error_clear(reader->err);
	return 0;
}

void ckpt_catalog_map_reader_free(struct ckpt_catalog_map_reader *reader)
{
	if (!reader)
		return;
	CKPT_ASSERT(!ckpt_task_active(&reader->task));
	ckpt_catalog_map_free(reader->catalog_map);
	ckpt_free(reader);
}
