/* SPDX-License-Identifier: Apache-2.0 */
/* A step whose shards are stored again, encoded or plain. */
#include "engine/copy/recode.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"

static struct ckpt_recode *recode_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_recode, task);
}

static ckpt_task_fn rank_body;
static ckpt_task_fn source_body;
static ckpt_task_fn other_body;
static ckpt_task_fn room_body;
static ckpt_task_fn write_body;
static ckpt_task_fn check_body;
static ckpt_task_fn publish_body;
static ckpt_task_fn index_body;
static ckpt_task_fn reject_body;
static ckpt_task_fn clean_body;
static ckpt_task_fn shut_body;

static int end(struct ckpt_recode *c, int code)
{
	c->code = *c->stop ? *c->stop : code;
	return ckpt_task_continue(&c->task, shut_body);
}

static void init_op(struct ckpt_recode *c)
{
	ckpt_error_clear(&c->said);
	ckpt_store_op_init(&c->op, &c->task, &c->said);
	c->op.quiet = true;
	c->op.stop = c->stop;
}

static void init_shard(struct ckpt_recode *c, struct ckpt_shard *shard)
{
	*shard = (struct ckpt_shard){.core = c->core,
		.generation = c->pick->chosen.generation,
		.step = c->pick->chosen.step,
		.rank = &c->pick->manifest.ranks[c->rank],
		.lister = &c->elsewhere->lister,
		.keep_bytes = true,
		.stop = c->stop,
		.err = c->err,
		.waiter = &c->task};
	ckpt_shard_init(shard);
}

static uint64_t file_bytes(const struct ckpt_shard *shard)
{
	return shard->encoded ? shard->file_bytes : shard->index->layout->bytes;
}

/* What is there, from before the first new file was created. */
static const struct ckpt_rank_files *files(const struct ckpt_recode *c)
{
	return &c->elsewhere->lister.files;
}

static enum ckpt_rank_file wanted_form(const struct ckpt_recode *c)
{
	return c->encodes ? CKPT_RANK_ENCODED : CKPT_RANK_SHARD;
}

static bool has_index(const struct ckpt_recode *c, const struct ckpt_rank_file_name *name)
{
	return ckpt_rank_files_has_attempt(files(c), c->rank, CKPT_RANK_INDEX, name->attempt);
}

/* Whether the rank has files besides the shard that is open, and the index of its attempt. */
static bool has_others(const struct ckpt_recode *c)
{
	struct ckpt_rank_file_name name = {.attempt = ""};

	while (ckpt_rank_files_next_file(files(c), c->rank, CKPT_RANK_INDEX, &name))
		if (strcmp(name.attempt, c->shard.name.attempt) != 0)
			return true;
	name.attempt[0] = 0;
	while (ckpt_rank_files_next_file(files(c), c->rank, CKPT_RANK_SHARD, &name))
		if (!ckpt_rank_file_name_equal(&name, &c->shard.name))
			return true;
	return false;
}

/* Goes to the next shard that has the form already, and has its index. */
static bool next_finished(struct ckpt_recode *c)
{
	while (ckpt_rank_files_next_file(files(c), c->rank, CKPT_RANK_SHARD, &c->made_name))
		if (c->made_name.form == wanted_form(c) && has_index(c, &c->made_name))
			return true;
	return false;
}

/* Goes to the next shard that was begun, and is not the one that is open. */
static bool next_unfinished(struct ckpt_recode *c, struct ckpt_rank_file_name *name)
{
	while (ckpt_rank_files_next_unfinished(files(c), c->rank, name))
		if (!ckpt_rank_file_name_equal(name, &c->shard.name))
			return true;
	return false;
}

/* Reading. */

static int rank_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	while (c->rank < c->pick->manifest.world && ckpt_shard_location_has(c->elsewhere, c->rank))
		c->rank++;
	if (c->rank == c->pick->manifest.world || *c->stop)
		return *c->stop;
	c->counted = atomic_load(c->counter);
	init_shard(c, &c->shard);
	ckpt_shard_start_index(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	if (c->shard.task.result < 0)
		return end(c, c->shard.task.result);
	ckpt_shard_start_open(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	if (c->shard.task.result < 0)
		return end(c, c->shard.task.result);
	c->bytes_before += file_bytes(&c->shard);
	return ckpt_task_continue(task, source_body);
	CKPT_TASK_END(task);
}

static void init_copy(struct ckpt_recode *c)
{
	ckpt_shard_copy_clear(&c->copy);
	c->copy = (struct ckpt_shard_copy){.shard = &c->shard,
		.dest = c->core->store,
		.encodes = c->encodes,
		.read = {.core = c->core,
			.store = c->shard.store,
			.file = &c->shard.file,
			.encoded = c->shard.encoded,
			.header = c->shard.header,
			.stop = c->stop,
			.err = c->err,
			.counter = c->counter},
		.stop = c->stop,
		.syncs = true,
		.fresh = true,
		.waiter = &c->task,
		.file = {.fd = -1}};
}

static int fail_bad(struct ckpt_recode *c, const struct ckpt_shard *shard)
{
	return ckpt_fail_at(c->err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(c->core->store), .file = shard->path},
		"%zu of %zu chunks of %s in %s do not match their digests: it has changed since it "
		"was written; step %llu is as it was",
		c->bad.count, c->shard.index->layout->chunk_count, shard->path,
		c->core->store->label, (unsigned long long)shard->step);
}

/* A file that an earlier run has finished is used; then the others of the rank can go. */
static int begin_kept(struct ckpt_recode *c)
{
	init_copy(c);
	memcpy(c->copy.attempt, c->made_name.attempt, sizeof(c->copy.attempt));
	/* Its index is there. */
	c->copy.index_tried = true;
	c->kept = true;
	return ckpt_task_continue(&c->task, check_body);
}

/* What is to be done with the rank, whose shard is open. */
static int decide(struct ckpt_recode *c)
{
	bool has_form = c->encodes == (c->shard.encoded != NULL);
	struct ckpt_rank_file_name name = {.attempt = ""};

	if ((!has_form || has_others(c)) && next_finished(c))
		return begin_kept(c);
	c->kept = false;
	if (!has_form)
		return ckpt_task_continue(
			&c->task, next_unfinished(c, &name) ? room_body : write_body);
	c->bytes_after += file_bytes(&c->shard);
	atomic_fetch_add(c->counter, c->shard.index->layout->bytes);
	return ckpt_task_continue(&c->task, shut_body);
}

/* What is there is listed first: nothing that anybody creates after it is removed. */
static int source_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_header(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	r = c->shard.task.result;
	if (r < 0 && ckpt_shard_is_bad_copy(r) && !*c->stop)
		return ckpt_task_continue(task, other_body);
	if (r < 0)
		return end(c, r);
	ckpt_rank_lister_want(&c->elsewhere->lister, &c->wait, task);
	CKPT_AWAIT(task, c->wait.done);
	if (c->elsewhere->lister.result < 0)
		return end(c, ckpt_error_copy(&c->elsewhere->lister.err, c->err));
	return decide(c);
	CKPT_TASK_END(task);
}

/* The shard that is open is bad, and why is worded: readers use another one of the rank, and so does this. */
static int other_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (c->copy.made) {
		ckpt_shard_copy_start_undo(&c->copy);
		CKPT_AWAIT(task, c->copy.task.finished);
	}
	atomic_store(c->counter, c->counted);
	ckpt_shard_start_other(&c->shard);
	CKPT_AWAIT(task, c->shard.task.finished);
	r = c->shard.task.result;
	if (r < 0)
		return end(c, r == -ENOENT ? c->err->code : r);
	return ckpt_task_continue(task, source_body);
	CKPT_TASK_END(task);
}

/* Reads all of a shard, and puts what is bad into `bad`. */
static int start_fetch(struct ckpt_recode *c, struct ckpt_shard *shard)
{
	const struct ckpt_shard_read_config config = {.core = c->core,
		.layout = c->shard.index->layout,
		.file = &shard->file,
		.encoded = shard->encoded,
		.generation = shard->generation,
		.step = shard->step,
		.rank = c->rank,
		.bad = &c->bad,
		.stop = c->stop,
		.err = c->err,
		.counter = &c->looked,
		.waiter = &c->task};

	if (ckpt_chunkset_init(&c->bad, c->shard.index->layout) < 0)
		return ckpt_fail(c->err, -ENOMEM, "out of memory");
	ckpt_shard_read_start(&c->fetch, &config);
	return 0;
}

static void clear_fetch(struct ckpt_recode *c)
{
	ckpt_shard_read_clear(&c->fetch);
	ckpt_chunkset_clear(&c->bad);
}

/* A later job may have removed the step and copied it here again: then the names in the list are those of its files. */
static int check_claims(struct ckpt_recode *c)
{
	uint64_t known = ckpt_scan_newest_claim(&c->core->lineage->scan);
	int r = c->op.result < 0 ? ckpt_store_fail(&c->op, "list", &c->said, c->err) : *c->stop;
	uint64_t newest = ckpt_take_newest_claim(&c->op);

	if (r == 0 && newest > known)
		r = ckpt_fail(c->err, CKPT_EFENCED,
			"generation %llu has taken over %s: the old files of rank %u of step %llu "
			"stay",
			(unsigned long long)newest, c->core->store->label, c->rank,
			(unsigned long long)c->shard.step);
	return r;
}

/*
 * Somebody who was killed has left shards, each of which takes the room of the new one. One of them may be all that there
 * is of the rank: they go when the one that is open has been read.
 */
static int room_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	r = start_fetch(c, &c->shard);
	if (r < 0)
		return end(c, r);
	CKPT_AWAIT(task, c->fetch.task.finished);
	if (c->fetch.task.result < 0)
		return end(c, c->fetch.task.result);
	r = c->bad.count > 0 ? fail_bad(c, &c->shard) : 0;
	clear_fetch(c);
	if (r < 0)
		return ckpt_task_continue(task, other_body);
	init_op(c);
	ckpt_store_list(c->core->store, &c->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, c->op.done);
	r = check_claims(c);
	if (r < 0)
		return end(c, r);
	c->unfinished.attempt[0] = 0;
	while (next_unfinished(c, &c->unfinished)) {
		ckpt_name_rank_file(path, c->shard.generation, c->shard.step, c->rank,
			c->unfinished.form, c->unfinished.attempt);
		init_op(c);
		ckpt_store_remove(c->core->store, &c->op, path);
		CKPT_AWAIT(task, c->op.done);
		if (c->op.result < 0)
			return end(c, ckpt_store_fail(&c->op, "remove", &c->said, c->err));
	}
	return ckpt_task_continue(task, write_body);
	CKPT_TASK_END(task);
}

/* Writing. */

static int write_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	init_copy(c);
	ckpt_shard_copy_start(&c->copy);
	CKPT_AWAIT(task, c->copy.task.finished);
	r = c->copy.task.result;
	if (r < 0 && ckpt_shard_copy_has_bad_source(&c->copy) && !*c->stop)
		return ckpt_task_continue(task, other_body);
	if (r < 0)
		return end(c, r);
	c->made_name.form = wanted_form(c);
	memcpy(c->made_name.attempt, c->copy.attempt, sizeof(c->made_name.attempt));
	return ckpt_task_continue(task, check_body);
	CKPT_TASK_END(task);
}

/* The shard that stays is bad. One that was there may be so; a new one may not. */
static int take_bad(struct ckpt_recode *c)
{
	if (c->kept) {
		(void)fail_bad(c, &c->made);
		return ckpt_task_continue(&c->task, reject_body);
	}
	return end(c, ckpt_fail_at(c->err, CKPT_EINTEGRITY,
			      &(struct ckpt_where){.tier = ckpt_store_tier(c->core->store),
				      .file = c->made.path},
			      "%zu of %zu chunks of %s are not what was written to it: the disk or "
			      "the memory of this machine is at fault; step %llu is as it was",
			      c->bad.count, c->shard.index->layout->chunk_count, c->made.path,
			      (unsigned long long)c->made.step));
}

/* The other files may be all that there is of the step: they go when the one that stays has been read back. */
static int check_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	init_shard(c, &c->made);
	c->made.index = c->shard.index;
	ckpt_shard_start_again(&c->made, &c->made_name);
	CKPT_AWAIT(task, c->made.task.finished);
	r = c->made.task.result;
	if (r < 0 && c->kept && ckpt_shard_is_bad_copy(r) && !*c->stop)
		return ckpt_task_continue(task, reject_body);
	r = r < 0 ? r : start_fetch(c, &c->made);
	if (r < 0)
		return end(c, r);
	CKPT_AWAIT(task, c->fetch.task.finished);
	if (c->fetch.task.result < 0)
		return end(c, c->fetch.task.result);
	if (c->bad.count > 0)
		return take_bad(c);
	return ckpt_task_continue(task, c->kept ? index_body : publish_body);
	CKPT_TASK_END(task);
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_copy_start_index(&c->copy);
	CKPT_AWAIT(task, c->copy.task.finished);
	if (c->copy.task.result < 0)
		return end(c, c->copy.task.result);
	return ckpt_task_continue(task, index_body);
	CKPT_TASK_END(task);
}

static void index_work(struct ckpt_job *job)
{
	struct ckpt_recode *c = CKPT_CONTAINER(job, struct ckpt_recode, job.job);
	struct ckpt_digest digest = ckpt_digest_of(c->op.data, c->op.length);

	c->job.result =
		ckpt_digest_equal(&digest, &c->shard.rank->index_digest) ? 0 : CKPT_EINTEGRITY;
}

static int fail_index(struct ckpt_recode *c)
{
	return ckpt_fail_at(c->err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(c->core->store), .file = c->op.path},
		"%s in %s does not match the digest that the manifest has of it%s", c->op.path,
		c->core->store->label,
		c->kept ? ""
			: ", though it was written just now: the disk or the memory of this "
			  "machine is at fault; the step is as it was");
}

/* So is the index of its attempt. */
static int index_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_index(path, c->shard.generation, c->shard.step, c->rank, c->copy.attempt);
	init_op(c);
	ckpt_store_get(c->core->store, &c->op, path, c->shard.rank->index_bytes);
	CKPT_AWAIT(task, c->op.done);
	if (c->op.result < 0 && c->op.result != -EFBIG) {
		r = ckpt_store_fail(&c->op, "read", &c->said, c->err);
		return c->kept && ckpt_shard_is_bad_copy(r) && !*c->stop
			       ? ckpt_task_continue(task, reject_body)
			       : end(c, r);
	}
	if (c->op.result == 0) {
		ckpt_task_job_start(&c->job, c->core->parts.env, task, index_work);
		CKPT_AWAIT(task, c->job.done);
	}
	r = c->op.result < 0 || c->job.result < 0 ? fail_index(c) : 0;
	ckpt_store_drop_data(&c->op);
	if (r < 0)
		return c->kept ? ckpt_task_continue(task, reject_body) : end(c, r);
	/* Both are whole from now on. */
	c->copy.made = false;
	return ckpt_task_continue(task, clean_body);
	CKPT_TASK_END(task);
}

/* A shard that was there is bad, or its index is, and why is worded. */
static int reject_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	clear_fetch(c);
	ckpt_shard_start_shut(&c->made);
	CKPT_AWAIT(task, c->made.task.finished);
	c->made.index = NULL;
	ckpt_shard_clear(&c->made);
	if (ckpt_rank_file_name_equal(&c->made_name, &c->shard.name))
		return ckpt_task_continue(task, other_body);
	ckpt_log(c->core->parts.log, CKPT_LOG_WARN, "%.800s (it is not used)", c->err->message);
	ckpt_error_clear(c->err);
	return decide(c);
	CKPT_TASK_END(task);
}

/* A power cut must not leave the removals without the index. */
static void sync_names(struct ckpt_recode *c)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_step(path, c->shard.generation, c->shard.step);
	init_op(c);
	ckpt_store_sync(c->core->store, &c->op, path);
}

static int clean_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (c->kept) {
		sync_names(c);
		CKPT_AWAIT(task, c->op.done);
		if (c->op.result < 0)
			return end(c, ckpt_store_fail(&c->op, "sync", &c->said, c->err));
		atomic_fetch_add(c->counter, c->shard.index->layout->bytes);
	}
	init_op(c);
	ckpt_store_list(c->core->store, &c->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, c->op.done);
	r = check_claims(c);
	if (r < 0)
		return end(c, r);
	ckpt_shard_copy_start_clean(&c->copy, files(c));
	CKPT_AWAIT(task, c->copy.task.finished);
	if (c->copy.task.result < 0)
		return end(c, c->copy.task.result);
	c->ranks += !c->kept;
	c->bytes_after += file_bytes(&c->made);
	return ckpt_task_continue(task, shut_body);
	CKPT_TASK_END(task);
}

static void clear_rank(struct ckpt_recode *c)
{
	ckpt_shard_copy_clear(&c->copy);
	clear_fetch(c);
	c->made.index = NULL;
	ckpt_shard_clear(&c->made);
	ckpt_shard_clear(&c->shard);
	c->made_name.attempt[0] = 0;
}

/* A file that was not finished, or not read back, goes. */
static int shut_body(struct ckpt_task *task)
{
	struct ckpt_recode *c = recode_of(task);

	CKPT_TASK_BEGIN(task);
	if (c->made.file.fd >= 0) {
		ckpt_shard_start_shut(&c->made);
		CKPT_AWAIT(task, c->made.task.finished);
	}
	if (c->copy.made) {
		ckpt_shard_copy_start_undo(&c->copy);
		CKPT_AWAIT(task, c->copy.task.finished);
	}
	if (c->shard.file.fd >= 0) {
		ckpt_shard_start_shut(&c->shard);
		CKPT_AWAIT(task, c->shard.task.finished);
	}
	clear_rank(c);
	c->rank++;
	return c->code ? c->code : ckpt_task_continue(task, rank_body);
	CKPT_TASK_END(task);
}

static void recode_done(struct ckpt_task *task)
{
	ckpt_task_wake(recode_of(task)->waiter);
}

void ckpt_recode_start(struct ckpt_recode *recode)
{
	recode->copy.file.fd = -1;
	ckpt_shard_init(&recode->shard);
	ckpt_shard_init(&recode->made);
	ckpt_task_start(&recode->task, &recode->core->sched, rank_body, recode_done);
}

void ckpt_recode_wake(struct ckpt_recode *recode)
{
	ckpt_task_wake(&recode->fetch.task);
	ckpt_shard_copy_wake(&recode->copy);
}
