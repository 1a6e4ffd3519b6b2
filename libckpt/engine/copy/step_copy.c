/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a step into another directory: shards, indexes, manifest; or nothing of it. */
#include "engine/copy/step_copy.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/step_copy_state.h"
#include "engine/gc/two_phase_delete.h"
#include "format/sealed.h"

/* As that of an upload (copy/upload.c). */
#define STALE_NS  UINT64_C(60000000000)
/* Each has taken longer than that. */
#define LOOKS_MAX 5

static ckpt_task_fn copy_body;
static ckpt_task_fn begin_body;
static ckpt_task_fn catalog_body;
static ckpt_task_fn commit_body;
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

/* What is fetched at once is written at once, and is a part there. */
static int check_blocks(struct ckpt_step_copy *e)
{
	uint64_t chunk_bytes = e->shard->index->layout->chunk_bytes;

	if (!e->place.bucket || chunk_bytes <= e->core->config.block_bytes)
		return 0;
	return ckpt_fail(e->err, -EINVAL,
		"cannot copy step %llu to %s: its chunks of %llu bytes are larger than "
		"blocks of %llu, the block_bytes of this engine: copy it to a directory",
		(unsigned long long)ckpt_step_copy_step(e), e->place.label,
		(unsigned long long)chunk_bytes, (unsigned long long)e->core->config.block_bytes);
}

void ckpt_step_copy_init_copy(struct ckpt_step_copy *e)
{
	bool taken = e->again || ckpt_shard_copy_is_taken(&e->lister.files, e->shard->rank->rank);

	ckpt_shard_copy_clear(&e->copy);
	/* Where the manifest is there an index before the name of its shard would be damage. */
	e->copy = (struct ckpt_shard_copy){.shard = e->shard,
		.view = e->plain ? NULL : ckpt_shard_view(e->shard),
		.dest = e->store,
		.read = {.core = e->core,
			.store = e->shard->store,
			.file = &e->shard->file,
			.encoded = e->shard->encoded,
			.header = e->shard->header,
			.stop = e->stop,
			.err = e->err,
			.counter = e->counter},
		.stop = e->stop,
		.syncs = e->adds,
		/* In a bucket what was begun under the names of the manifest is gone on with. */
		.fresh = taken && (!e->place.bucket || e->adds),
		.waiter = &e->task,
		.file = {.fd = -1}};
}

static void start_copy(struct ckpt_step_copy *e)
{
	struct ckpt_shard *shard = e->shard;

	ckpt_step_copy_init_copy(e);
	e->patch = (struct ckpt_shard_read_patch){.store = shard->store,
		.file = shard->cached.fd >= 0 && !shard->encoded ? &shard->cached : &shard->file,
		.encoded = shard->encoded,
		.chunks = &e->left_bad};
	/* A file that is copied as it is has no chunks of the shard. */
	if (e->left.file.fd >= 0 && !e->copy.view) {
		e->copy.read.store = e->store;
		e->copy.read.file = &e->left.file;
		e->copy.read.encoded = e->left.encoded;
		e->copy.read.patch = &e->patch;
	}
	ckpt_shard_copy_start(&e->copy);
}

/* What is written at once is there at once. */
static bool in_parts(const struct ckpt_step_copy *e)
{
	return ckpt_shard_copy_bytes(&e->copy) > e->copy.read.unit;
}

/* What is there of the rank goes, whole or not: it takes up the room for its shard. */
static int room_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	e->full = true;
	ckpt_error_clear(e->err);
	if (e->left.file.fd >= 0) {
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
	}
	ckpt_step_copy_drop_left(e);
	ckpt_shard_copy_start_clean(&e->copy, &e->lister.files);
	CKPT_AWAIT(task, e->copy.task.finished);
	if (e->copy.task.result < 0)
		return e->copy.task.result;
	return ckpt_task_continue(task, copy_body);
	CKPT_TASK_END(task);
}

/* Where the manifest is there most of a bad shard may be good, and nobody else may have it. */
static bool may_make_room(const struct ckpt_step_copy *e)
{
	return e->copy.task.result == -ENOSPC && !e->adds && !e->copy.made && !e->full &&
	       ckpt_shard_copy_is_taken(&e->lister.files, e->shard->rank->rank);
}

/* Nobody can write over an object there, and one that is whole is not replaced by itself. */
static int take_index(struct ckpt_step_copy *e)
{
	int r = e->copy.task.result;

	if (r != -EEXIST)
		return r;
	ckpt_error_clear(e->err);
	return ckpt_fail_at(e->err, r,
		&(struct ckpt_where){.tier = ckpt_store_tier(e->store), .file = e->copy.op.path},
		"%s is in %s already, and differs: it has changed since it was written; remove it "
		"there, and copy the step again",
		e->copy.op.path, e->place.label);
}

/* Who reads the step passes over a file that could not be removed. */
int ckpt_step_copy_take_clean(struct ckpt_step_copy *e)
{
	if (*e->stop || e->copy.task.result >= 0)
		return *e->stop;
	ckpt_log(e->core->parts.log, CKPT_LOG_WARN,
		"old files of rank %u of step %llu stay in %s: %.600s", e->shard->rank->rank,
		(unsigned long long)ckpt_step_copy_step(e), e->place.label, e->err->message);
	ckpt_error_clear(e->err);
	return 0;
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (e->left.file.fd >= 0) {
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
	}
	ckpt_step_copy_drop_left(e);
	ckpt_shard_copy_start_index(&e->copy);
	CKPT_AWAIT(task, e->copy.task.finished);
	r = take_index(e);
	if (r < 0)
		return r;
	if (e->adds)
		e->undo_to = 0;
	ckpt_shard_copy_start_clean(&e->copy, &e->lister.files);
	CKPT_AWAIT(task, e->copy.task.finished);
	r = ckpt_step_copy_take_clean(e);
	if (r < 0)
		return r;
	ckpt_shard_copy_clear(&e->copy);
	CKPT_TASK_END(task);
}

/* Goes to the next shard of the rank that was begun and is not read from. */
static bool next_unfinished(struct ckpt_step_copy *e, char *path)
{
	uint32_t rank = e->shard->rank->rank;

	while (ckpt_rank_files_next_unfinished(&e->lister.files, rank, &e->unfinished)) {
		if (e->left.file.fd >= 0 &&
			ckpt_rank_file_name_equal(&e->unfinished, &e->left.name))
			continue;
		ckpt_name_rank_file(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank, e->unfinished.form, e->unfinished.attempt);
		return true;
	}
	return false;
}

/* What there is of the step, as it was listed just now. `code`: what the listing has come to. */
static int take_names(struct ckpt_step_copy *e, int code)
{
	int r = ckpt_rank_files_take(&e->names, &e->op.listing);

	ckpt_free(ckpt_store_take_listing(&e->op).names);
	e->at = 0;
	if (code < 0 || r == 0)
		return code;
	return ckpt_fail(e->err, r, "out of memory for the names of step %llu",
		(unsigned long long)ckpt_step_copy_step(e));
}

/* In a bucket a copy has the attempt of the manifest, and of one attempt there are not both forms. */
static int check_form(struct ckpt_step_copy *e)
{
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];

	if (!ckpt_rank_files_has_attempt(&e->names, rank->rank, CKPT_RANK_SHARD, rank->attempt))
		return 0;
	enum ckpt_rank_file form =
		ckpt_rank_files_form(&e->names, rank->rank, CKPT_RANK_SHARD, rank->attempt);
	if (form == (e->plain || !ckpt_shard_view(e->shard) ? CKPT_RANK_SHARD : CKPT_RANK_ENCODED))
		return 0;
	ckpt_name_rank_file(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e), rank->rank,
		form, rank->attempt);
	return ckpt_step_copy_fail_form(e, path, form == CKPT_RANK_ENCODED);
}

/*
 * Each copy that was killed has left a shard that takes its whole room: however many there were, one of them stays. Where
 * the manifest is there a repair may be at one, which has no lock.
 */
static int begin_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	r = check_blocks(e);
	if (r < 0)
		return r;
	if (e->place.bucket && e->shard->encoded && !e->forms_listed) {
		ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
		ckpt_store_list(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		r = take_names(
			e, e->op.result == -ENOENT ? *e->stop : ckpt_step_copy_trouble(e, "list"));
		if (r < 0)
			return r;
		e->forms_listed = true;
	}
	r = e->place.bucket && e->shard->encoded ? check_form(e) : 0;
	if (r < 0)
		return r;
	e->unfinished.attempt[0] = 0;
	while (!e->place.bucket && !e->adds && next_unfinished(e, path)) {
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		r = ckpt_step_copy_trouble(e, "remove");
		if (r < 0)
			return r;
	}
	return ckpt_task_continue(task, copy_body);
	CKPT_TASK_END(task);
}

/* No name is used again. What was there before is read until the new files are whole, and then goes. */
static int copy_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	start_copy(e);
	CKPT_AWAIT(task, e->copy.task.finished);
	e->code = e->copy.task.result;
	if (e->code == 0)
		return ckpt_task_continue(task, index_body);
	if (may_make_room(e))
		return ckpt_task_continue(task, room_body);
	/* Another file of the rank may be good: then this is started again. */
	if (e->copy.made && ckpt_shard_copy_has_bad_source(&e->copy)) {
		e->again = true;
		/* An object that is there somebody else has put. */
		e->copy.resumes = e->place.bucket && !in_parts(e);
		ckpt_shard_copy_start_undo(&e->copy);
		CKPT_AWAIT(task, e->copy.task.finished);
	}
	return e->code;
	CKPT_TASK_END(task);
}

/* Goes to the next index, or shard, of a rank that is not wanted. */
static bool next_stray(struct ckpt_step_copy *e, char *path)
{
	enum ckpt_rank_file kind = e->stray_shards ? CKPT_RANK_SHARD : CKPT_RANK_INDEX;
	char attempt[CKPT_ATTEMPT_CHARS];
	enum ckpt_rank_file file;
	uint32_t rank;

	while (e->at < e->names.count) {
		if (!ckpt_parse_rank_file(e->names.names[e->at++], &rank, &file, attempt) ||
			!ckpt_rank_file_is(file, kind) || ckpt_rankset_has(&e->ranks, rank))
			continue;
		ckpt_name_rank_file(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank, file, attempt);
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
	r = take_names(e, ckpt_step_copy_trouble(e, "list"));
	if (r < 0)
		return r;
	while (next_stray(e, path)) {
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

static int check_whole(struct ckpt_step_copy *e)
{
	char path[CKPT_PATH_MAX];

	for (uint32_t i = 0; i < e->pick->manifest.world; i++) {
		const struct ckpt_manifest_rank *rank = &e->pick->manifest.ranks[i];
		if (!ckpt_rankset_has(&e->ranks, i))
			continue;
		ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank->rank, rank->attempt);
		if (!ckpt_rank_files_has_both(&e->names, i))
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
	r = take_names(e, e->op.result == -ENOENT ? *e->stop : ckpt_step_copy_trouble(e, "list"));
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
	if (e->copy.file.fd >= 0) {
		ckpt_store_shut(e->store, &e->op, &e->copy.file);
		CKPT_AWAIT(task, e->op.done);
	}
	return ckpt_task_continue(task, unlock_body);
	CKPT_TASK_END(task);
}

/* Goes to the next index, or shard, that is taken back: to a step that is there only what was added just now. */
static bool next_undone(struct ckpt_step_copy *e, enum ckpt_rank_file kind, char *path)
{
	char attempt[CKPT_ATTEMPT_CHARS];
	enum ckpt_rank_file file;
	uint32_t rank;

	while (e->at < e->names.count) {
		if (!ckpt_parse_rank_file(e->names.names[e->at++], &rank, &file, attempt) ||
			!ckpt_rank_file_is(file, kind) || rank < e->undo_from ||
			rank >= e->undo_to || !ckpt_rankset_has(&e->ranks, rank) ||
			(e->adds && strcmp(attempt, e->copy.attempt) != 0))
			continue;
		ckpt_name_rank_file(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			rank, file, attempt);
		return true;
	}
	return false;
}

static int undo_directories_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
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

/* Never an index without its shard: that would be damage. */
static int undo_ranks_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_list(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	if (take_names(e, 0) < 0)
		return ckpt_task_continue(task, unlock_body);
	while (next_undone(e, CKPT_RANK_INDEX, path)) {
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		if (e->op.result < 0)
			return ckpt_task_continue(task, unlock_body);
	}
	sync_step(e);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result < 0)
		return ckpt_task_continue(task, unlock_body);
	e->at = 0;
	while (next_undone(e, CKPT_RANK_SHARD, path)) {
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
	}
	return ckpt_task_continue(task, undo_directories_body);
	CKPT_TASK_END(task);
}

/*
 * Takes back what was written; what remains, marker and claim, is a store without this step. In a bucket nobody is
 * locked out: another export may have just put the same objects there, and its manifest. They stay, and are as good
 * for the next one.
 */
static int undo_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	if (e->copy.file.fd >= 0) {
		if (e->place.bucket && !in_parts(e))
			ckpt_store_shut(e->store, &e->op, &e->copy.file);
		else
			ckpt_store_abandon(e->store, &e->op, &e->copy.file);
		CKPT_AWAIT(task, e->op.done);
	}
	if (e->place.bucket)
		return ckpt_task_continue(task, unlock_body);
	return ckpt_task_continue(task, e->undo_to > 0 ? undo_ranks_body : undo_directories_body);
	CKPT_TASK_END(task);
}

void ckpt_step_copy_init(struct ckpt_step_copy *step_copy)
{
	step_copy->copy.file.fd = -1;
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
	       !*step_copy->stop && ckpt_code_is_damage(code);
}

void ckpt_step_copy_start_add(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(step_copy->there && step_copy->partial);
	step_copy->there = false;
	step_copy->adds = true;
	/* It was listed before the lock. */
	ckpt_rank_lister_clear(&step_copy->lister);
	start(step_copy, ckpt_step_copy_add_body);
}

void ckpt_step_copy_start_look(struct ckpt_step_copy *step_copy, struct ckpt_shard *shard)
{
	CKPT_ASSERT(step_copy->left.file.fd < 0 && shard->index);
	step_copy->shard = shard;
	step_copy->full = false;
	step_copy->again = false;
	if (!step_copy->adds)
		step_copy->undo_to = shard->rank->rank + 1;
	start(step_copy, ckpt_step_copy_look_body);
}

void ckpt_step_copy_start_shard(struct ckpt_step_copy *step_copy)
{
	CKPT_ASSERT(step_copy->copy.file.fd < 0 && step_copy->shard && !step_copy->have);
	step_copy->undo_to = step_copy->shard->rank->rank + 1;
	if (step_copy->adds)
		step_copy->undo_from = step_copy->shard->rank->rank;
	start(step_copy, begin_body);
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
	ckpt_shard_copy_clear(&step_copy->copy);
	ckpt_rank_files_clear(&step_copy->names);
	ckpt_rank_lister_clear(&step_copy->lister);
	ckpt_free(step_copy->marker);
	ckpt_free(step_copy->claim);
	step_copy->marker = NULL;
	step_copy->claim = NULL;
}
