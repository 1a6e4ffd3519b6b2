/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an export that did not come to its end has left of a rank. That its index is there says that its shard was
 * sealed. In a bucket that is enough: objects are whole. In a directory every byte is compared with its digest, and
 * what is good of a shard that is not is for the next one to be copied from: a new file, because what was asked to be
 * written to the old one may still come, and nobody has synced it.
 */
#include "engine/copy/step_copy_state.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/sealed.h"

static ckpt_task_fn look_shard_body;

void ckpt_step_copy_drop_left(struct ckpt_step_copy *e)
{
	ckpt_shard_clear(&e->left);
	ckpt_chunkset_clear(&e->left_bad);
}

/* Of a failure that says nothing about what is there. 0: it is not there, or no good. */
static int take_failure(struct ckpt_step_copy *e, int code)
{
	bool damage = code == 0 || ckpt_code_is_damage(code) || code == CKPT_EVERSION;

	if (*e->stop)
		return *e->stop;
	/* Of a step that is there it may be good. */
	if (code != -ENOMEM && (damage || (!e->place.bucket && !e->adds)))
		return 0;
	return ckpt_error_copy(&e->aside, e->err);
}

static int end_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_shut(&e->left);
	CKPT_AWAIT(task, e->left.task.finished);
	ckpt_step_copy_drop_left(e);
	return e->code;
	CKPT_TASK_END(task);
}

static int end(struct ckpt_step_copy *e, int code)
{
	e->code = code;
	return ckpt_task_continue(&e->task, end_body);
}

static void start_index(
	struct ckpt_step_copy *e, const struct ckpt_manifest_rank *rank, struct ckpt_error *err)
{
	ckpt_error_clear(&e->aside);
	if (!e->lister.store)
		e->lister = (struct ckpt_rank_lister){.store = e->store,
			.sched = &e->core->sched,
			.generation = ckpt_step_copy_generation(e),
			.step = ckpt_step_copy_step(e),
			.stop = e->stop};
	e->left = (struct ckpt_shard){.core = e->core,
		.store = e->store,
		.generation = ckpt_step_copy_generation(e),
		.step = ckpt_step_copy_step(e),
		.rank = rank,
		/* In a bucket an object that was only begun is none. */
		.lister = e->adds || e->there || !e->place.bucket ? &e->lister : NULL,
		.stop = e->stop,
		.err = err,
		.waiter = &e->task};
	ckpt_shard_init(&e->left);
	ckpt_shard_start_index(&e->left);
}

static void start_fetch(struct ckpt_step_copy *e)
{
	const struct ckpt_shard_read_config config = {.core = e->core,
		.layout = e->shard->index->layout,
		.store = e->store,
		.file = &e->left.file,
		.encoded = e->left.encoded,
		.generation = ckpt_step_copy_generation(e),
		.step = ckpt_step_copy_step(e),
		.rank = e->shard->rank->rank,
		.bad = &e->left_bad,
		.stop = e->stop,
		.err = &e->aside,
		.counter = &e->looked,
		.waiter = &e->task};

	/* What was wrong with the index is no word about what comes now. */
	ckpt_error_clear(&e->aside);
	ckpt_shard_read_start(&e->look, &config);
}

int ckpt_step_copy_look_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_index(e, e->shard->rank, &e->aside);
	CKPT_AWAIT(task, e->left.task.finished);
	r = e->left.task.result;
	if (r == 0) {
		memcpy(e->index_attempt, e->left.name.attempt, sizeof(e->index_attempt));
		ckpt_shard_start_open(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
		e->left_size = e->left.holds;
		r = e->left.task.result;
	}
	/* An index says of the shard of its attempt that it was synced. */
	e->have = r == 0 && strcmp(e->index_attempt, e->left.name.attempt) == 0;
	r = take_failure(e, r);
	if (e->plain && e->left.encoded) {
		e->have = false;
		/* A copy into a step that is there does not replace what may be good. */
		if (e->adds && r == 0)
			r = ckpt_step_copy_fail_form(e, e->left.path, true);
	}
	if (e->have && e->place.bucket)
		atomic_fetch_add(e->counter, e->shard->index->layout->bytes);
	if (r < 0 || e->place.bucket)
		return end(e, r);
	return ckpt_task_continue(task, look_shard_body);
	CKPT_TASK_END(task);
}

/* Not all is well with a shard that has no index, or another size than it should have. */
static int look_shard_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_rank_lister_want(&e->lister, &e->wait, task);
	CKPT_AWAIT(task, e->wait.done);
	if (e->lister.result < 0)
		return end(e, ckpt_error_copy(&e->lister.err, e->err));
	/* It is copied again as a plain one. */
	if (e->plain && e->left.encoded)
		return end(e, *e->stop);
	if (e->left.file.fd < 0) {
		/* Of several that were only begun any will do. */
		e->left.name.attempt[0] = 0;
		/* What an encoded one has without its index is not known. */
		if (!ckpt_rank_files_next_file(&e->lister.files, e->shard->rank->rank,
			    CKPT_RANK_SHARD, &e->left.name) ||
			e->left.name.form == CKPT_RANK_ENCODED)
			return end(e, *e->stop);
		ckpt_name_shard(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e),
			e->shard->rank->rank, e->left.name.attempt);
		ckpt_store_open(e->store, &e->op, path, &e->left.file);
		CKPT_AWAIT(task, e->op.done);
		if (e->op.result < 0 && e->op.result != -ENOENT &&
			!ckpt_store_is_no_file(e->op.result) && e->adds)
			return end(e, ckpt_step_copy_trouble(e, "open"));
		if (e->op.result < 0) {
			/* The rank is copied again: what is wrong with a leftover is no failure. */
			ckpt_error_clear(e->err);
			return end(e, *e->stop);
		}
		e->left_size = e->op.size;
	}
	if (ckpt_chunkset_init(&e->left_bad, e->shard->index->layout) < 0)
		return end(e, ckpt_fail(e->err, -ENOMEM, "out of memory"));
	ckpt_chunkset_add_behind(&e->left_bad, e->shard->index->layout, e->left_size);
	start_fetch(e);
	CKPT_AWAIT(task, e->look.task.finished);
	r = e->look.task.result;
	ckpt_shard_read_clear(&e->look);
	e->have = e->have && r == 0 && e->left_bad.count == 0;
	if (r < 0)
		return end(e, take_failure(e, r));
	if (!e->have)
		return e->left_bad.count < e->left_bad.room ? 0 : end(e, 0);
	atomic_fetch_add(e->counter, e->shard->index->layout->bytes);
	/* Nothing new is there: others who repair the rank at once may remove this one, and keep what would go here. */
	if (e->adds)
		return end(e, 0);
	/* Its index was published after it was synced: the commit syncs the names. What else there is of the rank goes. */
	ckpt_step_copy_init_copy(e);
	memcpy(e->copy.attempt, e->left.name.attempt, sizeof(e->copy.attempt));
	ckpt_shard_copy_start_clean_beside(&e->copy, &e->lister.files, e->left.name.form);
	CKPT_AWAIT(task, e->copy.task.finished);
	return end(e, ckpt_step_copy_take_clean(e));
	CKPT_TASK_END(task);
}

int ckpt_step_copy_check_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	/* Whoever published its manifest may have died before the name was durable. */
	ckpt_name_step(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_sync(e->store, &e->op, path);
	CKPT_AWAIT(task, e->op.done);
	r = ckpt_step_copy_trouble(e, "sync");
	if (r < 0)
		return r;
	for (e->rank = 0; e->rank < e->pick->manifest.world; e->rank++) {
		if (!ckpt_rankset_has(&e->ranks, e->rank))
			continue;
		start_index(e, &e->pick->manifest.ranks[e->rank], e->err);
		CKPT_AWAIT(task, e->left.task.finished);
		if (e->left.task.result < 0)
			return end(e, e->left.task.result);
		ckpt_shard_start_open(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
		if (e->left.task.result < 0)
			return end(e, e->left.task.result);
		if (e->plain && e->left.encoded)
			return end(e, ckpt_step_copy_fail_form(e, e->left.path, true));
		ckpt_shard_start_shut(&e->left);
		CKPT_AWAIT(task, e->left.task.finished);
		ckpt_step_copy_drop_left(e);
		if (*e->stop)
			return *e->stop;
		/* Of the words that a rank that is good has left. */
		ckpt_error_clear(e->err);
	}
	return ckpt_task_continue(task, ckpt_step_copy_note_body);
	CKPT_TASK_END(task);
}

int ckpt_step_copy_note_body(struct ckpt_task *task)
{
	struct ckpt_step_copy *e = ckpt_step_copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_quarantine(path, ckpt_step_copy_generation(e), ckpt_step_copy_step(e));
	ckpt_store_get(e->store, &e->op, path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, e->op.done);
	ckpt_store_drop_data(&e->op);
	if (e->op.result >= 0)
		ckpt_log(e->core->parts.log, CKPT_LOG_WARN,
			"%s: step %llu is quarantined there, and stays so until somebody has "
			"verified it and removed %s",
			e->place.label, (unsigned long long)ckpt_step_copy_step(e), e->op.path);
	else
		ckpt_error_clear(e->err);
	CKPT_TASK_END(task);
}
