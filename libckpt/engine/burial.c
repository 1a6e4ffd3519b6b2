/* SPDX-License-Identifier: Apache-2.0 */
/* Removing a step where no lock keeps others away. */
#include "engine/burial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/open.h"
#include "format/sealed.h"

#define INDEX_SUFFIX ".index"

static struct ckpt_burial *burial_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_burial, work);
}

static void clear(struct ckpt_command *command)
{
	struct ckpt_burial *b = CKPT_CONTAINER(command, struct ckpt_burial, command);

	ckpt_free(b->op.listing.names);
	ckpt_free(b->op.data);
	ckpt_free(b->names.names);
	ckpt_buf_free(&b->buf);
}

struct ckpt_command *ckpt_burial_new(struct ckpt_core *core)
{
	return ckpt_command_new(core, sizeof(struct ckpt_burial), clear);
}

/* What to end with after an operation; 0: go on. What is gone already is no failure. */
static int trouble(struct ckpt_burial *b, const char *doing)
{
	struct ckpt_core *core = b->command.core;
	struct ckpt_error *err = &b->command.error;
	const struct ckpt_where where = {.tier = ckpt_store_tier(core->store), .file = b->op.path};

	if (b->op.result >= 0 || b->op.result == -ENOENT)
		return core->closing ? CKPT_ECLOSED : 0;
	if (err->code < 0)
		return b->op.result;
	return ckpt_fail_at(err, b->op.result, &where, "cannot %s %s in %s: %s", doing, b->op.path,
		core->parts.label, ckpt_code_text(b->op.result));
}

/* Removing. */

static bool is_index(const char *name)
{
	size_t length = strlen(name);
	size_t suffix = sizeof(INDEX_SUFFIX) - 1;

	return length > suffix && strcmp(name + length - suffix, INDEX_SUFFIX) == 0;
}

/* The next name in the directory, into `path`; false: none. Longer than any of ours: it stays, and the directory. */
static bool next_name(struct ckpt_burial *b, bool indexes)
{
	const struct ckpt_listing *names = &b->names;
	char directory[CKPT_PATH_MAX];

	ckpt_name_step(directory, b->generation, b->step);
	for (;;) {
		b->name = b->name ? b->name + strlen(b->name) + 1 : names->names;
		if (!names->names || b->name >= names->names + names->bytes)
			return false;
		if (is_index(b->name) != indexes)
			continue;
		int n = snprintf(b->path, sizeof(b->path), "%s/%s", directory, b->name);
		if (n > 0 && (size_t)n < sizeof(b->path))
			return true;
	}
}

static int last_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_store *store = b->command.core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_rmdir(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "remove");
	if (r < 0)
		return r;
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_sweep(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	ckpt_name_generation(b->path, b->generation);
	ckpt_store_sync(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_remove(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	return trouble(b, "remove");
	CKPT_TASK_END(task);
}

static int shards_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_store *store = b->command.core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_sync(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	if (r < 0)
		return r;
	for (b->name = NULL; next_name(b, false);) {
		ckpt_store_remove(store, &b->op, b->path);
		CKPT_AWAIT(task, b->op.done);
		r = trouble(b, "remove");
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, last_body);
	CKPT_TASK_END(task);
}

static int indexes_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_store *store = b->command.core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_list(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "list");
	if (r < 0)
		return r;
	b->names = b->op.listing;
	b->op.listing = (struct ckpt_listing){0};
	for (b->name = NULL; next_name(b, true);) {
		ckpt_store_remove(store, &b->op, b->path);
		CKPT_AWAIT(task, b->op.done);
		r = trouble(b, "remove");
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, shards_body);
	CKPT_TASK_END(task);
}

static int manifest_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_store *store = b->command.core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_manifest(b->path, b->generation, b->step);
	ckpt_store_remove(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "remove");
	if (r < 0)
		return r;
	ckpt_name_step(b->path, b->generation, b->step);
	ckpt_store_sync(store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	r = trouble(b, "sync");
	return r < 0 ? r : ckpt_task_continue(task, indexes_body);
	CKPT_TASK_END(task);
}

static int remove_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_core *core = b->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_get(core->store, &b->op, b->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -ENOENT)
		return ckpt_fail(&b->command.error, -EBUSY,
			"step %llu of %s has no tombstone any more: somebody else has removed it, "
			"or keeps it",
			(unsigned long long)b->step, core->parts.label);
	ckpt_free(b->op.data);
	b->op.data = NULL;
	r = trouble(b, "read");
	if (r < 0)
		return r;
	/* Readers of this machine, of a directory; those of others choose again when they miss a file. */
	ckpt_name_manifest(b->path, b->generation, b->step);
	ckpt_store_lock(core->store, &b->op, b->path, false, &b->lock);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -EAGAIN)
		return ckpt_fail(&b->command.error, -EBUSY, "step %llu of %s is open for reading",
			(unsigned long long)b->step, core->parts.label);
	r = trouble(b, "lock");
	return r < 0 ? r : ckpt_task_continue(task, manifest_body);
	CKPT_TASK_END(task);
}

/* Marking. */

static int encode(struct ckpt_burial *b)
{
	struct ckpt_core *core = b->command.core;
	const struct ckpt_tombstone tombstone = {.generation = b->generation,
		.step = b->step,
		.by = ckpt_max_u64(ckpt_scan_newest_claim(&core->scan), b->generation),
		.wall_ms = ckpt_env_wall_ms(core->parts.env)};
	int r = ckpt_tombstone_encode(&tombstone, &b->buf);

	return r < 0 ? ckpt_fail(&b->command.error, r, "out of memory") : 0;
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = encode(b);
	if (r < 0)
		return r;
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_publish(b->command.core->store, &b->op, b->path, b->buf.data, b->buf.len, NULL);
	CKPT_AWAIT(task, b->op.done);
	return b->op.result == -EEXIST ? 0 : trouble(b, "write");
	CKPT_TASK_END(task);
}

/* Who holds a directory removes by himself, under locks. */
static int mark_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);
	struct ckpt_core *core = b->command.core;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_claim(b->path, ckpt_scan_newest_claim(&core->scan));
	ckpt_store_lock(core->store, &b->op, b->path, false, &b->lock);
	CKPT_AWAIT(task, b->op.done);
	if (b->op.result == -EAGAIN)
		return ckpt_fail(&b->command.error, CKPT_EINUSE,
			"the store %s is held by a live process: what it keeps is its own to say "
			"(keep_last, keep_every)",
			core->parts.label);
	r = trouble(b, "lock");
	return r < 0 ? r : ckpt_task_continue(task, publish_body);
	CKPT_TASK_END(task);
}

static int unmark_body(struct ckpt_task *task)
{
	struct ckpt_burial *b = burial_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_name_tombstone(b->path, b->generation, b->step);
	ckpt_store_remove(b->command.core->store, &b->op, b->path);
	CKPT_AWAIT(task, b->op.done);
	return trouble(b, "remove");
	CKPT_TASK_END(task);
}

static void work_done(struct ckpt_task *task)
{
	ckpt_task_wake(&burial_of(task)->command.task);
}

int ckpt_burial_body(struct ckpt_task *task)
{
	static ckpt_task_fn *const acts[] = {[CKPT_BURIAL_MARK] = mark_body,
		[CKPT_BURIAL_REMOVE] = remove_body,
		[CKPT_BURIAL_UNMARK] = unmark_body};
	struct ckpt_burial *b = CKPT_CONTAINER(ckpt_command_of(task), struct ckpt_burial, command);

	CKPT_TASK_BEGIN(task);
	b->lock.fd = -1;
	ckpt_store_op_init(&b->op, &b->work, &b->command.error);
	b->op.quiet = true;
	ckpt_task_start(&b->work, &b->command.core->sched, acts[b->act], work_done);
	CKPT_AWAIT(task, b->work.finished);
	if (b->lock.fd >= 0) {
		/* The lock's end changes nothing about what was done. */
		b->op.waiter = task;
		b->op.err = NULL;
		ckpt_store_shut(b->command.core->store, &b->op, &b->lock);
		CKPT_AWAIT(task, b->op.done);
	}
	return b->work.result;
	CKPT_TASK_END(task);
}
