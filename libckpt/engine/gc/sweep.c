/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes old sessions and catalogs. */
#include "engine/gc/sweep.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "exchange/exchange_dir.h"

static const char *next_name(const struct ckpt_listing *names, const char *name)
{
	const char *next = name ? name + strlen(name) + 1 : names->names;

	return names->names && next < names->names + names->bytes ? next : NULL;
}

static bool next_session(struct ckpt_gc_sweep *s)
{
	const struct ckpt_core *core = s->core;

	while ((s->session = next_name(&core->lineage->sessions, s->session)))
		if (ckpt_session_valid(s->session) && strcmp(s->session, core->config.session) != 0)
			return true;
	return false;
}

/* A value, or the temporary file of an interrupted publication of one. */
static bool is_value(const struct ckpt_gc_sweep *s)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz0123456789-.";

	return s->name[0] != '.' && strspn(s->name, chars) == strlen(s->name);
}

/* First words are deleted last: while another value exists, nobody takes the session for a new one. */
static bool next_value(struct ckpt_gc_sweep *s)
{
	for (;;) {
		while ((s->name = next_name(&s->names, s->name))) {
			if (!is_value(s) || (!s->last && strncmp(s->name, "rank-", 5) == 0))
				continue;
			int n = snprintf(s->path, sizeof(s->path), CKPT_NAME_EXCHANGE "/%s/%s",
				s->session, s->name);
			if (n > 0 && (size_t)n < sizeof(s->path))
				return true;
		}
		if (s->last)
			return false;
		s->last = true;
	}
}

static bool goes_on(const struct ckpt_gc_sweep *s)
{
	return !*s->stop && !s->core->lineage->fenced && s->removed < CKPT_SWEEP_MOST;
}

static bool has_steps(const struct ckpt_scan *scan, uint64_t generation)
{
	for (size_t i = 0; i < scan->step_count; i++)
		if (scan->steps[i].generation == generation)
			return true;
	return false;
}

/* An older generation of many ranks without steps. */
static bool next_emptied(struct ckpt_gc_sweep *s)
{
	const struct ckpt_core *core = s->core;

	while (s->gen < core->lineage->scan.gen_count) {
		const struct ckpt_scan_gen *gen = &core->lineage->scan.gens[s->gen++];
		if (gen->generation >= core->lineage->generation || !gen->claimed || gen->broken ||
			gen->claim.world < 2 || has_steps(&core->lineage->scan, gen->generation))
			continue;
		ckpt_name_generation(s->directory, gen->generation);
		return true;
	}
	return false;
}

bool ckpt_gc_sweep_is_catalog(const char *name)
{
	const char *temp = strstr(name, CKPT_STORE_TEMP);
	struct ckpt_digest digest;
	char whole[CKPT_PATH_MAX];

	(void)snprintf(whole, sizeof(whole), "%.*s",
		(int)(temp ? temp - name : (ptrdiff_t)strlen(name)), name);
	return ckpt_parse_catalog(whole, &digest);
}

static bool next_catalog(struct ckpt_gc_sweep *s)
{
	while ((s->name = next_name(&s->names, s->name))) {
		if (!ckpt_gc_sweep_is_catalog(s->name))
			continue;
		int n = snprintf(s->path, sizeof(s->path), "%s/%s", s->directory, s->name);
		if (n > 0 && (size_t)n < sizeof(s->path))
			return true;
	}
	return false;
}

static void take_names(struct ckpt_gc_sweep *s)
{
	s->names = s->op.listing;
	s->op.listing = (struct ckpt_listing){0};
	s->name = NULL;
	s->last = false;
}

/* Counts and logs the failures in one directory. */
static void note(struct ckpt_gc_sweep *s, const char *what)
{
	if (s->op.result < 0 && s->op.result != -ENOENT)
		ckpt_log(s->core->parts.log, CKPT_LOG_WARN, "cannot delete what %s left in %s: %s",
			what, s->core->parts.label,
			s->err.code ? s->err.message : ckpt_code_text(s->op.result));
	ckpt_error_clear(&s->err);
	ckpt_free(s->names.names);
	s->names = (struct ckpt_listing){0};
}

static int catalogs_body(struct ckpt_task *task)
{
	struct ckpt_gc_sweep *s = CKPT_CONTAINER(task, struct ckpt_gc_sweep, task);
	struct ckpt_store *store = s->core->store;

	CKPT_TASK_BEGIN(task);
	while (goes_on(s) && next_emptied(s)) {
		ckpt_store_list(store, &s->op, s->directory);
		CKPT_AWAIT(task, s->op.done);
		take_names(s);
		for (; s->op.result == 0 && goes_on(s) && next_catalog(s); s->removed++) {
			ckpt_store_remove(store, &s->op, s->path);
			CKPT_AWAIT(task, s->op.done);
		}
		note(s, s->directory);
	}
	CKPT_TASK_END(task);
}

static int gc_sweep_body(struct ckpt_task *task)
{
	struct ckpt_gc_sweep *s = CKPT_CONTAINER(task, struct ckpt_gc_sweep, task);
	struct ckpt_store *store = s->core->store;

	CKPT_TASK_BEGIN(task);
	while (goes_on(s) && next_session(s)) {
		(void)snprintf(
			s->directory, sizeof(s->directory), CKPT_NAME_EXCHANGE "/%s", s->session);
		ckpt_store_list(store, &s->op, s->directory);
		CKPT_AWAIT(task, s->op.done);
		take_names(s);
		for (; s->op.result == 0 && goes_on(s) && next_value(s); s->removed++) {
			ckpt_store_remove(store, &s->op, s->path);
			CKPT_AWAIT(task, s->op.done);
		}
		if (s->op.result == 0) {
			ckpt_store_rmdir(store, &s->op, s->directory);
			CKPT_AWAIT(task, s->op.done);
		}
		note(s, s->directory);
	}
	return ckpt_task_continue(task, catalogs_body);
	CKPT_TASK_END(task);
}

static void gc_sweep_done(struct ckpt_task *task)
{
	struct ckpt_gc_sweep *s = CKPT_CONTAINER(task, struct ckpt_gc_sweep, task);

	ckpt_free(s->core->lineage->sessions.names);
	s->core->lineage->sessions = (struct ckpt_listing){0};
	ckpt_task_wake(s->waiter);
}

void ckpt_gc_sweep_start(struct ckpt_gc_sweep *gc_sweep)
{
	ckpt_error_clear(&gc_sweep->err);
	ckpt_store_op_init(&gc_sweep->op, &gc_sweep->task, &gc_sweep->err);
	gc_sweep->op.quiet = true;
	ckpt_task_start(&gc_sweep->task, &gc_sweep->core->sched, gc_sweep_body, gc_sweep_done);
}
