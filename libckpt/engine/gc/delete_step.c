/* SPDX-License-Identifier: Apache-2.0 */
/* Deletes one step. */
#include "engine/gc/delete_step.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"

#define MANIFEST_NAME "manifest.json"

static struct ckpt_deletion *deletion_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_deletion, task);
}

static const char *first_name(struct ckpt_deletion *r)
{
	return r->names.count ? r->names.names : NULL;
}

static const char *next_name(struct ckpt_deletion *r)
{
	const char *next = r->name + strlen(r->name) + 1;

	return next < r->names.names + r->names.bytes ? next : NULL;
}

static int check_fence(struct ckpt_deletion *r)
{
	uint64_t newest = ckpt_take_newest_claim(&r->op);
	/* Without a generation of its own, the process holds the lock of the newest claim instead. */
	uint64_t own = r->core->lineage->generation
			       ? r->core->lineage->generation
			       : ckpt_scan_newest_claim(&r->core->lineage->scan);

	if (newest <= own)
		return 0;
	/* It may be this process's own claim, which is being made, or which failed but took effect. */
	if (newest == r->core->lineage->tried_generation)
		return ckpt_fail(r->err, -EBUSY,
			"this process is claiming generation %llu, or its claim failed but took "
			"effect: try again after the next save",
			(unsigned long long)newest);
	r->core->lineage->fenced = true;
	return ckpt_fail(r->err, CKPT_EFENCED,
		"generation %llu has taken over the store %s: this process deletes nothing more",
		(unsigned long long)newest, r->core->parts.label);
}

static int encode_settlement(struct ckpt_deletion *r)
{
	struct ckpt_core *core = r->core;
	struct ckpt_manifest manifest = {.kind = CKPT_MANIFEST_ABORT,
		.generation = r->generation,
		.step = r->step,
		.wall_ms = ckpt_env_wall_ms(core->parts.env),
		.world = 1};

	memcpy(manifest.run_id, core->lineage->marker.run_id, sizeof(manifest.run_id));
	ckpt_name_attempt(manifest.attempt, ckpt_env_random(core->parts.env));
	(void)snprintf(manifest.reason, sizeof(manifest.reason),
		"its process ended before it was committed; settled by generation %llu",
		(unsigned long long)core->lineage->generation);
	return ckpt_manifest_encode(&manifest, &r->buf);
}

/* False: the name is longer than any that this library makes, so the file is not ours to delete. */
static bool join(struct ckpt_deletion *r)
{
	char directory[CKPT_PATH_MAX];

	ckpt_name_step(directory, r->generation, r->step);
	int length = snprintf(r->path, sizeof(r->path), "%s/%s", directory, r->name);
	return (size_t)length < sizeof(r->path);
}

/* Deletes the files in the directory, except an abort record that must stay, then the directory. */
static int empty_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);
	struct ckpt_store *store = r->core->store;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(r->path, r->generation, r->step);
	ckpt_store_list(store, &r->op, r->path);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result == -ENOENT)
		return 0;
	if (r->op.result < 0)
		return r->op.result;
	r->names = r->op.listing;
	r->op.listing = (struct ckpt_listing){0};
	for (r->name = first_name(r); r->name; r->name = next_name(r)) {
		if (r->settle && strcmp(r->name, MANIFEST_NAME) == 0)
			continue;
		if (!join(r))
			continue;
		ckpt_store_remove(store, &r->op, r->path);
		CKPT_AWAIT(task, r->op.done);
		if (r->op.result < 0)
			return r->op.result;
	}
	if (r->settle)
		return 0;
	ckpt_name_step(r->path, r->generation, r->step);
	ckpt_store_rmdir(store, &r->op, r->path);
	CKPT_AWAIT(task, r->op.done);
	return r->op.result;
	CKPT_TASK_END(task);
}

static int settle_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);

	CKPT_TASK_BEGIN(task);
	if (encode_settlement(r) < 0)
		return ckpt_fail(r->err, -ENOMEM, "out of memory");
	ckpt_name_manifest(r->path, r->generation, r->step);
	ckpt_store_publish(r->core->store, &r->op, r->path, r->buf.data, r->buf.len, NULL);
	CKPT_AWAIT(task, r->op.done);
	/* The step was committed after all, or somebody else has finished deleting it. */
	if (r->op.result == -EEXIST || r->op.result == -ENOENT)
		return 0;
	if (r->op.result < 0)
		return r->op.result;
	return ckpt_task_continue(task, empty_body);
	CKPT_TASK_END(task);
}

/* If the deletion fails from here on, nobody knows what is left. */
static void note_going(const struct ckpt_deletion *r)
{
	struct ckpt_scan_step *s = ckpt_scan_find(&r->core->lineage->scan, r->generation, r->step);

	if (s)
		s->going = true;
}

static int unlink_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);
	struct ckpt_store *store = r->core->store;

	CKPT_TASK_BEGIN(task);
	note_going(r);
	ckpt_name_manifest(r->path, r->generation, r->step);
	ckpt_store_remove(store, &r->op, r->path);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result < 0)
		return r->op.result;
	/* Once this is durable, no manifest names the shards, so they can be deleted. */
	ckpt_name_step(r->path, r->generation, r->step);
	ckpt_store_sync(store, &r->op, r->path);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result < 0)
		return r->op.result == -ENOENT ? 0 : r->op.result;
	return ckpt_task_continue(task, empty_body);
	CKPT_TASK_END(task);
}

/* Checked last: no later generation may exist when the first file is deleted. */
static int fence_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);
	int result;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(r->core->store, &r->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result < 0)
		return r->op.result;
	result = check_fence(r);
	if (result < 0)
		return result;
	return ckpt_task_continue(task, r->settle ? settle_body : unlink_body);
	CKPT_TASK_END(task);
}

/*
 * Whether this process resumed from the step and has committed nothing since. Until it commits, the lineage of its
 * generation ends at this step. The step may be chosen for deletion before it is adopted; the adopter has it open, so
 * is_parent() is correct once the lock is held.
 */
static bool is_parent(const struct ckpt_deletion *r)
{
	const struct ckpt_core *core = r->core;
	const struct ckpt_scan *scan = &core->lineage->scan;

	if (!core->lineage->adopted || r->generation != core->lineage->parent_generation ||
		r->step != core->lineage->parent_step)
		return false;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation == core->lineage->generation && s->state == CKPT_STEP_COMMITTED)
			return false;
	}
	return true;
}

static bool is_going(const struct ckpt_core *core, const struct ckpt_scan_step *step)
{
	for (const struct ckpt_deletion *r = core->deletions; r; r = r->next)
		if (r->deleting && r->generation == step->generation && r->step == step->step)
			return true;
	return false;
}

/* Checked again here, because the steps that the caller counted as kept may be under deletion by now. */
static bool is_last(const struct ckpt_deletion *r)
{
	const struct ckpt_scan *scan = &r->core->lineage->scan;
	bool good = false;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (!s->in_lineage || s->state != CKPT_STEP_COMMITTED)
			continue;
		if (s->generation == r->generation && s->step == r->step)
			good = true;
		else if (!is_going(r->core, s))
			return false;
	}
	return good;
}

static int lock_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);
	const struct ckpt_scan_step *needs;

	CKPT_TASK_BEGIN(task);
	needs = ckpt_scan_needs(&r->core->lineage->scan, r->generation, r->step);
	if (needs)
		return ckpt_fail(r->err, -EBUSY,
			"step %llu of %s is kept: step %llu is decoded with its shards, and has to "
			"be deleted first",
			(unsigned long long)r->step, r->core->parts.label,
			(unsigned long long)needs->step);
	if (r->core->lineage->scan.lacks)
		return ckpt_fail(r->err, -EBUSY,
			"step %llu of %s is kept: a later step may need it, of which too little is "
			"known since memory was short; open the store again",
			(unsigned long long)r->step, r->core->parts.label);
	if (is_last(r))
		return ckpt_fail(r->err, -EBUSY,
			"step %llu of %s is kept: no other good step is left, or none will be "
			"after the deletions under way",
			(unsigned long long)r->step, r->core->parts.label);
	r->deleting = true;
	ckpt_name_manifest(r->path, r->generation, r->step);
	ckpt_store_lock(r->core->store, &r->op, r->path, false, &r->lock);
	CKPT_AWAIT(task, r->op.done);
	if (r->op.result == -EAGAIN)
		return ckpt_fail(r->err, -EBUSY, "step %llu is open for reading",
			(unsigned long long)r->step);
	if (r->op.result < 0 && r->op.result != -ENOENT)
		return r->op.result;
	if (is_parent(r))
		return ckpt_fail(r->err, -EBUSY,
			"this process has resumed from step %llu, and nothing has been committed "
			"after it",
			(unsigned long long)r->step);
	return ckpt_task_continue(task, fence_body);
	CKPT_TASK_END(task);
}

static int close_body(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_store_shut(r->core->store, &r->op, &r->lock);
	CKPT_AWAIT(task, r->op.done);
	/* The step is deleted, whatever closing the lock returns. */
	return r->result;
	CKPT_TASK_END(task);
}

static void close_done(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);

	struct ckpt_deletion **link = &r->core->deletions;
	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	ckpt_free(r->names.names);
	r->names = (struct ckpt_listing){0};
	ckpt_buf_free(&r->buf);
	r->finished = true;
	ckpt_task_wake(r->waiter);
}

static void deletion_done(struct ckpt_task *task)
{
	struct ckpt_deletion *r = deletion_of(task);

	r->result = task->result;
	if (r->lock.fd < 0) {
		close_done(task);
		return;
	}
	ckpt_task_start(task, &r->core->sched, close_body, close_done);
}

void ckpt_deletion_start(struct ckpt_deletion *deletion)
{
	CKPT_ASSERT(!ckpt_task_active(&deletion->task));
	deletion->next = deletion->core->deletions;
	deletion->core->deletions = deletion;
	deletion->deleting = false;
	deletion->finished = false;
	deletion->result = 0;
	deletion->lock.fd = -1;
	ckpt_store_op_init(&deletion->op, &deletion->task, deletion->err);
	deletion->op.quiet = true;
	ckpt_task_start(&deletion->task, &deletion->core->sched,
		deletion->settle ? fence_body : lock_body, deletion_done);
}
