/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged step, made whole with what the remote store has. */
#include "engine/copy/repair.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define MIB ((double)(1 << 20))

static struct ckpt_repairer *repairer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_repairer, task);
}

static ckpt_task_fn verify_body;
static ckpt_task_fn index_body;
static ckpt_task_fn open_body;
static ckpt_task_fn scan_body;
static ckpt_task_fn source_body;
static ckpt_task_fn write_body;
static ckpt_task_fn put_index_body;
static ckpt_task_fn place_body;
static ckpt_task_fn shut_body;

static int end(struct ckpt_repairer *m, int code)
{
	m->over = true;
	m->code = code;
	return ckpt_task_continue(&m->task, shut_body);
}

static int trouble(struct ckpt_repairer *m, const char *doing)
{
	struct ckpt_store *store = m->op.store;
	const struct ckpt_where where = {.tier = ckpt_store_tier(store), .file = m->op.path};
	int r = m->op.result;

	if (r >= 0)
		return *m->stop;
	if (ckpt_fail_said(&m->err, r, &where, &m->said))
		return r;
	return ckpt_fail_at(&m->err, r, &where, "cannot %s %s in %s: %s", doing, m->op.path,
		store->label, ckpt_code_text(r));
}

static bool is_damage(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT;
}

/* Of a failure that says nothing about the files: give up. */
static bool is_blind(const struct ckpt_repairer *m, int code)
{
	return *m->stop || (code < 0 && !is_damage(code) && !ckpt_store_is_unreadable(code));
}

/* What is bad here cannot be had from there, either. What a disk cannot read today it may read tomorrow. */
static int end_without(struct ckpt_repairer *m, int code)
{
	bool gone = code == -ENOENT || ckpt_store_is_no_file(code);

	m->lost = (is_damage(code) || gone) && !m->unread;
	return end(m, code);
}

/* What is bad. */

static void start_index(struct ckpt_repairer *m, struct ckpt_store *store)
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

static bool next_rank(struct ckpt_repairer *m)
{
	while (m->rank < m->pick->manifest.world && ckpt_shard_location_has(&m->elsewhere, m->rank))
		m->rank++;
	return m->rank < m->pick->manifest.world;
}

static int verify_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	if (!next_rank(m))
		return end(m, *m->stop);
	start_index(m, m->core->store);
	CKPT_AWAIT(task, m->shard.task.finished);
	m->index_bad = m->shard.task.result < 0;
	m->unread = ckpt_store_is_unreadable(m->shard.task.result);
	m->index_put = false;
	if (is_blind(m, m->shard.task.result))
		return end(m, *m->stop ? *m->stop : m->shard.task.result);
	return ckpt_task_continue(task, m->index_bad ? index_body : open_body);
	CKPT_TASK_END(task);
}

/* The digest in the manifest says that the one there is the same. */
static int index_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_clear(&m->shard);
	start_index(m, m->source);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result < 0)
		return end_without(m, m->shard.task.result);
	m->indexes++;
	m->shard.store = m->core->store;
	return ckpt_task_continue(task, open_body);
	CKPT_TASK_END(task);
}

static int open_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	if (ckpt_chunkset_init(&m->bad, m->shard.index->layout) < 0)
		return end(m, ckpt_fail(&m->err, -ENOMEM, "out of memory"));
	ckpt_shard_start_open(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (is_blind(m, m->shard.task.result))
		return end(m, *m->stop ? *m->stop : m->shard.task.result);
	m->size_bad = m->shard.task.result < 0;
	m->unread = m->unread || ckpt_store_is_unreadable(m->shard.task.result);
	ckpt_error_clear(&m->err);
	ckpt_chunkset_add_behind(
		&m->bad, m->shard.index->layout, m->shard.file.fd >= 0 ? m->shard.op.size : 0);
	return ckpt_task_continue(task, m->shard.file.fd >= 0 ? scan_body : source_body);
	CKPT_TASK_END(task);
}

static void start_fetch(struct ckpt_repairer *m, struct ckpt_shard_read_config config)
{
	config.core = m->core;
	config.layout = m->shard.index->layout;
	config.generation = m->shard.generation;
	config.step = m->shard.step;
	config.rank = m->rank;
	config.stop = m->stop;
	config.err = &m->err;
	config.counter = &m->read;
	config.waiter = &m->task;
	ckpt_shard_read_start(&m->fetch, &config);
}

static int scan_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	start_fetch(m, (struct ckpt_shard_read_config){.file = &m->shard.file, .bad = &m->bad});
	CKPT_AWAIT(task, m->fetch.task.finished);
	if (m->fetch.task.result < 0)
		return end(m, m->fetch.task.result);
	m->unread = m->unread || m->fetch.unread > 0;
	ckpt_shard_read_clear(&m->fetch);
	if (m->bad.count > 0)
		return ckpt_task_continue(task, source_body);
	if (m->size_bad)
		return ckpt_task_continue(task, write_body);
	/* As it was written, and so is the one there: if it does not go with its index, nothing is to be mended. */
	ckpt_shard_start_header(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result == CKPT_EFORMAT)
		return end_without(m, CKPT_EFORMAT);
	if (m->shard.task.result < 0)
		return end(m, m->shard.task.result);
	return ckpt_task_continue(task, m->index_bad ? put_index_body : shut_body);
	CKPT_TASK_END(task);
}

/* What is written. */

static bool is_useless(const struct ckpt_repairer *m)
{
	return m->shard.file.fd < 0 || m->bad.count == m->bad.room;
}

static void name_shard(struct ckpt_repairer *m)
{
	ckpt_name_shard(
		m->path, m->shard.generation, m->shard.step, m->rank, m->shard.rank->attempt);
}

/* What of it is bad there does not matter, unless it is asked for. */
static int source_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	name_shard(m);
	if (is_useless(m))
		ckpt_store_open(m->source, &m->op, m->path, &m->there);
	else
		ckpt_store_open_cached(m->source, &m->op, m->path, &m->there);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "open");
	return r < 0 ? end_without(m, r) : ckpt_task_continue(task, write_body);
	CKPT_TASK_END(task);
}

/* Of the file that is to have the name m->path. */
static void name_new(const struct ckpt_repairer *m, char *out)
{
	int length = snprintf(out, CKPT_PATH_MAX, "%s" CKPT_STORE_TEMP "%016llx", m->path,
		(unsigned long long)ckpt_env_random(m->core->parts.env));

	CKPT_ASSERT(length > 0 && length < CKPT_PATH_MAX);
}

static void start_write(struct ckpt_repairer *m)
{
	struct ckpt_shard_read_config config = {
		.file = &m->shard.file, .dest = m->core->store, .dest_file = &m->file};

	m->patch = (struct ckpt_shard_read_patch){
		.store = m->source, .file = &m->there, .chunks = &m->bad};
	if (is_useless(m)) {
		config.store = m->source;
		config.file = &m->there;
	} else if (m->bad.count > 0) {
		config.patch = &m->patch;
	}
	start_fetch(m, config);
}

/* The one here was good when it was scanned: if it is not now, another scan is to see it. */
static int end_write(struct ckpt_repairer *m, int code)
{
	bool there = is_useless(m) || ckpt_shard_read_failed_in_patch(&m->fetch);

	return there && is_damage(code) ? end_without(m, code) : end(m, code);
}

static int write_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	struct ckpt_store *store = m->core->store;
	char name[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	name_shard(m);
	name_new(m, name);
	ckpt_store_create(store, &m->op, name,
		ckpt_align_up(m->shard.index->layout->bytes, store->align), &m->file);
	CKPT_AWAIT(task, m->op.done);
	m->made = m->op.result >= 0;
	r = trouble(m, "create");
	if (r < 0)
		return end(m, r);
	start_write(m);
	CKPT_AWAIT(task, m->fetch.task.finished);
	if (m->fetch.task.result < 0)
		return end_write(m, m->fetch.task.result);
	ckpt_store_seal(store, &m->op, &m->file, m->shard.index->layout->bytes);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "seal");
	return r < 0 ? end(m, r) : ckpt_task_continue(task, place_body);
	CKPT_TASK_END(task);
}

static int put_index_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	m->index_put = true;
	ckpt_name_index(
		m->path, m->shard.generation, m->shard.step, m->rank, m->shard.rank->attempt);
	name_new(m, m->file.path);
	ckpt_store_put(
		m->core->store, &m->op, m->file.path, m->shard.index_bytes, m->shard.index_length);
	CKPT_AWAIT(task, m->op.done);
	m->made = m->op.result >= 0;
	r = trouble(m, "write");
	return r < 0 ? end(m, r) : ckpt_task_continue(task, place_body);
	CKPT_TASK_END(task);
}

/* The old file keeps its name until the new one is whole: it may have what nobody else has. */
static int place_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_replace(m->core->store, &m->op, &m->file, m->path);
	CKPT_AWAIT(task, m->op.done);
	r = trouble(m, "replace");
	if (r < 0)
		return end(m, r);
	m->made = false;
	return ckpt_task_continue(task, m->index_bad && !m->index_put ? put_index_body : shut_body);
	CKPT_TASK_END(task);
}

/* The end of a rank, and of all. */

static void count(struct ckpt_repairer *m)
{
	const struct ckpt_layout *layout = m->shard.index->layout;
	uint64_t bytes = ckpt_chunkset_bytes(&m->bad, layout);

	if (!m->index_bad && !m->size_bad && m->bad.count == 0)
		return;
	ckpt_log(m->core->parts.log, CKPT_LOG_WARN,
		"the files of rank %u of step %llu in %s were damaged: %zu of %zu chunks (%.1f "
		"MiB)%s were had from %s, and new files are in their place",
		m->rank, (unsigned long long)m->shard.step, m->core->store->label, m->bad.count,
		layout->chunk_count, (double)bytes / MIB, m->index_bad ? " and the index" : "",
		m->source->label);
	m->repaired++;
	m->chunks += m->bad.count;
	m->bytes += bytes;
}

static void clear_rank(struct ckpt_repairer *m)
{
	ckpt_shard_read_clear(&m->fetch);
	ckpt_shard_clear(&m->shard);
	ckpt_chunkset_clear(&m->bad);
}

/* A file that was not finished is no file. */
static int shut_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	if (m->made) {
		ckpt_store_abandon(m->core->store, &m->op, &m->file);
		CKPT_AWAIT(task, m->op.done);
		m->made = false;
	}
	if (m->there.fd >= 0) {
		ckpt_store_shut(m->source, &m->op, &m->there);
		CKPT_AWAIT(task, m->op.done);
	}
	if (m->shard.file.fd >= 0) {
		ckpt_shard_start_shut(&m->shard);
		CKPT_AWAIT(task, m->shard.task.finished);
	}
	if (!m->over)
		count(m);
	clear_rank(m);
	m->rank++;
	if (!m->over)
		return ckpt_task_continue(task, verify_body);
	ckpt_shard_location_clear(&m->elsewhere);
	return m->code;
	CKPT_TASK_END(task);
}

/* What one that was killed has left of new files. False: no more. */
static bool next_leftover(struct ckpt_repairer *m, char *out)
{
	char directory[CKPT_PATH_MAX];

	ckpt_name_step(directory, m->pick->chosen.generation, m->pick->chosen.step);
	for (;;) {
		m->name = m->name ? m->name + strlen(m->name) + 1 : m->names.names;
		if (!m->names.names || m->name == m->names.names + m->names.bytes)
			return false;
		if (strncmp(m->name, "rank-", 5) != 0 || !strstr(m->name, CKPT_STORE_TEMP))
			continue;
		int length = snprintf(out, CKPT_PATH_MAX, "%s/%s", directory, m->name);
		if (length > 0 && length < CKPT_PATH_MAX)
			return true;
	}
}

static int leftovers_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	struct ckpt_store *store = m->core->store;
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_step(path, m->pick->chosen.generation, m->pick->chosen.step);
	ckpt_store_list(store, &m->op, path);
	CKPT_AWAIT(task, m->op.done);
	m->names = m->op.listing;
	m->op.listing = (struct ckpt_listing){0};
	while (next_leftover(m, path)) {
		ckpt_store_remove(store, &m->op, path);
		CKPT_AWAIT(task, m->op.done);
	}
	ckpt_free(m->names.names);
	m->names = (struct ckpt_listing){0};
	/* One that stays takes up room, until the step goes. */
	ckpt_error_clear(&m->said);
	return ckpt_task_continue(task, verify_body);
	CKPT_TASK_END(task);
}

static int repairer_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	m->elsewhere = (struct ckpt_shard_location){
		.core = m->core, .pick = m->pick, .err = &m->err, .waiter = task};
	ckpt_shard_location_start(&m->elsewhere);
	CKPT_AWAIT(task, m->elsewhere.task.finished);
	if (m->elsewhere.task.result < 0)
		return end(m, m->elsewhere.task.result);
	return ckpt_task_continue(task, leftovers_body);
	CKPT_TASK_END(task);
}

static void repairer_done(struct ckpt_task *task)
{
	ckpt_task_wake(repairer_of(task)->waiter);
}

void ckpt_repairer_start(struct ckpt_repairer *repairer)
{
	repairer->file.fd = -1;
	repairer->there.fd = -1;
	ckpt_shard_init(&repairer->shard);
	ckpt_error_clear(&repairer->err);
	ckpt_error_clear(&repairer->said);
	ckpt_store_op_init(&repairer->op, &repairer->task, &repairer->said);
	repairer->op.quiet = true;
	repairer->op.stop = repairer->stop;
	ckpt_task_start(&repairer->task, &repairer->core->sched, repairer_body, repairer_done);
}

void ckpt_repairer_tell(const struct ckpt_repairer *repairer, struct ckpt_error *found)
{
	const struct ckpt_scan_step *step = &repairer->pick->chosen;
	char indexes[48] = "";
	char what[512];

	(void)snprintf(what, sizeof(what), "step %llu in %.200s was damaged (%.160s%s%.100s)",
		(unsigned long long)step->step, repairer->core->parts.label,
		found->file[0] ? found->file : "files of its ranks",
		found->tensor[0] ? ", tensor " : "", found->tensor);
	if (repairer->indexes > 0)
		(void)snprintf(indexes, sizeof(indexes), " and %u index%s", repairer->indexes,
			repairer->indexes > 1 ? "es" : "");
	if (repairer->repaired > 0)
		(void)snprintf(found->message, sizeof(found->message),
			"%s, and is whole again, with %zu chunk%s (%.1f MiB)%s from %.200s: "
			"restore it again",
			what, repairer->chunks, repairer->chunks == 1 ? "" : "s",
			(double)repairer->bytes / MIB, indexes, repairer->source->label);
	else
		(void)snprintf(found->message, sizeof(found->message),
			"%s, but all of it verifies now: restore it again", what);
	found->repaired = 1;
}
