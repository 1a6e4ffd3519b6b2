/* SPDX-License-Identifier: Apache-2.0 */
/* Sending one step. */
#include "engine/copy/upload_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <ckpt/engine.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/two_phase_delete.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/open.h"
#include "format/sealed.h"

/* As that of who removes, see gc/two_phase_delete.h: with a request, less than a grace of 600 s. */
#define STALE_NS   UINT64_C(60000000000)
/* No step is marked, and gone, and its tombstone gone, within this: nor was it where that is not there before and after. */
#define LISTED_NS  UINT64_C(300000000000)
#define ROUNDS_MAX 2

static uint64_t now(const struct ckpt_upload *u)
{
	return ckpt_env_age(u->core->parts.env);
}

int ckpt_upload_trouble(struct ckpt_upload *u, const char *doing)
{
	return u->op.result < 0 ? ckpt_store_fail(&u->op, doing, &u->said, u->err) : *u->stop;
}

/* That its index is there says that its shard was: somebody may have removed it. */
static bool has_part(const struct ckpt_upload *u, uint32_t rank)
{
	return ckpt_rank_files_has_both(&u->there, rank);
}

/* The next rank, from u->rank on, whose files are to be sent; false: none. */
static bool next_rank(struct ckpt_upload *u)
{
	for (; u->rank < u->pick.manifest.world; u->rank++) {
		bool mine = u->all ? !ckpt_shard_location_has(&u->elsewhere, u->rank)
				   : u->rank == u->core->config.rank;
		if (mine && !has_part(u, u->rank))
			return true;
	}
	return false;
}

static ckpt_task_fn end_body;
static ckpt_task_fn commit_body;
static ckpt_task_fn whole_body;
static ckpt_task_fn publish_body;
static ckpt_task_fn sweep_body;
static ckpt_task_fn catalog_body;
static ckpt_task_fn header_body;
static ckpt_task_fn copy_body;
static ckpt_task_fn last_fence_body;
static ckpt_task_fn index_body;
static ckpt_task_fn other_body;
static ckpt_task_fn leftovers_body;
static ckpt_task_fn claim_body;
static ckpt_task_fn shard_body;
static ckpt_task_fn open_body;
static ckpt_task_fn sent_rank_body;

int ckpt_upload_give_up(struct ckpt_upload *u, int code)
{
	u->code = code;
	return ckpt_task_continue(&u->task, end_body);
}

/* The fence. */

int ckpt_upload_check_newest(struct ckpt_upload *u, uint64_t newest)
{
	if (newest <= ckpt_scan_newest_claim(&u->core->lineage->scan))
		return 0;
	/* Another rank than 0 may be about to hear of it. */
	u->outdone = u->core->config.rank > 0;
	if (u->outdone)
		return 0;
	return ckpt_fail_at(u->err, CKPT_EFENCED,
		&(struct ckpt_where){.tier = "remote", .file = CKPT_NAME_GENS},
		"generation %llu has taken over %s: this process uploads nothing any more",
		(unsigned long long)newest, u->dest->label);
}

/* Who has taken over may have removed the step, and have begun this very shard in the directory. */
static int fence_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	uint64_t newest;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_take_newest(u, &newest);
	if (r == 0)
		r = ckpt_upload_check_newest(u, newest);
	/* A shard that this upload has begun may be that of the other by now. */
	if (r == CKPT_EFENCED)
		u->copy.made = false;
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, u->then);
	CKPT_TASK_END(task);
}

/* Looks whether somebody has taken over there, and goes on with `then` if nobody has. */
static int fence(struct ckpt_upload *u, ckpt_task_fn *then)
{
	u->then = then;
	return ckpt_task_continue(&u->task, fence_body);
}

/* Small files that are there: their names are used once, so they have the same bytes, unless they have changed. */

static int take_compared(struct ckpt_upload *u)
{
	int r = u->op.result;
	bool same = r == 0 && u->op.length == u->own_length &&
		    memcmp(u->op.data, u->own, u->own_length) == 0;

	ckpt_store_drop_data(&u->op);
	if (same)
		return *u->stop;
	if (r < 0 && !ckpt_store_is_no_file(r))
		return ckpt_upload_trouble(u, "read");
	ckpt_error_clear(&u->said);
	u->differs = true;
	return ckpt_fail_at(u->err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = "remote", .file = u->path},
		"%s is in %s already, and differs from what %s has: it has changed since it was "
		"written; remove it there, and upload the step again",
		u->path, u->dest->label, u->core->parts.label);
}

static int compare_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_get(u->dest, &u->op, u->path, u->own_length);
	CKPT_AWAIT(task, u->op.done);
	r = take_compared(u);
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, u->then);
	CKPT_TASK_END(task);
}

/* Compares what is at u->path with these bytes, and goes on with `then` if they are the same. */
static int compare(struct ckpt_upload *u, const void *own, uint64_t length, ckpt_task_fn *then)
{
	u->own = own;
	u->own_length = length;
	u->then = then;
	return ckpt_task_continue(&u->task, compare_body);
}

/* The index of the rank that is sent. */
static int compare_index(struct ckpt_upload *u, const char *attempt, ckpt_task_fn *then)
{
	ckpt_name_index(u->path, u->generation, u->step, u->shard.rank->rank, attempt);
	return compare(u, u->shard.index_bytes, u->shard.index_length, then);
}

/* One rank's files. */

static void begin_shard(struct ckpt_upload *u)
{
	u->shard = (struct ckpt_shard){.core = u->core,
		.generation = u->generation,
		.step = u->step,
		.rank = &u->pick.manifest.ranks[u->rank],
		.lister = &u->elsewhere.lister,
		.keep_bytes = true,
		.into = &u->core->parts.remote,
		.stop = u->stop,
		.err = u->err,
		.waiter = &u->task};
	ckpt_shard_init(&u->shard);
}

/* Of the blocks that the shard has. */
static const struct ckpt_staged_shard *left_of(const struct ckpt_upload *u)
{
	bool own = u->left && u->rank == u->core->config.rank;

	return own && u->left->count == ckpt_blocks_count(
						u->shard.index->layout, u->core->config.block_bytes)
		       ? u->left
		       : NULL;
}

/* Whether what is sent has that form, however the file here is stored. */
static bool goes(const struct ckpt_upload *u, enum ckpt_remote_encoding form)
{
	return u->core->config.remote_encoding == (uint32_t)form;
}

static void start_copy(struct ckpt_upload *u)
{
	bool bucket = u->core->parts.remote.bucket;

	u->copy.shard = &u->shard;
	u->copy.view = goes(u, CKPT_REMOTE_PLAIN) ? NULL : ckpt_shard_view(&u->shard);
	u->copy.encodes = !u->shard.encoded && goes(u, CKPT_REMOTE_COMPACT);
	u->copy.dest = u->dest;
	u->copy.read = (struct ckpt_shard_read_config){.core = u->core,
		.file = &u->shard.file,
		.encoded = u->shard.encoded,
		.header = u->shard.header,
		.left = u->shard.encoded ? NULL : left_of(u),
		.left_counter = u->bytes_left,
		.behind = true,
		.rate_limit = u->rate_limit,
		.stop = u->stop,
		.err = u->err,
		.counter = u->counter};
	/* That the index is there says that the shard is. */
	u->copy.syncs = true;
	/* In a directory what is there without its shard or index was begun by somebody else, who may be at it. */
	u->copy.fresh =
		!bucket && (u->copy.attempt[0] || ckpt_shard_copy_is_taken(&u->there, u->rank));
	u->copy.resumes = bucket;
	u->copy.waiter = &u->task;
	ckpt_shard_copy_start(&u->copy);
}

/* What is fetched at once is written at once, and is a part there. */
static int check_blocks(struct ckpt_upload *u)
{
	const struct ckpt_layout *layout = u->shard.index->layout;

	if (layout->chunk_bytes <= u->core->config.block_bytes)
		return 0;
	return ckpt_fail(u->err, -EINVAL,
		"cannot upload step %llu to %s: its chunks of %llu bytes are larger than blocks of "
		"%u, the block_bytes of this engine: the C program that saved the step can upload "
		"it",
		(unsigned long long)u->step, u->dest->label,
		(unsigned long long)layout->chunk_bytes, u->core->config.block_bytes);
}

static void end_rank(struct ckpt_upload *u)
{
	ckpt_shard_copy_clear(&u->copy);
	u->copy = (struct ckpt_shard_copy){.file = {.fd = -1}};
	ckpt_shard_clear(&u->shard);
}

/* One rank after the other. */
int ckpt_upload_rank_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	if (!next_rank(u))
		return ckpt_task_continue(task, catalog_body);
	begin_shard(u);
	return ckpt_task_continue(task, u->core->parts.remote.bucket ? claim_body : shard_body);
	CKPT_TASK_END(task);
}

/* Whether the file that was to be opened is there; less than 0: nobody can say. */
static int take_sent(struct ckpt_upload *u)
{
	if (u->op.result == -ENOENT)
		return *u->stop;
	int r = ckpt_upload_trouble(u, "look for");
	return r < 0 ? r : 1;
}

/*
 * Whoever had the claim before may have sent all of it since the list. Its two files are looked for, and the step is
 * not listed again: that would cost each rank as much as the step has ranks.
 */
static int sent_body(struct ckpt_task *task)
{
	static const enum ckpt_rank_file files[] = {
		CKPT_RANK_INDEX, CKPT_RANK_SHARD, CKPT_RANK_ENCODED};
	struct ckpt_upload *u = ckpt_upload_of(task);
	const struct ckpt_manifest_rank *rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	for (u->looked = 0; u->looked < CKPT_COUNT(files); u->looked++) {
		rank = u->shard.rank;
		ckpt_name_rank_file(
			path, u->generation, u->step, rank->rank, files[u->looked], rank->attempt);
		ckpt_store_open(u->dest, &u->op, path, &u->copy.file);
		CKPT_AWAIT(task, u->op.done);
		r = take_sent(u);
		if (r < 0)
			return ckpt_upload_give_up(u, r);
		/* It may have the other form. */
		if (r == 0 && files[u->looked] == CKPT_RANK_SHARD)
			continue;
		if (r == 0)
			return ckpt_task_continue(task, shard_body);
		ckpt_store_shut(u->dest, &u->op, &u->copy.file);
		CKPT_AWAIT(task, u->op.done);
		if (files[u->looked] == CKPT_RANK_SHARD)
			break;
	}
	return ckpt_task_continue(task, sent_rank_body);
	CKPT_TASK_END(task);
}

/* The rank's files are there. */
static int sent_rank_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_shut(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	end_rank(u);
	u->rank++;
	return ckpt_task_continue(task, ckpt_upload_rank_body);
	CKPT_TASK_END(task);
}

static int claim_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_claim(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	if (u->shard.task.result < 0)
		return ckpt_upload_give_up(u, u->shard.task.result);
	return ckpt_task_continue(task, sent_body);
	CKPT_TASK_END(task);
}

static int shard_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_index(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	if (u->shard.task.result < 0)
		return ckpt_upload_give_up(u, u->shard.task.result);
	r = check_blocks(u);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	/* With its shard an index that is there already would be taken for the rank's whole part, whatever is in it. */
	if (u->looked > 0)
		return compare_index(u, u->shard.rank->attempt, open_body);
	return ckpt_task_continue(task, open_body);
	CKPT_TASK_END(task);
}

static int open_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_open(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	if (u->shard.task.result < 0)
		return ckpt_upload_give_up(u, u->shard.task.result);
	return ckpt_task_continue(task, header_body);
	CKPT_TASK_END(task);
}

/* Of the file of the shard that is open. */
static int header_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_header(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	r = u->shard.task.result;
	if (ckpt_shard_is_bad_copy(r) && !*u->stop)
		return ckpt_task_continue(task, other_body);
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, copy_body);
	CKPT_TASK_END(task);
}

/* A file of the shard is bad here, and why is worded: the rank's next one is sent, from its beginning. */
static int other_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (u->copy.made) {
		ckpt_shard_copy_start_undo(&u->copy);
		CKPT_AWAIT(task, u->copy.task.finished);
	}
	ckpt_shard_start_other(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	r = u->shard.task.result;
	if (r < 0)
		return ckpt_upload_give_up(u, r == -ENOENT ? u->err->code : r);
	return ckpt_task_continue(task, header_body);
	CKPT_TASK_END(task);
}

/* A chunk is bad, and none of it was sent; of bytes that were changed on their way the store says the same. */
static int take_copy(struct ckpt_upload *u)
{
	const struct ckpt_shard_read *fetch = &u->copy.fetch;
	int r = u->copy.task.result;

	/* Somebody else has begun it: what becomes of that is seen when this is tried again. */
	if (r == -EEXIST && !u->copy.made) {
		ckpt_error_clear(u->err);
		return ckpt_fail(u->err, -EAGAIN, "%s is there", u->copy.op.path);
	}
	if (r != CKPT_EINTEGRITY || fetch->code_chunk == CKPT_SHARD_READ_NO_CHUNK || !fetch->lifted)
		return r;
	u->misled = true;
	ckpt_error_clear(u->err);
	return ckpt_fail(u->err, -EAGAIN, "staging has something else");
}

static int copy_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_copy(u);
	CKPT_AWAIT(task, u->copy.task.finished);
	r = take_copy(u);
	if (r < 0 && !u->misled && !*u->stop && ckpt_shard_copy_has_bad_source(&u->copy))
		return ckpt_task_continue(task, other_body);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	/* In a bucket nobody begins the shard anew. Rank 0 alone knows its claims before they are there. */
	if (u->core->config.rank == 0 && !u->copy.resumes)
		return fence(u, index_body);
	return ckpt_task_continue(task, index_body);
	CKPT_TASK_END(task);
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_copy_start_index(&u->copy);
	CKPT_AWAIT(task, u->copy.task.finished);
	if (u->copy.task.result == 0)
		return ckpt_task_continue(task, sent_rank_body);
	if (u->copy.task.result != -EEXIST)
		return ckpt_upload_give_up(u, u->copy.task.result);
	/* Somebody else has sent it. */
	ckpt_error_clear(u->err);
	return compare_index(u, u->copy.attempt, sent_rank_body);
	CKPT_TASK_END(task);
}

/* What is of the step as a whole. */

/* It is missing if it is not there, and was not sent just now. */
static bool is_complete(struct ckpt_upload *u)
{
	for (uint32_t i = 0; i < u->pick.manifest.world; i++) {
		bool mine = u->all ? !ckpt_shard_location_has(&u->elsewhere, i)
				   : i == u->core->config.rank;
		u->missing = i;
		if (!mine && !has_part(u, i))
			return false;
	}
	return true;
}

/* This rank has done its part. */
static int part_body(struct ckpt_task *task)
{
	return ckpt_upload_give_up(ckpt_upload_of(task), 0);
}

static int catalog_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	const struct ckpt_catalog_map *map;
	int r;

	CKPT_TASK_BEGIN(task);
	u->complete = is_complete(u);
	/* Whoever has taken over lets nobody publish it. */
	if (u->core->config.rank > 0 || !u->complete)
		return fence(u, part_body);
	if (u->pick.manifest.catalog_bytes == 0)
		return ckpt_task_continue(task, commit_body);
	u->catalog = ckpt_catalog_map_reader_new(u->core, &u->pick, u->err, task);
	if (!u->catalog)
		return ckpt_upload_give_up(u, ckpt_fail(u->err, -ENOMEM, "out of memory"));
	CKPT_AWAIT(task, u->catalog->task.finished);
	r = *u->stop ? *u->stop : ckpt_catalog_map_reader_take(u->catalog, "uploaded");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	map = u->catalog->catalog_map;
	if (!map)
		return ckpt_task_continue(task, commit_body);
	ckpt_name_catalog(u->path, u->generation, &u->pick.manifest.catalog);
	ckpt_store_publish(u->dest, &u->op, u->path, map->file, map->catalog->bytes, NULL);
	CKPT_AWAIT(task, u->op.done);
	/* Another step has brought it. If it is damaged there, the step is whole without it. */
	if (u->op.result == -EEXIST)
		return ckpt_task_continue(task, commit_body);
	r = ckpt_upload_trouble(u, "publish");
	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, commit_body);
	CKPT_TASK_END(task);
}

/* Of every rank, as the directory was listed last. */
static int check_whole(struct ckpt_upload *u)
{
	uint32_t rank = 0;

	while (rank < u->pick.manifest.world && has_part(u, rank))
		rank++;
	if (rank == u->pick.manifest.world)
		return 0;
	return ckpt_fail_at(u->err, -EAGAIN,
		&(struct ckpt_where){.tier = "remote", .file = u->pick.path},
		"what rank %u has sent of step %llu is not in %s any more", rank,
		(unsigned long long)u->step, u->dest->label);
}

/*
 * What was there when this began may be gone: somebody else has published the step meanwhile, and a third one
 * removes it. A removal takes a grace at least; so if an answer has taken long, or the process stood still, the tombstone
 * is looked for once more, or all of this is done again (look_again()).
 */
static int commit_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_sync(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_trouble(u, "sync");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	u->looked_ns = now(u);
	u->listed_ns = u->looked_ns;
	u->rounds++;
	return ckpt_upload_look(u, true, whole_body);
	CKPT_TASK_END(task);
}

static int whole_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r = check_whole(u);

	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, last_fence_body);
}

/*
 * The list of its directory is not new, and good if there was no tombstone all the while. Else it is a failure: whoever
 * waits hears of it, and the next try comes after a pause.
 */
static int look_again(struct ckpt_upload *u)
{
	if (now(u) - u->listed_ns <= LISTED_NS) {
		u->looked_ns = now(u);
		return ckpt_upload_look(u, false, last_fence_body);
	}
	if (u->rounds < ROUNDS_MAX)
		return ckpt_task_continue(&u->task, commit_body);
	return ckpt_upload_give_up(
		u, ckpt_fail_at(u->err, -ETIMEDOUT,
			   &(struct ckpt_where){.tier = "remote", .file = u->pick.path},
			   "%s takes too long to say what it has: nobody knows whether step "
			   "%llu is there "
			   "still",
			   u->dest->label, (unsigned long long)u->step));
}

/* All that it names is there: nobody may have taken over when it is told. */
static int last_fence_body(struct ckpt_task *task)
{
	return fence(ckpt_upload_of(task), publish_body);
}

static int publish_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	if (now(u) - u->looked_ns > STALE_NS)
		return look_again(u);
	u->op.not_after_ns = u->looked_ns + CKPT_TWO_PHASE_DELETE_ASK_NS;
	ckpt_store_publish(u->dest, &u->op, u->pick.path, u->pick.manifest_bytes,
		u->pick.manifest_length, NULL);
	CKPT_AWAIT(task, u->op.done);
	u->committed = u->op.result == 0;
	/* One that is there all the same is read, and compared, when this is tried again. */
	if (u->op.result == -EEXIST)
		return ckpt_upload_give_up(
			u, ckpt_fail(u->err, -EAGAIN, "%s is there", u->pick.path));
	if (!u->committed)
		return ckpt_upload_give_up(u, ckpt_upload_trouble(u, "publish"));
	return ckpt_task_continue(task, sweep_body);
	CKPT_TASK_END(task);
}

/* Everything of the step is there: what else is on its way is of no use to anybody. */
static int sweep_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_sweep(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	u->rank = 0;
	return u->core->parts.remote.bucket ? ckpt_upload_give_up(u, 0)
					    : ckpt_task_continue(task, leftovers_body);
	CKPT_TASK_END(task);
}

/* Goes to the next shard without an index, of a rank that has both files of another attempt. */
static bool next_leftover(struct ckpt_upload *u, char *path)
{
	for (; u->rank < u->pick.manifest.world; u->rank++, u->leftover.attempt[0] = 0) {
		if (!has_part(u, u->rank))
			continue;
		if (!ckpt_rank_files_next_unfinished(&u->there, u->rank, &u->leftover))
			continue;
		ckpt_name_rank_file(path, u->generation, u->step, u->rank, u->leftover.form,
			u->leftover.attempt);
		return true;
	}
	return false;
}

/*
 * In a directory an upload that was killed has left the shard that it had begun, at its whole size. Whoever is at one
 * still writes what nobody needs. One that cannot be removed goes with the step.
 */
static int leftovers_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	while (next_leftover(u, path)) {
		ckpt_store_remove(u->dest, &u->op, path);
		CKPT_AWAIT(task, u->op.done);
	}
	return ckpt_upload_give_up(u, 0);
	CKPT_TASK_END(task);
}

static void clear(struct ckpt_upload *u)
{
	ckpt_free(ckpt_store_take_listing(&u->op).names);
	ckpt_rank_files_clear(&u->there);
	ckpt_shard_copy_clear(&u->copy);
	ckpt_shard_clear(&u->shard);
	ckpt_shard_location_clear(&u->elsewhere);
	ckpt_catalog_map_reader_free(u->catalog);
	u->catalog = NULL;
	ckpt_select_clear(&u->pick);
}

/*
 * However it went. In a bucket what was sent of a shard stays, and the next try goes on from it. In a directory it goes,
 * unless its index may be there: rank 0 may have listed both, and publish the manifest.
 */
static int end_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	u->op.err = NULL;
	if (u->copy.made && (u->copy.resumes || !u->copy.index_tried)) {
		ckpt_shard_copy_start_undo(&u->copy);
		CKPT_AWAIT(task, u->copy.task.finished);
	}
	if (u->copy.file.fd >= 0) {
		ckpt_store_shut(u->dest, &u->op, &u->copy.file);
		CKPT_AWAIT(task, u->op.done);
	}
	/* Whoever waits for it finds nothing of this one on its way any more. */
	if (u->shard.file.fd >= 0 || u->shard.sole.fd >= 0) {
		ckpt_shard_start_shut(&u->shard);
		CKPT_AWAIT(task, u->shard.task.finished);
	}
	if (u->pick.lock.fd >= 0) {
		ckpt_store_shut(u->core->store, &u->op, &u->pick.lock);
		CKPT_AWAIT(task, u->op.done);
	}
	if (u->lock.fd >= 0) {
		ckpt_store_shut(u->dest, &u->op, &u->lock);
		CKPT_AWAIT(task, u->op.done);
	}
	clear(u);
	return u->code;
	CKPT_TASK_END(task);
}

static void upload_done(struct ckpt_task *task)
{
	ckpt_task_wake(ckpt_upload_of(task)->waiter);
}

void ckpt_upload_start(struct ckpt_upload *upload)
{
	upload->copy.file.fd = -1;
	upload->pick.lock.fd = -1;
	upload->lock.fd = -1;
	ckpt_shard_init(&upload->shard);
	ckpt_error_clear(&upload->said);
	ckpt_store_op_init(&upload->op, &upload->task, &upload->said);
	ckpt_task_start(&upload->task, &upload->core->sched, ckpt_upload_probe_body, upload_done);
}
