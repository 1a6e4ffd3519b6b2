/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the catalog of a layout from the indexes of all ranks. */
#include "engine/save/catalog_writer.h"

#include <errno.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/saver.h"

static struct ckpt_catalog_writer *catalog_writer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_catalog_writer, task);
}

int ckpt_catalog_writer_builder(
	const struct ckpt_core *core, struct ckpt_catalog_builder **ret_builder)
{
	return ckpt_catalog_builder_new(
		core->config.world, &core->config.catalog_limits, ret_builder);
}

static int build(struct ckpt_catalog_writer *c)
{
	if (c->builder)
		return ckpt_catalog_builder_finish(c->builder, &c->file, &c->job.error, &c->digest);
	struct ckpt_catalog_builder *builder = NULL;
	uint32_t world = c->core->config.world;
	int r = ckpt_catalog_writer_builder(c->core, &builder);

	for (uint32_t i = 0; i < world && r == 0; i++)
		r = ckpt_catalog_builder_add(builder, i, c->indexes[i]->layout, &c->job.error);
	if (r == 0)
		r = ckpt_catalog_builder_finish(builder, &c->file, &c->job.error, &c->digest);
	ckpt_catalog_builder_free(builder);
	return r;
}

static void build_work(struct ckpt_job *job)
{
	struct ckpt_catalog_writer *c = CKPT_CONTAINER(job, struct ckpt_catalog_writer, job.job);

	c->job.result = build(c);
}

static int give_up(struct ckpt_catalog_writer *c, int code)
{
	ckpt_log(c->core->parts.log, CKPT_LOG_WARN,
		"cannot write the catalog of %u ranks, so readers of the step must read all of "
		"their indexes: %.800s",
		c->core->config.world, c->err.code ? c->err.message : ckpt_code_text(code));
	return code;
}

static int catalog_writer_body(struct ckpt_task *task)
{
	struct ckpt_catalog_writer *c = catalog_writer_of(task);
	struct ckpt_core *core = c->core;
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_task_job_start(&c->job, core->parts.env, task, build_work);
	CKPT_AWAIT(task, c->job.done);
	if (ckpt_task_job_take(&c->job, &c->err) < 0)
		return give_up(c, c->job.result);
	ckpt_name_catalog(path, core->lineage->generation, &c->digest);
	ckpt_store_publish(core->store, &c->op, path, c->file.data, c->file.len, NULL);
	CKPT_AWAIT(task, c->op.done);
	/* An earlier, equal layout has written it; its name may not be durable yet. */
	if (c->op.result == -EEXIST) {
		ckpt_error_clear(&c->err);
		ckpt_name_generation(path, core->lineage->generation);
		ckpt_store_sync(core->store, &c->op, path);
		CKPT_AWAIT(task, c->op.done);
	}
	if (c->op.result < 0)
		return give_up(c, c->op.result);
	core->saver->catalog.digest = c->digest;
	core->saver->catalog.bytes = c->file.len;
	CKPT_TASK_END(task);
}

static void catalog_writer_done(struct ckpt_task *task)
{
	ckpt_task_wake(catalog_writer_of(task)->waiter);
}

void ckpt_catalog_writer_start(struct ckpt_catalog_writer *catalog_writer)
{
	struct ckpt_core *core = catalog_writer->core;

	core->saver->catalog = (struct ckpt_saver_catalog){.generation = core->lineage->generation};
	ckpt_error_clear(&catalog_writer->err);
	ckpt_store_op_init(&catalog_writer->op, &catalog_writer->task, &catalog_writer->err);
	ckpt_task_start(
		&catalog_writer->task, &core->sched, catalog_writer_body, catalog_writer_done);
}

void ckpt_catalog_writer_clear(struct ckpt_catalog_writer *catalog_writer)
{
	CKPT_ASSERT(!ckpt_task_active(&catalog_writer->task));
	ckpt_buf_free(&catalog_writer->file);
}
