/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged step, written again from the remote store. */
#include "engine/mender.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/fail.h"

static struct ckpt_mender *mender_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_mender, task);
}

static ckpt_task_fn end_body;
static ckpt_task_fn verify_body;
static ckpt_task_fn source_body;
static ckpt_task_fn write_body;

static int give_up(struct ckpt_mender *m, int code)
{
	m->code = code;
	return ckpt_task_continue(&m->task, end_body);
}

static int trouble(struct ckpt_mender *m, const char *doing)
{
	struct ckpt_store *store = m->core->store;

	if (m->op.result >= 0)
		return *m->stop;
	return ckpt_fail_at(&m->err, m->op.result,
		&(struct ckpt_where){.tier = ckpt_store_tier(store), .file = m->op.path},
		"cannot %s %s in %s: %s", doing, m->op.path, store->label,
		ckpt_code_text(m->op.result));
}

static void start_shard(struct ckpt_mender *m, struct ckpt_store *store)
{
	ckpt_error_clear(&m->err);
	m->shard = (struct ckpt_shard){.core = m->core,
		.store = store,
		.generation = m->pick->chosen.generation,
		.step = m->pick->chosen.step,
		.rank = &m->pick->manifest.ranks[m->rank],
		.keep_bytes = true,
		.stop = m->stop,
		.err = &m->err,
		.waiter = &m->task};
	ckpt_shard_init(&m->shard);
	ckpt_shard_start_index(&m->shard);
}

/* To `dest`, or nowhere: then what is bad is a finding. */
static void start_fetch(struct ckpt_mender *m, struct ckpt_store *dest)
{
	struct ckpt_fetch_config config = {.core = m->core,
		.layout = m->shard.index->layout,
		.store = m->shard.store,
		.file = &m->shard.file,
		.generation = m->shard.generation,
		.step = m->shard.step,
		.rank = m->rank,
		.header = m->shard.header,
		.stop = m->stop,
		.err = &m->err,
		.counter = &m->bytes,
		.waiter = &m->task};

	if (dest) {
		config.dest = dest;
		config.dest_file = &m->file;
	} else {
		config.findings = &m->findings;
	}
	ckpt_fetch_start(&m->fetch, &config);
}

static void clear_rank(struct ckpt_mender *m)
{
	ckpt_fetch_clear(&m->fetch);
	ckpt_shard_clear(&m->shard);
	ckpt_findings_clear(&m->findings);
}

static bool next_rank(struct ckpt_mender *m)
{
	while (m->rank < m->pick->manifest.world && ckpt_elsewhere_has(&m->elsewhere, m->rank))
		m->rank++;
	return m->rank < m->pick->manifest.world;
}

/* Of a failure that says nothing about the files: give up. */
static bool is_blind(const struct ckpt_mender *m, int code)
{
	bool damage = code == 0 || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE ||
		      code == CKPT_EFORMAT || code == -EIO;

	return !damage || *m->stop;
}

static int verify_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);

	CKPT_TASK_BEGIN(task);
	if (!next_rank(m))
		return give_up(m, *m->stop);
	start_shard(m, NULL);
	CKPT_AWAIT(task, m->shard.task.finished);
	m->code = m->shard.task.result;
	if (m->code == 0) {
		ckpt_shard_start_open(&m->shard);
		CKPT_AWAIT(task, m->shard.task.finished);
		m->code = m->shard.task.result;
	}
	if (m->code == 0) {
		ckpt_shard_start_header(&m->shard);
		CKPT_AWAIT(task, m->shard.task.finished);
		m->code = m->shard.task.result;
	}
	if (m->code == 0) {
		start_fetch(m, NULL);
		CKPT_AWAIT(task, m->fetch.task.finished);
		m->code = m->fetch.task.result;
	}
	m->bad = m->code < 0 || m->fetch.noted > 0;
	ckpt_shard_start_shut(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	clear_rank(m);
	if (is_blind(m, m->code))
		return give_up(m, *m->stop ? *m->stop : m->code);
	if (m->bad)
		return ckpt_task_continue(task, source_body);
	m->rank++;
	return ckpt_task_continue(task, verify_body);
	CKPT_TASK_END(task);
}

/* Damaged there, too: what is here stays as it is, because most of it is good. */
static int take_source(struct ckpt_mender *m)
{
	const struct ckpt_error *first = ckpt_findings_first(&m->findings);

	if (!first)
		return m->fetch.task.result < 0 ? m->fetch.task.result : *m->stop;
	m->err = *first;
	return first->code;
}

/* What the remote store has is read to the end before anything here is touched. */
static int source_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	start_shard(m, m->source);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result < 0)
		return give_up(m, m->shard.task.result);
	ckpt_shard_start_open(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result < 0)
		return give_up(m, m->shard.task.result);
	ckpt_shard_start_header(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result < 0)
		return give_up(m, m->shard.task.result);
	start_fetch(m, NULL);
	CKPT_AWAIT(task, m->fetch.task.finished);
	r = take_source(m);
	ckpt_fetch_clear(&m->fetch);
	return r < 0 ? give_up(m, r) : ckpt_task_continue(task, write_body);
	CKPT_TASK_END(task);
}

static ckpt_task_fn seal_body;

static void name_shard(const struct ckpt_mender *m, char *path)
{
	ckpt_name_shard(path, m->shard.generation, m->shard.step, m->rank, m->shard.rank->attempt);
}

static void name_index(const struct ckpt_mender *m, char *path)
{
	ckpt_name_index(path, m->shard.generation, m->shard.step, m->rank, m->shard.rank->attempt);
}

/* A new file under the name: whoever still writes to the old one does not reach it. */
static int write_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);
	struct ckpt_store *store = m->core->store;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	name_shard(m, path);
	ckpt_store_remove(store, &m->op, path);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "remove");
	if (r < 0)
		return give_up(m, r);
	name_shard(m, path);
	ckpt_store_create(store, &m->op, path,
		ckpt_align_up(m->shard.index->layout->bytes, store->align), &m->file);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "create");
	if (r < 0)
		return give_up(m, r);
	start_fetch(m, store);
	CKPT_AWAIT(task, m->fetch.task.finished);
	if (m->fetch.task.result < 0)
		return give_up(m, m->fetch.task.result);
	ckpt_store_seal(store, &m->op, &m->file, m->shard.index->layout->bytes);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "seal");
	return r < 0 ? give_up(m, r) : ckpt_task_continue(task, seal_body);
	CKPT_TASK_END(task);
}

static int seal_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);
	struct ckpt_store *store = m->core->store;
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	name_index(m, path);
	ckpt_store_remove(store, &m->op, path);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "remove");
	if (r < 0)
		return give_up(m, r);
	name_index(m, path);
	ckpt_store_publish(store, &m->op, path, m->shard.index_bytes, m->shard.index_length, NULL);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "publish");
	if (r < 0)
		return give_up(m, r);
	ckpt_name_step(path, m->shard.generation, m->shard.step);
	ckpt_store_sync(store, &m->op, path);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "sync");
	if (r < 0)
		return give_up(m, r);
	ckpt_log(m->core->parts.log, CKPT_LOG_WARN,
		"the files of rank %u of step %llu in %s were damaged, and are written again from "
		"%s",
		m->rank, (unsigned long long)m->shard.step, store->label, m->source->label);
	ckpt_shard_start_shut(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	clear_rank(m);
	m->mended++;
	m->rank++;
	return ckpt_task_continue(task, verify_body);
	CKPT_TASK_END(task);
}

/* A file that was not finished is no file. */
static int end_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);

	CKPT_TASK_BEGIN(task);
	if (m->shard.file.fd >= 0) {
		ckpt_shard_start_shut(&m->shard);
		CKPT_AWAIT(task, m->shard.task.finished);
	}
	if (m->file.fd >= 0) {
		ckpt_store_abandon(m->core->store, &m->op, &m->file);
		CKPT_AWAIT(task, m->op.done);
	}
	clear_rank(m);
	ckpt_elsewhere_clear(&m->elsewhere);
	return m->code;
	CKPT_TASK_END(task);
}

static int mender_body(struct ckpt_task *task)
{
	struct ckpt_mender *m = mender_of(task);

	CKPT_TASK_BEGIN(task);
	m->elsewhere = (struct ckpt_elsewhere){
		.core = m->core, .pick = m->pick, .err = &m->err, .waiter = task};
	ckpt_elsewhere_start(&m->elsewhere);
	CKPT_AWAIT(task, m->elsewhere.task.finished);
	if (m->elsewhere.task.result < 0)
		return give_up(m, m->elsewhere.task.result);
	return ckpt_task_continue(task, verify_body);
	CKPT_TASK_END(task);
}

static void mender_done(struct ckpt_task *task)
{
	ckpt_task_wake(mender_of(task)->waiter);
}

void ckpt_mender_start(struct ckpt_mender *mender)
{
	mender->file.fd = -1;
	ckpt_shard_init(&mender->shard);
	ckpt_error_clear(&mender->err);
	ckpt_store_op_init(&mender->op, &mender->task, NULL);
	mender->op.quiet = true;
	mender->op.stop = mender->stop;
	ckpt_task_start(&mender->task, &mender->core->sched, mender_body, mender_done);
}
