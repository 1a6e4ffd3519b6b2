/* SPDX-License-Identifier: Apache-2.0 */
/* A shard from one store into another, block by block. */
#include "engine/copy/shard_copy.h"

#include <string.h>

static struct ckpt_shard_copy *copy_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard_copy, task);
}

static int trouble(struct ckpt_shard_copy *c, const char *doing)
{
	return c->op.result < 0 ? ckpt_store_fail(&c->op, doing, NULL, c->read.err) : *c->read.stop;
}

/* Of the new file. */
static const struct ckpt_layout *layout_of(const struct ckpt_shard_copy *c)
{
	return c->view ? c->view->layout : c->shard->index->layout;
}

static enum ckpt_rank_file form_of(const struct ckpt_shard_copy *c)
{
	return c->view || c->encodes ? CKPT_RANK_ENCODED : CKPT_RANK_SHARD;
}

uint64_t ckpt_shard_copy_bytes(const struct ckpt_shard_copy *copy)
{
	if (!copy->encodes)
		return layout_of(copy)->bytes;
	return copy->encode.bytes > 0 ? copy->encode.bytes
				      : ckpt_shard_encode_room(layout_of(copy));
}

static void start_read(struct ckpt_shard_copy *c)
{
	c->read.layout = layout_of(c);
	if (c->view) {
		c->read.encoded = NULL;
		c->read.header = NULL;
		c->read.gaps = &c->view->gaps;
		c->read.counts = c->shard->index->layout->bytes;
	}
	c->read.generation = c->shard->generation;
	c->read.step = c->shard->step;
	c->read.rank = c->shard->rank->rank;
	c->read.dest = c->dest;
	c->read.dest_file = &c->file;
	c->read.unit = c->op.unit;
	c->read.waiter = &c->task;
	if (c->encodes)
		ckpt_shard_encode_start(&c->encode, &c->read);
	else
		ckpt_shard_read_start(&c->fetch, &c->read);
}

/* One of them ran. */
static bool has_read(const struct ckpt_shard_copy *c)
{
	return c->encodes ? c->encode.task.finished : c->fetch.task.finished;
}

static int read_result(const struct ckpt_shard_copy *c)
{
	return c->encodes ? c->encode.task.result : c->fetch.task.result;
}

/* A plain shard has one content. Of an encoded one others may have been begun there under the same name. */
static void create(struct ckpt_shard_copy *c, const char *path)
{
	bool encoded = form_of(c) == CKPT_RANK_ENCODED;

	(encoded ? ckpt_store_resume_varied : ckpt_store_resume)(c->dest, &c->op, path,
		ckpt_align_up(ckpt_shard_copy_bytes(c), c->dest->align), &c->file);
}

/* Gaps in an encoded file are not read, and count all the same. */
static void count_all(const struct ckpt_shard_copy *c)
{
	if (c->view)
		atomic_fetch_add(c->read.counter, c->read.counts - c->fetch.counted);
}

static void sync_names(struct ckpt_shard_copy *c)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_step(path, c->shard->generation, c->shard->step);
	ckpt_store_sync(c->dest, &c->op, path);
}

static int shard_body(struct ckpt_task *task)
{
	struct ckpt_shard_copy *c = copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_rank_file(path, c->shard->generation, c->shard->step, c->shard->rank->rank,
		form_of(c), c->attempt);
	create(c, path);
	CKPT_AWAIT(task, c->op.done);
	c->made = c->op.result >= 0;
	r = trouble(c, "create");
	if (r < 0)
		return r;
	start_read(c);
	CKPT_AWAIT(task, has_read(c));
	if (read_result(c) < 0)
		return read_result(c);
	count_all(c);
	ckpt_store_seal(c->dest, &c->op, &c->file, ckpt_shard_copy_bytes(c));
	CKPT_AWAIT(task, c->op.done);
	r = trouble(c, "seal");
	if (r < 0 || !c->syncs)
		return r;
	sync_names(c);
	CKPT_AWAIT(task, c->op.done);
	return trouble(c, "sync");
	CKPT_TASK_END(task);
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_shard_copy *c = copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_index(
		path, c->shard->generation, c->shard->step, c->shard->rank->rank, c->attempt);
	ckpt_store_publish(
		c->dest, &c->op, path, c->shard->index_bytes, c->shard->index_length, NULL);
	CKPT_AWAIT(task, c->op.done);
	/* It is there: others may count on it from now on, also if this one is to stop. */
	return c->op.result < 0 ? ckpt_store_fail(&c->op, "publish", NULL, c->read.err) : 0;
	CKPT_TASK_END(task);
}

/* A failure leaves both, or the shard alone: never an index without its shard. */
static int undo_body(struct ckpt_task *task)
{
	struct ckpt_shard_copy *c = copy_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	c->made = false;
	if (c->resumes) {
		if (c->file.fd >= 0) {
			ckpt_store_shut(c->dest, &c->op, &c->file);
			CKPT_AWAIT(task, c->op.done);
		}
		return 0;
	}
	if (c->index_tried) {
		ckpt_name_index(path, c->shard->generation, c->shard->step, c->shard->rank->rank,
			c->attempt);
		ckpt_store_remove(c->dest, &c->op, path);
		CKPT_AWAIT(task, c->op.done);
		if (c->op.result < 0)
			return c->op.result;
		sync_names(c);
		CKPT_AWAIT(task, c->op.done);
		if (c->op.result < 0)
			return c->op.result;
	}
	ckpt_store_abandon(c->dest, &c->op, &c->file);
	CKPT_AWAIT(task, c->op.done);
	return c->op.result;
	CKPT_TASK_END(task);
}

/* Of one attempt there may be both forms. */
static bool is_new(const struct ckpt_shard_copy *c, const struct ckpt_rank_file_name *name)
{
	return strcmp(name->attempt, c->attempt) == 0 &&
	       (name->form == CKPT_RANK_INDEX || name->form == c->stays);
}

/* Goes to the next file of that kind that is not new. */
static bool next_old(struct ckpt_shard_copy *c, enum ckpt_rank_file kind, char *path)
{
	uint32_t rank = c->shard->rank->rank;

	while (ckpt_rank_files_next_file(c->there, rank, kind, &c->old)) {
		if (is_new(c, &c->old))
			continue;
		ckpt_name_rank_file(path, c->shard->generation, c->shard->step, rank, c->old.form,
			c->old.attempt);
		return true;
	}
	return false;
}

static int clean_body(struct ckpt_task *task)
{
	struct ckpt_shard_copy *c = copy_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	while (next_old(c, CKPT_RANK_INDEX, path)) {
		ckpt_store_remove(c->dest, &c->op, path);
		CKPT_AWAIT(task, c->op.done);
		r = trouble(c, "remove");
		if (r < 0)
			return r;
		c->removed = true;
	}
	/* The rank has no other files: after a power cut its index must not be there without its shard. */
	if (c->removed && !c->index_tried) {
		sync_names(c);
		CKPT_AWAIT(task, c->op.done);
		r = trouble(c, "sync");
		if (r < 0)
			return r;
	}
	c->old.attempt[0] = 0;
	while (next_old(c, CKPT_RANK_SHARD, path)) {
		ckpt_store_remove(c->dest, &c->op, path);
		CKPT_AWAIT(task, c->op.done);
		r = trouble(c, "remove");
		if (r < 0)
			return r;
	}
	CKPT_TASK_END(task);
}

static void copy_done(struct ckpt_task *task)
{
	ckpt_task_wake(copy_of(task)->waiter);
}

static void start(struct ckpt_shard_copy *c, ckpt_task_fn *body)
{
	ckpt_store_op_init(&c->op, &c->task, c->read.err);
	c->op.quiet = true;
	c->op.stop = c->stop;
	ckpt_task_start(&c->task, &c->read.core->sched, body, copy_done);
}

void ckpt_shard_copy_start(struct ckpt_shard_copy *copy)
{
	ckpt_shard_copy_clear(copy);
	copy->file.fd = -1;
	copy->made = false;
	copy->index_tried = false;
	memcpy(copy->attempt, copy->shard->rank->attempt, sizeof(copy->attempt));
	if (copy->fresh)
		ckpt_name_attempt(copy->attempt, ckpt_env_random(copy->read.core->parts.env));
	start(copy, shard_body);
}

void ckpt_shard_copy_start_index(struct ckpt_shard_copy *copy)
{
	copy->index_tried = true;
	start(copy, index_body);
}

void ckpt_shard_copy_start_undo(struct ckpt_shard_copy *copy)
{
	CKPT_ASSERT(copy->made);
	start(copy, undo_body);
	/* Why it is undone is worded, and whether somebody gives up does not matter. */
	copy->op.err = NULL;
	copy->op.stop = NULL;
}

void ckpt_shard_copy_start_clean(struct ckpt_shard_copy *copy, const struct ckpt_rank_files *there)
{
	ckpt_shard_copy_start_clean_beside(copy, there, form_of(copy));
}

void ckpt_shard_copy_start_clean_beside(
	struct ckpt_shard_copy *copy, const struct ckpt_rank_files *there, enum ckpt_rank_file form)
{
	copy->there = there;
	copy->stays = form;
	copy->old.attempt[0] = 0;
	copy->removed = false;
	start(copy, clean_body);
}

bool ckpt_shard_copy_is_taken(const struct ckpt_rank_files *there, uint32_t rank)
{
	return ckpt_rank_files_has(there, rank, CKPT_RANK_INDEX) ||
	       ckpt_rank_files_has(there, rank, CKPT_RANK_SHARD);
}

bool ckpt_shard_copy_has_bad_source(const struct ckpt_shard_copy *copy)
{
	if (copy->encodes)
		return copy->encode.code_read && ckpt_shard_is_bad_copy(copy->encode.code);
	const struct ckpt_object *bad = ckpt_shard_read_bad_file(&copy->fetch);

	return bad && (bad == &copy->shard->file || bad == &copy->shard->cached) &&
	       ckpt_shard_is_bad_copy(copy->fetch.code);
}

void ckpt_shard_copy_wake(struct ckpt_shard_copy *copy)
{
	ckpt_task_wake(&copy->fetch.task);
	ckpt_task_wake(&copy->encode.task);
}

void ckpt_shard_copy_clear(struct ckpt_shard_copy *copy)
{
	ckpt_shard_read_clear(&copy->fetch);
	ckpt_shard_encode_clear(&copy->encode);
}
