/* SPDX-License-Identifier: Apache-2.0 */
/* Sending one step. */
#include "engine/copy/upload_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
	const struct ckpt_where where = {.tier = "remote", .file = u->op.path};

	if (u->op.result >= 0)
		return *u->stop;
	if (ckpt_fail_said(u->err, u->op.result, &where, &u->said))
		return u->op.result;
	return ckpt_fail_at(u->err, u->op.result, &where, "cannot %s %s in %s: %s", doing,
		u->op.path, u->dest->label, ckpt_code_text(u->op.result));
}

/* Whether the remote store has a file of that path in the step's directory. */
static bool is_there(struct ckpt_upload *u, const char *path)
{
	return ckpt_listing_has(&u->there, strrchr(path, '/') + 1, &u->there_at);
}

/* That its index is there says that its shard was: somebody may have removed it. */
static bool has_part(struct ckpt_upload *u, uint32_t rank)
{
	const struct ckpt_manifest_rank *r = &u->pick.manifest.ranks[rank];
	char path[CKPT_PATH_MAX];

	ckpt_name_index(path, u->generation, u->step, r->rank, r->attempt);
	if (!is_there(u, path))
		return false;
	ckpt_name_shard(path, u->generation, u->step, r->rank, r->attempt);
	return is_there(u, path);
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
static ckpt_task_fn stone_body;
static ckpt_task_fn whole_body;
static ckpt_task_fn publish_body;
static ckpt_task_fn sweep_body;
static ckpt_task_fn catalog_body;
static ckpt_task_fn create_body;
static ckpt_task_fn claim_body;
static ckpt_task_fn shard_body;

int ckpt_upload_give_up(struct ckpt_upload *u, int code)
{
	u->code = code;
	return ckpt_task_continue(&u->task, end_body);
}

/* One rank's files. */

static void begin_shard(struct ckpt_upload *u)
{
	u->shard = (struct ckpt_shard){.core = u->core,
		.generation = u->generation,
		.step = u->step,
		.rank = &u->pick.manifest.ranks[u->rank],
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

static void start_fetch(struct ckpt_upload *u)
{
	const struct ckpt_shard_read_config config = {.core = u->core,
		.layout = u->shard.index->layout,
		.file = &u->shard.file,
		.generation = u->generation,
		.step = u->step,
		.rank = u->rank,
		.dest = u->dest,
		.dest_file = &u->file,
		.header = u->shard.header,
		.unit = u->op.unit,
		.left = left_of(u),
		.left_counter = u->bytes_left,
		.behind = true,
		.rate_limit = u->rate_limit,
		.stop = u->stop,
		.err = u->err,
		.counter = u->counter,
		.waiter = &u->task};

	ckpt_shard_read_start(&u->fetch, &config);
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
	ckpt_shard_read_clear(&u->fetch);
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
	struct ckpt_upload *u = ckpt_upload_of(task);
	const struct ckpt_manifest_rank *rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	for (u->looked = 0; u->looked < 2; u->looked++) {
		rank = u->shard.rank;
		if (u->looked == 0)
			ckpt_name_index(path, u->generation, u->step, rank->rank, rank->attempt);
		else
			ckpt_name_shard(path, u->generation, u->step, rank->rank, rank->attempt);
		ckpt_store_open(u->dest, &u->op, path, &u->file);
		CKPT_AWAIT(task, u->op.done);
		r = take_sent(u);
		if (r < 0)
			return ckpt_upload_give_up(u, r);
		if (r == 0)
			return ckpt_task_continue(task, shard_body);
		ckpt_store_shut(u->dest, &u->op, &u->file);
		CKPT_AWAIT(task, u->op.done);
	}
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
	ckpt_shard_start_open(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	if (u->shard.task.result < 0)
		return ckpt_upload_give_up(u, u->shard.task.result);
	ckpt_shard_start_header(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	if (u->shard.task.result < 0)
		return ckpt_upload_give_up(u, u->shard.task.result);
	return ckpt_task_continue(task, create_body);
	CKPT_TASK_END(task);
}

/* A chunk is bad, and none of it was sent; of bytes that were changed on their way the store says the same. */
static int take_fetch(struct ckpt_upload *u)
{
	int r = u->fetch.task.result;

	if (r != CKPT_EINTEGRITY || u->fetch.code_chunk == CKPT_SHARD_READ_NO_CHUNK ||
		!u->fetch.lifted)
		return r;
	u->misled = true;
	ckpt_error_clear(u->err);
	return ckpt_fail(u->err, -EAGAIN, "staging has something else");
}

static ckpt_task_fn seal_body;

/* What a process that ended has left of a shard in a directory is of no use. In a bucket it is whole, or not there. */
static int create_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	const struct ckpt_manifest_rank *rank = u->shard.rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_name_shard(path, u->generation, u->step, rank->rank, rank->attempt);
	if (is_there(u, path) && !u->core->parts.remote.bucket) {
		ckpt_store_remove(u->dest, &u->op, path);
		CKPT_AWAIT(task, u->op.done);
		r = ckpt_upload_trouble(u, "remove");
		if (r < 0)
			return ckpt_upload_give_up(u, r);
	}
	ckpt_name_shard(path, u->generation, u->step, u->shard.rank->rank, u->shard.rank->attempt);
	ckpt_store_resume(u->dest, &u->op, path,
		ckpt_align_up(u->shard.index->layout->bytes, u->dest->align), &u->file);
	CKPT_AWAIT(task, u->op.done);
	/* Somebody else has begun it: what becomes of that is seen when this is tried again. */
	if (u->op.result == -EEXIST)
		return ckpt_upload_give_up(
			u, ckpt_fail(u->err, -EAGAIN, "%s is there", u->op.path));
	r = ckpt_upload_trouble(u, "create");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	start_fetch(u);
	CKPT_AWAIT(task, u->fetch.task.finished);
	r = take_fetch(u);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	return ckpt_task_continue(task, seal_body);
	CKPT_TASK_END(task);
}

static int check_fence(struct ckpt_upload *u)
{
	uint64_t newest;
	int r = ckpt_upload_take_newest(u, &newest);

	if (r < 0 || newest <= ckpt_scan_newest_claim(&u->core->lineage->scan))
		return r;
	/* Another rank than 0 may be about to hear of it. */
	u->outdone = u->core->config.rank > 0;
	if (u->outdone)
		return 0;
	return ckpt_fail_at(u->err, CKPT_EFENCED,
		&(struct ckpt_where){.tier = "remote", .file = CKPT_NAME_GENS},
		"generation %llu has taken over %s: this process uploads nothing any more",
		(unsigned long long)newest, u->dest->label);
}

static int seal_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	const struct ckpt_manifest_rank *rank = u->shard.rank;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_seal(u->dest, &u->op, &u->file, u->shard.index->layout->bytes);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_trouble(u, "seal");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	/* That the index is there says that the shard is. */
	ckpt_name_step(path, u->generation, u->step);
	ckpt_store_sync(u->dest, &u->op, path);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_trouble(u, "sync");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	/*
	 * Who has taken over may have begun this very shard anew, in a directory. Rank 0 alone knows its claims before
	 * they are there.
	 */
	if (u->core->config.rank == 0) {
		ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, u->op.done);
		r = check_fence(u);
		if (r < 0)
			return ckpt_upload_give_up(u, r);
	}
	ckpt_name_index(path, u->generation, u->step, rank->rank, u->shard.rank->attempt);
	ckpt_store_publish(
		u->dest, &u->op, path, u->shard.index_bytes, u->shard.index_length, NULL);
	CKPT_AWAIT(task, u->op.done);
	/* Somebody else has sent the same. */
	r = u->op.result == -EEXIST ? *u->stop : ckpt_upload_trouble(u, "publish");
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	ckpt_shard_start_shut(&u->shard);
	CKPT_AWAIT(task, u->shard.task.finished);
	end_rank(u);
	u->rank++;
	return ckpt_task_continue(task, ckpt_upload_rank_body);
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

/* A catalog that is not good does not go along: the step is whole without it. */
static int leave_catalog(struct ckpt_upload *u)
{
	int r = u->catalog->task.result;

	if (r == -ENOMEM || r == 0)
		return r < 0 ? r : *u->stop;
	ckpt_log(u->core->parts.log, CKPT_LOG_WARN,
		"step %llu is uploaded without its catalog: %.800s", (unsigned long long)u->step,
		u->err->message);
	ckpt_error_clear(u->err);
	return *u->stop;
}

static int catalog_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	u->complete = is_complete(u);
	if (u->core->config.rank > 0 || !u->complete) {
		/* Whoever has taken over lets nobody publish it. */
		ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
		CKPT_AWAIT(task, u->op.done);
		return ckpt_upload_give_up(u, check_fence(u));
	}
	if (u->pick.manifest.catalog_bytes == 0)
		return ckpt_task_continue(task, commit_body);
	u->catalog = ckpt_catalog_map_reader_new(u->core, &u->pick, u->err, task);
	if (!u->catalog)
		return ckpt_upload_give_up(u, ckpt_fail(u->err, -ENOMEM, "out of memory"));
	CKPT_AWAIT(task, u->catalog->task.finished);
	r = leave_catalog(u);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
	if (!u->catalog->catalog_map)
		return ckpt_task_continue(task, commit_body);
	ckpt_name_catalog(path, u->generation, &u->pick.manifest.catalog);
	ckpt_store_publish(u->dest, &u->op, path, u->catalog->catalog_map->file,
		u->catalog->catalog_map->catalog->bytes, NULL);
	CKPT_AWAIT(task, u->op.done);
	/* Whatever is there by that name is the same: another step has brought it. */
	r = u->op.result == -EEXIST ? *u->stop : ckpt_upload_trouble(u, "publish");
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
	u->then = whole_body;
	return ckpt_task_continue(task, ckpt_upload_there_body);
	CKPT_TASK_END(task);
}

static int whole_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r = check_whole(u);

	return r < 0 ? ckpt_upload_give_up(u, r) : ckpt_task_continue(task, publish_body);
}

/* As what fails: whoever waits hears of it, and the next try comes after a pause. */
static int look_again(struct ckpt_upload *u)
{
	if (now(u) - u->listed_ns <= LISTED_NS)
		return ckpt_task_continue(&u->task, stone_body);
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

/* The list of its directory is not new, and good if there was no tombstone all the while. */
static int stone_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	u->looked_ns = now(u);
	ckpt_name_tombstone(path, u->generation, u->step);
	ckpt_store_get(u->dest, &u->op, path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, u->op.done);
	r = ckpt_upload_take_tombstone(u);
	return r < 0 || u->deleting ? ckpt_upload_give_up(u, r)
				    : ckpt_task_continue(task, publish_body);
	CKPT_TASK_END(task);
}

/* All that it names is there: nobody may have taken over when it is told. */
static int publish_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(u->dest, &u->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, u->op.done);
	r = check_fence(u);
	if (r < 0)
		return ckpt_upload_give_up(u, r);
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
	return ckpt_upload_give_up(u, 0);
	CKPT_TASK_END(task);
}

static void clear(struct ckpt_upload *u)
{
	ckpt_free(u->op.listing.names);
	ckpt_free(u->there.names);
	u->op.listing = (struct ckpt_listing){0};
	u->there = (struct ckpt_listing){0};
	ckpt_shard_read_clear(&u->fetch);
	ckpt_shard_clear(&u->shard);
	ckpt_shard_location_clear(&u->elsewhere);
	ckpt_catalog_map_reader_free(u->catalog);
	u->catalog = NULL;
	ckpt_select_clear(&u->pick);
}

/* However it went. What was sent of a shard stays where the next try can go on from it. */
static int end_body(struct ckpt_task *task)
{
	struct ckpt_upload *u = ckpt_upload_of(task);

	CKPT_TASK_BEGIN(task);
	u->op.err = NULL;
	if (u->file.fd >= 0) {
		ckpt_store_shut(u->dest, &u->op, &u->file);
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
	upload->file.fd = -1;
	upload->pick.lock.fd = -1;
	ckpt_shard_init(&upload->shard);
	ckpt_error_clear(&upload->said);
	ckpt_store_op_init(&upload->op, &upload->task, &upload->said);
	ckpt_task_start(&upload->task, &upload->core->sched, ckpt_upload_probe_body, upload_done);
}
