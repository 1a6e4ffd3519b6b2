/* SPDX-License-Identifier: Apache-2.0 */
/* Very many ranks: the catalog first, and then the indexes of those who hold what is wanted. */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "engine/gather.h"

static struct ckpt_gather *gather_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_gather, task);
}

bool ckpt_gather_is_narrow(const struct ckpt_gather *gather)
{
	const struct ckpt_manifest *m = &gather->pick->manifest;
	uint32_t many = gather->core->config.many;

	return m->catalog_bytes > 0 && m->world >= (many ? many : CKPT_GATHER_MANY) &&
	       gather->elsewhere.count == 0;
}

/* It is an aid: what it would have said the indexes say, too. */
static int do_without(struct ckpt_task *task)
{
	struct ckpt_gather *g = gather_of(task);

	ckpt_log(g->core->parts.log, CKPT_LOG_WARN,
		"the catalog of step %llu cannot be used, and the indexes of all %u ranks are "
		"read: "
		"%.700s",
		(unsigned long long)g->pick->chosen.step, g->pick->manifest.world, g->err->message);
	ckpt_error_clear(g->err);
	return ckpt_task_continue(task, ckpt_gather_open_all_body);
}

int ckpt_gather_open_narrow_body(struct ckpt_task *task)
{
	struct ckpt_gather *g = gather_of(task);

	CKPT_TASK_BEGIN(task);
	g->reader = ckpt_holders_reader_new(g->core, g->pick, g->err, task);
	if (!g->reader)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	CKPT_AWAIT(task, g->reader->task.finished);
	if (g->stop)
		return g->stop;
	if (g->reader->task.result == -ENOMEM)
		return g->reader->task.result;
	if (g->reader->task.result < 0)
		return do_without(task);
	g->holders = g->reader->holders;
	g->reader->holders = NULL;
	g->names = g->holders->names;
	if (ckpt_binder_init_holders(&g->binder, g->holders, g->pick->manifest.world) < 0)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	return 0;
	CKPT_TASK_END(task);
}

/* No rank is asked for it, and those that are may not have heard of the tensor. */
static bool is_empty(const struct ckpt_gather *g, const struct ckpt_target *t)
{
	const struct ckpt_entry *whole = ckpt_layout_find(g->names, t->name);

	CKPT_ASSERT(whole);
	return ckpt_binder_bytes(t, whole) == 0;
}

int ckpt_gather_ask(struct ckpt_gather *gather, const struct ckpt_target *targets, size_t count,
	struct ckpt_error *err)
{
	size_t before = gather->asked.count;

	for (size_t i = 0; i < count; i++) {
		if (is_empty(gather, &targets[i]) ||
			ckpt_asked_add(&gather->asked, &targets[i]) == 0)
			continue;
		ckpt_asked_forget(&gather->asked, before);
		return ckpt_fail(err, -ENOMEM, "out of memory for %zu targets", count);
	}
	return 0;
}

static bool any_index(const struct ckpt_gather *g)
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
static int check_same(struct ckpt_gather *g, const struct ckpt_target *t)
{
	const struct ckpt_entry *told = ckpt_layout_find(g->names, t->name);
	const struct ckpt_entry *found = ckpt_layout_find(g->wholes->names, t->name);

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
static int bind_again(struct ckpt_gather *g)
{
	uint32_t world = g->pick->manifest.world;

	ckpt_gather_reset(g);
	int r = ckpt_wholes_build(
		(const struct ckpt_index *const *)g->indexes, world, &g->job.error, &g->wholes);
	if (r == 0 && ckpt_binder_init(&g->binder, g->wholes, world) < 0)
		r = ckpt_fail(&g->job.error, -ENOMEM, "out of memory");
	for (size_t i = 0; i < g->asked.count && r == 0; i++) {
		r = check_same(g, g->asked.items[i]);
		if (r == 0)
			r = ckpt_binder_add(&g->binder, g->asked.items[i], 1, &g->job.error);
	}
	return r;
}

static void bind_work(struct ckpt_job *job)
{
	struct ckpt_gather *g = CKPT_CONTAINER(job, struct ckpt_gather, job.job);

	g->job.result = bind_again(g);
}

bool ckpt_gather_may_widen(const struct ckpt_gather *gather)
{
	return gather->holders && !gather->wide && !gather->halted;
}

void ckpt_gather_widen(struct ckpt_gather *gather)
{
	ckpt_log(gather->core->parts.log, CKPT_LOG_WARN,
		"step %llu: those who hold it by its catalog do not have it all, and the indexes "
		"of all %u "
		"ranks are read: %.700s",
		(unsigned long long)gather->pick->chosen.step, gather->pick->manifest.world,
		gather->err->message);
	ckpt_error_clear(gather->err);
	atomic_store(gather->counter, 0);
	gather->wide = true;
	gather->stop = 0;
	gather->code = 0;
}

int ckpt_gather_narrow_body(struct ckpt_task *task)
{
	struct ckpt_gather *g = gather_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_gather_start_indexes(g);
	if (r < 0)
		return r;
	CKPT_AWAIT(task, ckpt_gather_pump(g));
	r = ckpt_gather_end_ways(g);
	if (r < 0)
		return r;
	/* Nothing is wanted. */
	if (!any_index(g))
		return ckpt_task_continue(task, ckpt_gather_read_body);
	ckpt_task_job_start(&g->job, g->core->parts.env, task, bind_work);
	CKPT_AWAIT(task, g->job.done);
	r = ckpt_task_job_take(&g->job, g->err);
	if (r < 0 && r != -ENOMEM && ckpt_gather_may_widen(g)) {
		ckpt_gather_widen(g);
		return ckpt_task_continue(task, ckpt_gather_narrow_body);
	}
	if (r < 0)
		return r;
	return ckpt_task_continue(task, ckpt_gather_read_body);
	CKPT_TASK_END(task);
}
