/* SPDX-License-Identifier: Apache-2.0 */
/* Very many ranks: the catalog first, and then the indexes of those who hold what is wanted. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/shard/load.h"

static struct ckpt_shard_load *load_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard_load, task);
}

bool ckpt_shard_load_is_narrow(const struct ckpt_shard_load *load)
{
	const struct ckpt_manifest *m = &load->pick->manifest;
	uint32_t many = load->core->config.many;

	return m->catalog_bytes > 0 && m->world >= (many ? many : CKPT_SHARD_LOAD_MANY) &&
	       load->elsewhere.count == 0;
}

/* It is an aid: what it would have said the indexes say, too. */
static int do_without(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = load_of(task);

	ckpt_log(g->core->parts.log, CKPT_LOG_WARN,
		"the catalog of step %llu cannot be used, and the indexes of all %u ranks are "
		"read: "
		"%.700s",
		(unsigned long long)g->pick->chosen.step, g->pick->manifest.world, g->err->message);
	ckpt_error_clear(g->err);
	return ckpt_task_continue(task, ckpt_shard_load_open_all_body);
}

int ckpt_shard_load_open_narrow_body(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = load_of(task);

	CKPT_TASK_BEGIN(task);
	g->reader = ckpt_catalog_map_reader_new(g->core, g->pick, g->err, task);
	if (!g->reader)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	CKPT_AWAIT(task, g->reader->task.finished);
	if (g->stop)
		return g->stop;
	if (g->reader->task.result == -ENOMEM)
		return g->reader->task.result;
	if (g->reader->task.result < 0)
		return do_without(task);
	g->catalog_map = g->reader->catalog_map;
	g->reader->catalog_map = NULL;
	g->names = g->catalog_map->names;
	if (ckpt_target_binder_init_holders(&g->binder, g->catalog_map, g->pick->manifest.world) <
		0)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	return 0;
	CKPT_TASK_END(task);
}

/* No rank is asked for it, and those that are may not have heard of the tensor. */
static bool is_empty(const struct ckpt_shard_load *g, const struct ckpt_target *t)
{
	const struct ckpt_entry *whole = ckpt_layout_find(g->names, t->name);

	CKPT_ASSERT(whole);
	return ckpt_target_binder_bytes(t, whole) == 0;
}

int ckpt_shard_load_ask(struct ckpt_shard_load *load, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err)
{
	size_t before = load->asked.count;

	for (size_t i = 0; i < count; i++) {
		if (is_empty(load, &targets[i]) ||
			ckpt_pending_targets_add(&load->asked, &targets[i]) == 0)
			continue;
		ckpt_pending_targets_forget(&load->asked, before);
		return ckpt_fail(err, -ENOMEM, "out of memory for %zu targets", count);
	}
	return 0;
}

static bool any_index(const struct ckpt_shard_load *g)
{
	for (uint32_t i = 0; i < g->pick->manifest.world; i++)
		if (g->indexes[i])
			return true;
	return false;
}

/*
 * Who asked has memory for what the catalog says that the tensor is. One that is another by the indexes has no
 * place there, whoever holds it.
 */
static int check_same(struct ckpt_shard_load *g, const struct ckpt_target *t)
{
	const struct ckpt_entry *told = ckpt_layout_find(g->names, t->name);
	const struct ckpt_entry *found = ckpt_layout_find(g->tensor_map->names, t->name);

	/* Nobody here holds it: the binder says so. */
	if (!found || (found->dtype == told->dtype && found->ndim == told->ndim &&
			      memcmp(found->shape, told->shape,
				      found->ndim * sizeof(*found->shape)) == 0))
		return 0;
	return ckpt_fail_at(&g->job.error, CKPT_EFORMAT, &(struct ckpt_where){.tensor = t->name},
		"'%.200s' is of another type or shape in the indexes than in the catalog of the "
		"step: "
		"remove the catalog, %s, and restore again",
		t->name, g->reader->path);
}

/* Binds again what was bound, now that it is known where everything lies. */
static int bind_again(struct ckpt_shard_load *g)
{
	uint32_t world = g->pick->manifest.world;

	ckpt_shard_load_reset(g);
	int r = ckpt_tensor_map_build(
		(const struct ckpt_index *const *)g->indexes, world, &g->job.error, &g->tensor_map);
	if (r == 0 && ckpt_target_binder_init(&g->binder, g->tensor_map, world) < 0)
		r = ckpt_fail(&g->job.error, -ENOMEM, "out of memory");
	for (size_t i = 0; i < g->asked.count && r == 0; i++) {
		r = check_same(g, g->asked.items[i]);
		if (r == 0)
			r = ckpt_target_binder_add(&g->binder, g->asked.items[i], 1, &g->job.error);
	}
	return r;
}

static void bind_work(struct ckpt_job *job)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(job, struct ckpt_shard_load, job.job);

	g->job.result = bind_again(g);
}

bool ckpt_shard_load_may_widen(const struct ckpt_shard_load *load)
{
	return load->catalog_map && !load->wide && !load->halted;
}

void ckpt_shard_load_widen(struct ckpt_shard_load *load)
{
	ckpt_log(load->core->parts.log, CKPT_LOG_WARN,
		"step %llu: those who hold it by its catalog do not have it all, and the indexes "
		"of all %u "
		"ranks are read: %.700s",
		(unsigned long long)load->pick->chosen.step, load->pick->manifest.world,
		load->err->message);
	ckpt_error_clear(load->err);
	atomic_store(load->counter, 0);
	load->wide = true;
	load->stop = 0;
	load->code = 0;
}

int ckpt_shard_load_narrow_body(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = load_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_shard_load_start_indexes(g);
	if (r < 0)
		return r;
	CKPT_AWAIT(task, ckpt_shard_load_pump(g));
	r = ckpt_shard_load_end_ways(g);
	if (r < 0)
		return r;
	/* Nothing is wanted. */
	if (!any_index(g))
		return ckpt_task_continue(task, ckpt_shard_load_read_body);
	ckpt_task_job_start(&g->job, g->core->parts.env, task, bind_work);
	CKPT_AWAIT(task, g->job.done);
	r = ckpt_task_job_take(&g->job, g->err);
	if (r < 0 && r != -ENOMEM && ckpt_shard_load_may_widen(g)) {
		ckpt_shard_load_widen(g);
		return ckpt_task_continue(task, ckpt_shard_load_narrow_body);
	}
	if (r < 0)
		return r;
	return ckpt_task_continue(task, ckpt_shard_load_read_body);
	CKPT_TASK_END(task);
}
