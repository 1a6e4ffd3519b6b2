/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a step into another directory: shards, indexes, manifest; or nothing of it. */
#include "engine/copy/step_copy.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/step_copy_dest.h"
#include "engine/gc/two_phase_delete.h"
#include "format/sealed.h"

/* As that of an upload (copy/upload.c). */
#define STALE_NS  UINT64_C(60000000000)
/* Each has taken longer than that. */
#define LOOKS_MAX 5

static ckpt_task_fn catalog_body;
static ckpt_task_fn commit_body;
static ckpt_task_fn create_body;
static ckpt_task_fn last_look_body;
static ckpt_task_fn publish_body;
static ckpt_task_fn other_body;
static ckpt_task_fn sweep_body;

/* The names in its directory. */
static void sync_step(struct ckpt_step_copy *e)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_sync(e->store, &e->op, path);
}

/* What an export that was killed has left goes first: its names, that is. What is good of it is still read. */
static int shard_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	/* What is fetched at once is written at once, and is a part there. */
	if (e->place.bucket && e->shard->index->layout->chunk_bytes > e->core->config.block_bytes)
		return ckpt_fail(e->err, -EINVAL,
			"cannot copy step %llu to %s: its chunks of %llu bytes are larger than "
			"blocks of %llu, the block_bytes of this engine: copy it to a directory",
			(unsigned long long)ckpt_step_copy_step(e), e->place.label,
			(unsigned long long)e->shard->index->layout->chunk_bytes,
			(unsigned long long)e->core->config.block_bytes);
	/* There it is whole. Or somebody else has put it there, if the step is: what is bad of it does not give way. */
	if (e->place.bucket && !e->adds)
		return ckpt_task_continue(task, create_body);
	ckpt_name_index(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e), rank->rank,
		rank->attempt);
	ckpt_store_remove(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "remove");
	if (r < 0)
		return r;
	if (e->adds) {
		sync_step(e);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "sync");
		if (r < 0)
			return r;
	}
	ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e), rank->rank,
		rank->attempt);
	ckpt_store_remove(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "remove");
	if (r < 0)
		return r;
	return ckpt_task_continue(task, create_body);
	CKPT_TASK_END(task);
}

static int create_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e), rank->rank,
		rank->attempt);
	ckpt_store_resume(e->store, &e->op, path,
		ckpt_align_up(e->shard->index->layout->bytes, e->store->align), &e->file);
	CKPT_AWAIT(task, e->op.done);
	e->unit = e->op.unit;
	/* It may be what is left that takes up the room. */
	if (e->op.result == -ENOSPC && e->left.file.fd >= 0) {
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
		ckpt_step_copy_drop_left(e);
		ckpt_error_clear(e->err);
		return ckpt_task_continue(task, create_body);
	}
	return ckpt_step_copy_trouble(e, "create");
	CKPT_TASK_END(task);
}

static int seal_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	if (e->left.file.fd >= 0) {
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
	}
	ckpt_step_copy_drop_left(e);
	ckpt_store_seal(e->store, &e->op, &e->file, e->shard->index->layout->bytes);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "seal");
	if (r < 0)
		return r;
	/* Where the manifest is there half an index would be damage, and so would one before the name of its shard. */
	if (e->adds) {
		sync_step(e);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "sync");
		if (r < 0)
			return r;
	}
	ckpt_name_index(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e), rank->rank,
		rank->attempt);
	if (e->adds)
		ckpt_store_publish(e->store, &e->op, path, e->shard->index_bytes,
			e->shard->index_length, NULL);
	else
		ckpt_store_put(
			e->store, &e->op, path, e->shard->index_bytes, e->shard->index_length);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "create");
	if (r == 0 && e->adds)
		e->undo_to = 0;
	return r;
	CKPT_TASK_END(task);
}

static void drop_names(struct ckpt_step_copy *e)
{
	ckpt_free(e->names.names);
	e->names = (struct ckpt_listing){0};
	e->at = 0;
}

/* Goes to the next rank that is not wanted and has an index there, or a shard. */
static bool next_stray(struct ckpt_step_copy *e, char *path)
{
	for (; e->rank < e->pick->manifest.world; e->rank++) {
		const struct ckpt_manifest_rank *rank = &e->pick->manifest.ranks[e->rank];

		if (ckpt_rankset_has(&e->ranks, e->rank))
			continue;
		if (e->stray_shards)
			ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
				rank->rank, rank->attempt);
		else
			ckpt_name_index(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
				rank->rank, rank->attempt);
		if (ckpt_listing_has(&e->names, strrchr(path, '/') + 1, &e->at))
			return true;
	}
	return false;
}

/*
 * An export that was cut short may have left an index that is cut, too, or has no shard: where the manifest is there
 * that would be damage. Shards stay, to be gone on with; in the store of a node they go, because there a shard without an
 * index is damage, too (reshard/shard_location.c).
 */
static int strays_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_list(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "list");
	drop_names(e);
	e->names = e->op.listing;
	e->op.listing = (struct ckpt_listing){0};
	if (r < 0)
		return r;
	for (e->rank = 0; next_stray(e, path); e->rank++) {
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "remove");
		if (r < 0)
			return r;
	}
	if (e->place.node && !e->stray_shards) {
		e->stray_shards = true;
		return ckpt_task_continue(task, strays_body);
	}
	return ckpt_task_continue(task, e->catalog ? catalog_body : commit_body);
	CKPT_TASK_END(task);
}

static void name_catalog(const struct ckpt_step_copy *e, char *path)
{
	ckpt_name_catalog(path, ckpt_step_copy_generation(e), &e->pick->manifest.catalog);
}

/* Whatever is there by that name is the same: another step has brought it. */
static int catalog_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	name_catalog(e, path);
	ckpt_store_publish(
		e->store, &e->op, path, e->catalog->file, e->catalog->catalog->bytes, NULL);
	CKPT_AWAIT(task, e->op.done);
	/* One that was there may be named by another step: only what is surely its own is taken back. */
	/* In a bucket, that is also said of the same that was there already. */
	e->catalog_made = e->op.result == 0 && !e->place.bucket;
	if (e->op.result < 0 && e->op.result != -EEXIST)
		return ckpt_step_copy_trouble(e, "publish");
	return ckpt_task_continue(task, commit_body);
	CKPT_TASK_END(task);
}

static int commit_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	sync_step(e);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "sync");
	if (r < 0)
		return r;
	if (!e->adds)
		return ckpt_task_continue(task, last_look_body);
	e->publish_tried = true;
	return ckpt_task_continue(task, sweep_body);
	CKPT_TASK_END(task);
}

static bool has_name(struct ckpt_step_copy *e, const char *path)
{
	return ckpt_listing_has(&e->names, strrchr(path, '/') + 1, &e->at);
}

static int check_whole(struct ckpt_step_copy *e)
{
	char path[CKPT_PATH_MAX];

	for (uint32_t i = 0; i < e->pick->manifest.world; i++) {
		const struct ckpt_manifest_rank *rank = &e->pick->manifest.ranks[i];
		if (!ckpt_rankset_has(&e->ranks, i))
			continue;
		ckpt_name_index(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank->rank, rank->attempt);
		bool whole = has_name(e, path);
		ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank->rank, rank->attempt);
		if (!whole || !has_name(e, path))
			return ckpt_fail_at(e->err, -EBUSY,
				&(struct ckpt_where){
					.tier = ckpt_store_tier(e->store), .file = path},
				"%s is not in %s any more: somebody removes the step there", path,
				e->place.label);
	}
	return 0;
}

/*
 * As long as a step is not whole, a job that has newer ones there may take it for one that nobody goes on with, and
 * remove what there is of it (copy/remote_gc.c). That takes a grace at least: what was seen a minute ago is there still when
 * the manifest is published.
 */
static int last_look_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	e->looked_ns = ckpt_env_age(e->core->parts.env);
	ckpt_step_copy_look_for_stone(e);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_take_stone(e);
	if (r < 0)
		return r;
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_list(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = e->op.result == -ENOENT ? *e->stop : ckpt_step_copy_trouble(e, "list");
	drop_names(e);
	e->names = e->op.listing;
	e->op.listing = (struct ckpt_listing){0};
	if (r == 0)
		r = check_whole(e);
	return r < 0 ? r : ckpt_task_continue(task, publish_body);
	CKPT_TASK_END(task);
}

static bool is_stale(const struct ckpt_step_copy *e)
{
	return ckpt_env_age(e->core->parts.env) - e->looked_ns > STALE_NS;
}

/* An answer has taken long, or the process stood still. */
static int look_again(struct ckpt_step_copy *e)
{
	if (++e->looks < LOOKS_MAX)
		return ckpt_task_continue(&e->task, last_look_body);
	return ckpt_fail_at(e->err, -ETIMEDOUT,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store)},
		"%s takes too long to say what it has: nobody knows whether step %llu is there "
		"still",
		e->place.label, (unsigned long long)ckpt_step_copy_step(e));
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	if (is_stale(e))
		return look_again(e);
	e->publish_tried = true;
	e->op.not_after_ns = e->looked_ns + CKPT_TWO_PHASE_DELETE_ASK_NS;
	ckpt_name_manifest(e->path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_publish(
		e->store, &e->op, e->path, e->pick->manifest_bytes, e->pick->manifest_length, NULL);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result == -EEXIST)
		return ckpt_task_continue(task, other_body);
	if (e->op.result < 0)
		return ckpt_step_copy_trouble(e, "publish");
	return ckpt_task_continue(task, sweep_body);
	CKPT_TASK_END(task);
}

/* It is there: what is asked for now comes too late. An earlier copy that was killed may have left parts. */
static int sweep_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_sweep(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	return e->adds ? ckpt_task_continue(task, ckpt_step_copy_note_body) : 0;
	CKPT_TASK_END(task);
}

/* In a bucket somebody else may have copied it meanwhile. */
static int other_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_step_copy_look_for_stone(e);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_take_stone(e);
	if (r < 0)
		return r;
	ckpt_name_manifest(e->path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_get(e->store, &e->op, e->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result < 0)
		return ckpt_step_copy_trouble(e, "read");
	return ckpt_step_copy_take_there(e);
	CKPT_TASK_END(task);
}

static void step_copy_done(struct ckpt_task *task)
{
	ckpt_task_wake(ckpt_step_copy_of(task)->waiter);
}

static void start(struct ckpt_step_copy *e, ckpt_task_fn *body)
{
	ckpt_task_start(&e->task, &e->core->sched, body, step_copy_done);
}

static int unlock_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	if (e->left.file.fd >= 0) {
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
	}
	if (e->lock.fd >= 0) {
		ckpt_store_shut(e->store, &e->op, &e->lock);
		CKPT_AWAIT(task, e->op.done);
	}
	if (e->store)
		ckpt_store_close(e->store);
	e->store = NULL;
	CKPT_TASK_END(task);
}

/* What is written at once is there at once. */
static bool in_parts(const struct ckpt_step_copy *e)
{
	return e->shard->index->layout->bytes > e->unit;
}

/* What has failed is neither what was read nor what was written: the same again may come to its end. */
static bool may_go_on(int code)
{
	return code == CKPT_ENETWORK || code == CKPT_EAUTH || code == CKPT_ECLOSED ||
	       code == -ETIMEDOUT || code == -ECANCELED;
}

static int leave_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	if (e->file.fd >= 0) {
		ckpt_store_shut(e->store, &e->op, &e->file);
		CKPT_AWAIT(task, e->op.done);
	}
	return ckpt_task_continue(task, unlock_body);
	CKPT_TASK_END(task);
}

/* Goes to the next rank that may have left something. */
static bool next_undone(struct ckpt_step_copy *e)
{
	while (e->rank < e->undo_to && !ckpt_rankset_has(&e->ranks, e->rank))
		e->rank++;
	return e->rank < e->undo_to;
}

/*
 * Takes back what was written; what remains, marker and claim, is a store without this step. In a bucket nobody is
 * locked out: another export may have just put the same objects there, and its manifest. They stay, and are as good
 * for the next one.
 */
static int undo_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	const struct ckpt_manifest_rank *rank;
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	if (e->file.fd >= 0) {
		if (e->place.bucket && !in_parts(e))
			ckpt_store_shut(e->store, &e->op, &e->file);
		else
			ckpt_store_abandon(e->store, &e->op, &e->file);
		CKPT_AWAIT(task, e->op.done);
	}
	if (e->place.bucket)
		return ckpt_task_continue(task, unlock_body);
	/* Never an index without its shard: that would be damage. */
	for (e->rank = e->undo_from; next_undone(e); e->rank++) {
		rank = &e->pick->manifest.ranks[e->rank];
		ckpt_name_index(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank->rank, rank->attempt);
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		if (e->op.result < 0)
			continue;
		if (e->adds) {
			sync_step(e);
			CKPT_AWAIT(task, e->op.done);
			if (e->op.result < 0)
				continue;
		}
		rank = &e->pick->manifest.ranks[e->rank];
		ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank->rank, rank->attempt);
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
	}
	if (e->catalog_made) {
		name_catalog(e, path);
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
	}
	if (e->dirs_made) {
		ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
		ckpt_store_rmdir(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		ckpt_name_generation(path, ckpt_step_copy_generation(e));
		ckpt_store_rmdir(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
	}
	return ckpt_task_continue(task, unlock_body);
	CKPT_TASK_END(task);
}

void ckpt_step_copy_init(struct ckpt_step_copy *step_copy)
{
	step_copy->file.fd = -1;
	step_copy->lock.fd = -1;
	ckpt_shard_init(&step_copy->left);
	ckpt_store_op_init(&step_copy->op, &step_copy->task, step_copy->err);
	step_copy->op.stop = step_copy->stop;
}

void ckpt_step_copy_start_prepare(struct ckpt_step_copy *step_copy)
{
	start(step_copy, ckpt_step_copy_place_body);
}

void ckpt_step_copy_start_check(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(step_copy->there);
	start(step_copy, ckpt_step_copy_check_body);
}

bool ckpt_step_copy_may_add(const struct ckpt_step_copy *step_copy, int code)
{
	return step_copy->partial && step_copy->there && !step_copy->place.self &&
	       !*step_copy->stop &&
	       (code == CKPT_EINCOMPLETE || code == CKPT_EINTEGRITY || code == CKPT_EFORMAT);
}

void ckpt_step_copy_start_add(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(step_copy->there && step_copy->partial);
	step_copy->there = false;
	step_copy->adds = true;
	start(step_copy, ckpt_step_copy_add_body);
}

void ckpt_step_copy_start_look(struct ckpt_step_copy *step_copy, const struct ckpt_shard *shard)
{
	CKPT_ASSERT(step_copy->left.file.fd < 0 && shard->index);
	step_copy->shard = shard;
	if (!step_copy->adds)
		step_copy->undo_to = shard->rank->rank + 1;
	start(step_copy, ckpt_step_copy_look_body);
}

void ckpt_step_copy_start_shard(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(step_copy->file.fd < 0 && step_copy->shard && !step_copy->have);
	step_copy->undo_to = step_copy->shard->rank->rank + 1;
	if (step_copy->adds)
		step_copy->undo_from = step_copy->shard->rank->rank;
	start(step_copy, shard_body);
}

void ckpt_step_copy_start_seal(struct ckpt_step_copy *step_copy)
{
	start(step_copy, seal_body);
}

void ckpt_step_copy_start_commit(struct ckpt_step_copy *step_copy)
{
	if (!step_copy->adds && !step_copy->place.bucket && !ckpt_rankset_is_all(&step_copy->ranks))
		start(step_copy, strays_body);
	else
		start(step_copy, step_copy->catalog ? catalog_body : commit_body);
}

void ckpt_step_copy_start_end(struct ckpt_step_copy *step_copy, int code)
{
	ckpt_task_fn *undo = may_go_on(code) ? leave_body : undo_body;

	step_copy->op.err = NULL;
	step_copy->op.stop = NULL;
	start(step_copy, !step_copy->publish_tried && !step_copy->there && step_copy->store
				 ? undo
				 : unlock_body);
}

void ckpt_step_copy_clear(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(!ckpt_task_active(&step_copy->task) && !step_copy->store);
	if (step_copy->core)
		ckpt_step_copy_drop_left(step_copy);
	drop_names(step_copy);
	ckpt_free(step_copy->marker);
	ckpt_free(step_copy->claim);
	step_copy->marker = NULL;
	step_copy->claim = NULL;
}
