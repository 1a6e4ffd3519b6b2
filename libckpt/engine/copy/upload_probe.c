/* SPDX-License-Identifier: Apache-2.0 */
/* What an upload finds of its step: the manifest here, and what the remote store has already. */
#include "engine/copy/upload_state.h"
#include "engine/lineage/lineage.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/opener.h"
#include "format/sealed.h"

static ckpt_task_fn parent_body;
static ckpt_task_fn look_body;
static ckpt_task_fn lock_body;
static ckpt_task_fn locked_body;
static ckpt_task_fn room_body;

/* The manifest, here. */

static int fail_gone(struct ckpt_upload *u, const char *why)
{
	return ckpt_fail_at(u->err, CKPT_ENOSTEP,
		&(struct ckpt_where){.tier = ckpt_store_tier(u->core->store), .file = u->pick.path},
		"step %llu of %s is not there any more%s%s", (unsigned long long)u->step,
		u->core->parts.label, *why ? ": " : "", why);
}

static int take_manifest(struct ckpt_upload *u)
{
	struct ckpt_select *p = &u->pick;

	if (u->op.result == -ENOENT)
		return fail_gone(u, "");
	if (u->op.result < 0)
		return ckpt_fail_at(u->err, u->op.result,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(u->core->store), .file = p->path},
			"cannot read %s of %s: %s", p->path, u->core->parts.label,
			ckpt_code_text(u->op.result));
	p->manifest_bytes = u->op.data;
	p->manifest_length = u->op.length;
	u->op.data = NULL;
	int r = ckpt_manifest_decode(
		p->manifest_bytes, p->manifest_length, p->path, u->err, &p->manifest);
	if (r < 0)
		return r;
	if (p->manifest.kind != CKPT_MANIFEST_COMMIT)
		return fail_gone(u, "it was aborted");
	if (p->manifest.generation != u->generation || p->manifest.step != u->step)
		return ckpt_fail_at(u->err, CKPT_EINTEGRITY,
			&(struct ckpt_where){
				.tier = ckpt_store_tier(u->core->store), .file = p->path},
			"%s is the manifest of another step: it was copied here from elsewhere",
			p->path);
	p->chosen.generation = u->generation;
	p->chosen.step = u->step;
	return *u->stop;
}

static int take_there_alone(struct ckpt_upload *u)
{
	struct ckpt_manifest manifest = {0};

	if (u->op.result == -ENOENT)
		return fail_gone(u, "");
	if (u->op.result < 0)
		return ckpt_upload_trouble(u, "read");
	int r = ckpt_manifest_decode(u->op.data, u->op.length, u->pick.path, u->err, &manifest);
	bool same = r == 0 && manifest.kind == CKPT_MANIFEST_COMMIT &&
		    manifest.generation == u->generation && manifest.step == u->step;
	ckpt_manifest_clear(&manifest);
	ckpt_store_drop_data(&u->op);
	if (r < 0)
		return r;
	return same ? *u->stop : fail_gone(u, "");
}

/* Whoever published it in a directory may have died before its name was durable. */
static int there_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_sync(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	u->committed = u->op.result >= 0;
	return ckpt_upload_give_up(u, u->committed ? 0 : ckpt_upload_trouble(u, "sync"));
	CKPT_TASK_END(task);
}

/* Rank 0 knew that the step is there, and has let it go here, before this rank has looked for that. */
static int gone_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_get(u->dest, &u->op, u->pick.path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, u->op.done);
	r = take_there_alone(u);
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, there_body);
	CKPT_TASK_END(task);
}

/* The lock keeps retention away; where there are no locks, the upload queue does alone. */
int ckpt_upload_probe_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	struct ckpt_store *store = u->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	u->op.quiet = true;
	ckpt_name_manifest(u->pick.path, u->generation, u->step);
	ckpt_store_lock(store, &u->op, u->pick.path, true, &u->pick.lock);
	CKPT_AWAIT(task, u->op.done);
	if (u->op.result == -ENOENT && !u->all)
		return ckpt_task_continue(task, gone_body);
	if (u->op.result == -ENOENT)
		return ckpt_upload_give_up(u, fail_gone(u, ""));
	/* A removal that may be refused yet. */
	if (u->op.result == -EAGAIN)
		return ckpt_upload_give_up(
			u, ckpt_fail(u->err, -EAGAIN, "%s is locked", u->pick.path));
	ckpt_store_get(store, &u->op, u->pick.path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, u->op.done);
	if (u->op.result == -ENOENT && !u->all)
		return ckpt_task_continue(task, gone_body);
	r = take_manifest(u);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	return ckpt_task_continue(task, u->parent ? parent_body : look_body);
	CKPT_TASK_END(task);
}

/* What is there. */

static int compare_manifest(struct ckpt_upload *u)
{
	bool same = u->op.length == u->pick.manifest_length &&
		    memcmp(u->op.data, u->pick.manifest_bytes, u->op.length) == 0;

	ckpt_store_drop_data(&u->op);
	if (same)
		return 0;
	return ckpt_fail_at(u->err, -EEXIST,
		&(struct ckpt_where){.tier = "remote", .file = u->pick.path},
		"%s has another step %llu of generation %llu: two jobs go on from the same claim, "
		"or the store %s is not the one that it was made from",
		u->dest->label, (unsigned long long)u->step, (unsigned long long)u->generation,
		u->core->parts.label);
}

/* Whatever is in it, the name counts. */
static int take_tombstone(struct ckpt_upload *u)
{
	ckpt_store_drop_data(&u->op);
	u->deleting = u->op.result >= 0;
	return u->op.result == -ENOENT ? *u->stop : ckpt_upload_trouble(u, "read");
}

static int take_there(struct ckpt_upload *u)
{
	ckpt_rank_files_clear(&u->there);
	if (u->op.result == -ENOENT)
		return *u->stop;
	int taken = ckpt_rank_files_take(&u->there, &u->op.listing);
	ckpt_free(ckpt_store_take_listing(&u->op).names);
	int r = ckpt_upload_trouble(u, "list");
	if (r < 0)
		return r;
	if (taken < 0)
		return ckpt_fail(u->err, -ENOMEM, "out of memory for the names of step %llu",
			(unsigned long long)u->step);
	return 0;
}

int ckpt_upload_take_newest(struct ckpt_upload *u, uint64_t *ret_newest)
{
	*ret_newest = ckpt_take_newest_claim(&u->op);
	return u->op.result == -ENOENT ? *u->stop : ckpt_upload_trouble(u, "list");
}

/* Rank 0 sends it. */
static int check_claimed(struct ckpt_upload *u)
{
	uint64_t newest;
	int r = ckpt_upload_take_newest(u, &newest);

	if (r < 0 || newest >= ckpt_scan_newest_claim(&u->core->lineage->scan))
		return r;
	return ckpt_fail(u->err, -EAGAIN, "rank 0 has not sent its claim to %s", u->dest->label);
}

/*
 * Who has listed the claims before this one's was there may be about to remove the step, and has marked it before that.
 * So its tombstone is looked for before its manifest is: without one, a manifest that is there stays.
 */
static int parent_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (u->core->config.rank > 0) {
		ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, u->op.done);
		r = check_claimed(u);
		if (r < 0)
			return ckpt_upload_give_up(u, r);
	}
	return ckpt_upload_look(u, false, look_body);
	CKPT_TASK_END(task);
}

static int take_same(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r = compare_manifest(u);

	u->found = u->deleting;
	return r < 0 || u->deleting ? ckpt_upload_give_up(u, r)
				    : ckpt_task_continue(task, there_body);
}

static int look_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_get(u->dest, &u->op, u->pick.path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, u->op.done);
	if (u->op.result >= 0)
		return take_same(task);
	r = u->op.result == -ENOENT ? *u->stop : ckpt_upload_trouble(u, "read");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	if (!u->core->parts.remote.bucket)
		return ckpt_task_continue(task, lock_body);
	return ckpt_upload_look(u, true, room_body);
	CKPT_TASK_END(task);
}

/*
 * An export into a directory removes what others have begun there, and what it has copied itself if it fails. It holds
 * the newest claim alone. All uploads share it. Where there are no locks it says that nothing else may write there.
 */
static int lock_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_take_newest(u, &u->newest);
	if (r == 0)
		r = ckpt_upload_check_newest(u, u->newest);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	if (u->newest == 0)
		return ckpt_upload_look(u, true, room_body);
	ckpt_name_claim(path, u->newest);
	ckpt_store_lock(u->dest, &u->op, path, true, &u->lock);
	CKPT_AWAIT(task, u->op.done);
	return ckpt_task_continue(task, locked_body);
	CKPT_TASK_END(task);
}

static int take_lock(struct ckpt_upload *u)
{
	if (u->op.result == -ENOLCK) {
		ckpt_error_clear(&u->said);
		return *u->stop;
	}
	if (u->op.result != -EAGAIN)
		return ckpt_upload_trouble(u, "lock");
	/* By the one who has claimed it since. */
	if (u->outdone)
		return 0;
	return ckpt_fail_at(u->err, CKPT_EINUSE,
		&(struct ckpt_where){.tier = "remote", .file = u->op.path},
		"%s is held by another process, which copies a step into it or runs there: wait "
		"until that has ended, or end it",
		u->dest->label);
}

/* An export that has begun since the claims were listed may hold a newer one. */
static int locked_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	uint64_t newest;
	int r;

	CKPT_TASK_BEGIN(task);
	r = take_lock(u);
	if (r < 0 || u->op.result == -EAGAIN)
		return ckpt_upload_give_up(u, r);
	u->outdone = false;
	ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_take_newest(u, &newest);
	if (r == 0 && newest != u->newest)
		r = ckpt_fail(u->err, -EAGAIN, "%s was claimed just now", u->dest->label);
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_upload_look(u, true, room_body);
	CKPT_TASK_END(task);
}

/* The tombstone comes before the list: while what is listed is being removed, there is one. */
static int tombstone_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_tombstone(path, u->generation, u->step);
	ckpt_store_get(u->dest, &u->op, path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, u->op.done);
	r = take_tombstone(u);
	/* The manifest of a parent is looked at all the same. */
	if (r < 0 || (u->deleting && u->then != look_body))
		return ckpt_upload_give_up(u, r);
	if (!u->lists)
		return ckpt_task_continue(task, u->then);
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_list(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	r = take_there(u);
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, u->then);
	CKPT_TASK_END(task);
}

int ckpt_upload_look(struct ckpt_upload *u, bool lists, ckpt_task_fn *then)
{
	u->lists = lists;
	u->then = then;
	return ckpt_task_continue(&u->task, tombstone_body);
}

/* The directories that it is sent to. */
static int room_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	u->elsewhere = (struct ckpt_shard_location){
		.core = u->core, .pick = &u->pick, .err = u->err, .waiter = task};
	ckpt_shard_location_init_lister(&u->elsewhere);
	if (u->all) {
		ckpt_shard_location_start(&u->elsewhere);
		CKPT_AWAIT(task, u->elsewhere.task.finished);
		if (u->elsewhere.task.result < 0)
			return ckpt_upload_give_up(u, u->elsewhere.task.result);
	}
	ckpt_name_generation(path, u->generation);
	ckpt_store_mkdir(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_trouble(u, "make");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_mkdir(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_trouble(u, "make");
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, ckpt_upload_rank_body);
	CKPT_TASK_END(task);
}
