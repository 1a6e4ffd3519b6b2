/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a step into another directory: shards, indexes, manifest; or nothing of it. */
#include "engine/exporter.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "engine/exporter_place.h"

static ckpt_task_fn commit_body;
static ckpt_task_fn create_body;

/* What an export that was killed has left under the names that the manifest gives goes first. */
static int shard_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	/* What is fetched at once is written at once, and is a part there. */
	if (e->place.bucket && e->shard->index->layout->chunk_bytes > e->core->config.block_bytes)
		return ckpt_fail(e->err, -EINVAL,
			"cannot export to %s: blocks of %llu bytes are smaller than the step's "
			"chunks of %llu: open the engine with a larger block_bytes",
			e->place.label, (unsigned long long)e->core->config.block_bytes,
			(unsigned long long)e->shard->index->layout->chunk_bytes);
	e->ranks_begun++;
	if (e->place.bucket)
		return ckpt_task_continue(task, create_body);
	ckpt_name_index(path, ckpt_exporter_generation(e), ckpt_exporter_step(e), rank->rank,
		rank->attempt);
	ckpt_store_remove(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_exporter_trouble(e, "remove");
	if (r < 0)
		return r;
	ckpt_name_shard(path, ckpt_exporter_generation(e), ckpt_exporter_step(e), rank->rank,
		rank->attempt);
	ckpt_store_remove(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_exporter_trouble(e, "remove");
	if (r < 0)
		return r;
	return ckpt_task_continue(task, create_body);
	CKPT_TASK_END(task);
}

static int create_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_shard(path, ckpt_exporter_generation(e), ckpt_exporter_step(e), rank->rank,
		rank->attempt);
	ckpt_store_create(e->store, &e->op, path,
		ckpt_align_up(e->shard->index->layout->bytes, e->store->align), &e->file);
	CKPT_AWAIT(task, e->op.done);
	e->unit = e->op.unit;
	return ckpt_exporter_trouble(e, "create");
	CKPT_TASK_END(task);
}

static int seal_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
	const struct ckpt_manifest_rank *rank = e->shard->rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_seal(e->store, &e->op, &e->file, e->shard->index->layout->bytes);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_exporter_trouble(e, "seal");
	if (r < 0)
		return r;
	ckpt_name_index(path, ckpt_exporter_generation(e), ckpt_exporter_step(e), rank->rank,
		rank->attempt);
	ckpt_store_put(e->store, &e->op, path, e->shard->index_bytes, e->shard->index_length);
	CKPT_AWAIT(task, e->op.done);
	return ckpt_exporter_trouble(e, "create");
	CKPT_TASK_END(task);
}

static void name_catalog(const struct ckpt_exporter *e, char *path)
{
	ckpt_name_catalog(path, ckpt_exporter_generation(e), &e->pick->manifest.catalog);
}

/* Whatever is there by that name is the same: another step has brought it. */
static int catalog_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
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
		return ckpt_exporter_trouble(e, "publish");
	return ckpt_task_continue(task, commit_body);
	CKPT_TASK_END(task);
}

static int commit_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, ckpt_exporter_generation(e), ckpt_exporter_step(e));
	ckpt_store_sync(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_exporter_trouble(e, "sync");
	if (r < 0)
		return r;
	e->publish_tried = true;
	ckpt_name_manifest(e->path, ckpt_exporter_generation(e), ckpt_exporter_step(e));
	ckpt_store_publish(
		e->store, &e->op, e->path, e->pick->manifest_bytes, e->pick->manifest_length, NULL);
	CKPT_AWAIT(task, e->op.done);
	if (e->op.result == -EEXIST)
		return ckpt_exporter_fail_there(e);
	if (e->op.result < 0)
		return ckpt_exporter_trouble(e, "publish");
	/* It is there: what is asked for now comes too late. An earlier copy that was killed may have left parts. */
	ckpt_name_step(path, ckpt_exporter_generation(e), ckpt_exporter_step(e));
	ckpt_store_sweep(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	CKPT_TASK_END(task);
}

static void exporter_done(struct ckpt_task *task)
{
	ckpt_task_wake(ckpt_exporter_of(task)->waiter);
}

static void start(struct ckpt_exporter *e, ckpt_task_fn *body)
{
	ckpt_task_start(&e->task, &e->core->sched, body, exporter_done);
}

static int unlock_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);

	CKPT_TASK_BEGIN(task);
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
static bool in_parts(const struct ckpt_exporter *e)
{
	return e->shard->index->layout->bytes > e->unit;
}

/*
 * Takes back what was written; what remains, marker and claim, is a store without this step. In a bucket nobody is
 * locked out: another export may have just put the same objects there, and its manifest. They stay, and are as good
 * for the next one.
 */
static int undo_body(struct ckpt_task *task)
{
	struct ckpt_exporter *e = ckpt_exporter_of(task);
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
	for (e->rank = 0; e->rank < e->ranks_begun; e->rank++) {
		rank = &e->pick->manifest.ranks[e->rank];
		ckpt_name_shard(path, ckpt_exporter_generation(e), ckpt_exporter_step(e),
			rank->rank, rank->attempt);
		ckpt_store_remove(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		rank = &e->pick->manifest.ranks[e->rank];
		ckpt_name_index(path, ckpt_exporter_generation(e), ckpt_exporter_step(e),
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
		ckpt_name_step(path, ckpt_exporter_generation(e), ckpt_exporter_step(e));
		ckpt_store_rmdir(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
		ckpt_name_generation(path, ckpt_exporter_generation(e));
		ckpt_store_rmdir(e->store, &e->op, path);
		CKPT_AWAIT(task, e->op.done);
	}
	return ckpt_task_continue(task, unlock_body);
	CKPT_TASK_END(task);
}

void ckpt_exporter_init(struct ckpt_exporter *exporter)
{
	exporter->file.fd = -1;
	exporter->lock.fd = -1;
	ckpt_store_op_init(&exporter->op, &exporter->task, exporter->err);
	exporter->op.stop = exporter->stop;
}

void ckpt_exporter_start_prepare(struct ckpt_exporter *exporter)
{
	start(exporter, ckpt_exporter_place_body);
}

void ckpt_exporter_start_shard(struct ckpt_exporter *exporter, const struct ckpt_shard *shard)
{
	CKPT_ASSERT(exporter->file.fd < 0 && shard->index);
	exporter->shard = shard;
	start(exporter, shard_body);
}

void ckpt_exporter_start_seal(struct ckpt_exporter *exporter)
{
	start(exporter, seal_body);
}

void ckpt_exporter_start_commit(struct ckpt_exporter *exporter)
{
	start(exporter, exporter->catalog ? catalog_body : commit_body);
}

void ckpt_exporter_start_end(struct ckpt_exporter *exporter)
{
	exporter->op.err = NULL;
	exporter->op.stop = NULL;
	start(exporter, !exporter->publish_tried && exporter->store ? undo_body : unlock_body);
}

void ckpt_exporter_clear(struct ckpt_exporter *exporter)
{
	CKPT_ASSERT(!ckpt_task_active(&exporter->task) && !exporter->store);
	ckpt_free(exporter->marker);
	ckpt_free(exporter->claim);
	exporter->marker = NULL;
	exporter->claim = NULL;
}
