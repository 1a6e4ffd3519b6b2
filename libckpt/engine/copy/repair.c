/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged step, made whole with what the remote store has. */
#include "engine/copy/repair.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"

#define MIB ((double)(1 << 20))

static struct ckpt_repairer *repairer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_repairer, task);
}

static ckpt_task_fn verify_body;
static ckpt_task_fn index_body;
static ckpt_task_fn open_body;
static ckpt_task_fn scan_body;
static ckpt_task_fn next_here_body;
static ckpt_task_fn best_body;
static ckpt_task_fn source_body;
static ckpt_task_fn list_body;
static ckpt_task_fn write_body;
static ckpt_task_fn other_body;
static ckpt_task_fn clean_body;
static ckpt_task_fn shut_body;

static int end(struct ckpt_repairer *m, int code)
{
	m->over = true;
	m->code = code;
	return ckpt_task_continue(&m->task, shut_body);
}

static int trouble(struct ckpt_repairer *m, const char *doing)
{
	return m->op.result < 0 ? ckpt_store_fail(&m->op, doing, &m->said, &m->err) : *m->stop;
}

/* Of a failure that says nothing about the files: give up. */
static bool is_blind(const struct ckpt_repairer *m, int code)
{
	return *m->stop ||
	       (code < 0 && !ckpt_code_is_damage(code) && !ckpt_store_is_unreadable(code));
}

/* What is bad here cannot be had from there, either. What a disk cannot read today it may read tomorrow. */
static int end_without(struct ckpt_repairer *m, int code)
{
	bool gone = code == -ENOENT || ckpt_store_is_no_file(code);

	m->lost = (ckpt_code_is_damage(code) || gone) && !m->unread;
	return end(m, code);
}

/* What is bad. */

static void init_shard(struct ckpt_repairer *m, struct ckpt_shard *shard, struct ckpt_store *store)
{
	ckpt_error_clear(&m->err);
	*shard = (struct ckpt_shard){.core = m->core,
		.store = store,
		.generation = m->pick->chosen.generation,
		.step = m->pick->chosen.step,
		.rank = &m->pick->manifest.ranks[m->rank],
		.lister = store == m->source ? &m->lister : &m->elsewhere.lister,
		.keep_bytes = true,
		.stop = m->stop,
		.err = &m->err,
		.waiter = &m->task};
	ckpt_shard_init(shard);
}

static void start_index(struct ckpt_repairer *m, struct ckpt_store *store)
{
	init_shard(m, &m->shard, store);
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
	m->shard.lister = &m->elsewhere.lister;
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
		&m->bad, m->shard.index->layout, m->shard.file.fd >= 0 ? m->shard.holds : 0);
	return ckpt_task_continue(task, m->shard.file.fd >= 0 ? scan_body : source_body);
	CKPT_TASK_END(task);
}

static void start_fetch(struct ckpt_repairer *m)
{
	const struct ckpt_shard_read_config config = {.core = m->core,
		.layout = m->shard.index->layout,
		.file = &m->shard.file,
		.encoded = m->shard.encoded,
		.generation = m->shard.generation,
		.step = m->shard.step,
		.rank = m->rank,
		.bad = &m->bad,
		.stop = m->stop,
		.err = &m->err,
		.counter = &m->read,
		.waiter = &m->task};

	ckpt_shard_read_start(&m->fetch, &config);
}

static int scan_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	start_fetch(m);
	CKPT_AWAIT(task, m->fetch.task.finished);
	if (m->fetch.task.result < 0)
		return end(m, m->fetch.task.result);
	m->unread = m->unread || m->fetch.unread > 0;
	ckpt_shard_read_clear(&m->fetch);
	if (m->bad.count > 0)
		return ckpt_task_continue(task, next_here_body);
	if (m->size_bad)
		return ckpt_task_continue(task, list_body);
	/* As it was written, and so is the one there: if it does not go with its index, nothing is to be repaired. */
	ckpt_shard_start_header(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	if (m->shard.task.result == CKPT_EFORMAT)
		return end_without(m, CKPT_EFORMAT);
	if (m->shard.task.result < 0)
		return end(m, m->shard.task.result);
	return ckpt_task_continue(task, m->index_bad ? list_body : shut_body);
	CKPT_TASK_END(task);
}

/* Of the file that is open nothing is known yet but its length. */
static int scan_next(struct ckpt_repairer *m)
{
	ckpt_error_clear(&m->err);
	m->size_bad = false;
	if (ckpt_chunkset_init(&m->bad, m->shard.index->layout) < 0)
		return end(m, ckpt_fail(&m->err, -ENOMEM, "out of memory"));
	return ckpt_task_continue(&m->task, scan_body);
}

/* Of the files of the rank here that were scanned the one with the fewest bad chunks is kept in mind. */
static void keep_best(struct ckpt_repairer *m)
{
	if (m->best_bad.room > 0 && m->best_bad.count <= m->bad.count) {
		ckpt_chunkset_clear(&m->bad);
		return;
	}
	ckpt_chunkset_clear(&m->best_bad);
	m->best_bad = m->bad;
	m->bad = (struct ckpt_chunkset){0};
	m->best_size_bad = m->size_bad;
	m->best = m->shard.name;
}

/* The file that was scanned has bad chunks: another one of the rank here may be whole. */
static int next_here_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	(void)ckpt_fail(&m->err, CKPT_EINTEGRITY, "%zu of %zu chunks of %s in %s are bad",
		m->bad.count, m->shard.index->layout->chunk_count, m->shard.file.path,
		m->core->store->label);
	keep_best(m);
	ckpt_shard_start_other(&m->shard);
	CKPT_AWAIT(task, m->shard.task.finished);
	r = m->shard.task.result;
	if (*m->stop || r == -ENOMEM)
		return end(m, *m->stop ? *m->stop : r);
	if (r == 0)
		return scan_next(m);
	/* One that could not be opened may be good. */
	m->unread = m->unread || r != -ENOENT || ckpt_store_is_unreadable(m->err.code);
	return ckpt_task_continue(task, best_body);
	CKPT_TASK_END(task);
}

/* None is whole. What is good here comes from the best one. */
static int best_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_error_clear(&m->err);
	if (!ckpt_rank_file_name_equal(&m->shard.name, &m->best) || m->shard.file.fd < 0) {
		ckpt_shard_start_again(&m->shard, &m->best);
		CKPT_AWAIT(task, m->shard.task.finished);
		if (*m->stop || m->shard.file.fd < 0)
			return end(m, *m->stop ? *m->stop : m->shard.task.result);
		/* That it is cut was seen when it was scanned. */
		ckpt_error_clear(&m->err);
	}
	m->bad = m->best_bad;
	m->best_bad = (struct ckpt_chunkset){0};
	m->size_bad = m->best_size_bad;
	return ckpt_task_continue(task, source_body);
	CKPT_TASK_END(task);
}

/* What is written. */

static bool is_useless(const struct ckpt_repairer *m)
{
	return m->shard.file.fd < 0 || m->bad.count == m->bad.room;
}

/*
 * What of it is bad there does not matter, unless it is asked for. It may have been repaired there, too, or an upload may
 * have left a shard that it had begun: so the rank's files are tried one after the other. One of another size is used if
 * there is no other: it may have the chunks that are asked for.
 */
static int source_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	init_shard(m, &m->there, m->source);
	m->there.index = m->shard.index;
	ckpt_shard_start_open(&m->there);
	CKPT_AWAIT(task, m->there.task.finished);
	r = m->there.task.result;
	if (*m->stop)
		return end(m, *m->stop);
	if (m->there.file.fd < 0 || (r < 0 && !ckpt_shard_is_bad_copy(r)))
		return end_without(m, r);
	ckpt_error_clear(&m->err);
	return ckpt_task_continue(task, list_body);
	CKPT_TASK_END(task);
}

/* See repair.h: nothing that is in this list was created after it by anybody. */
static int list_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_rank_lister_want(&m->elsewhere.lister, &m->wait, task);
	CKPT_AWAIT(task, m->wait.done);
	if (m->elsewhere.lister.result < 0)
		return end(m, ckpt_error_copy(&m->elsewhere.lister.err, &m->err));
	return ckpt_task_continue(task, write_body);
	CKPT_TASK_END(task);
}

/* The file there that is open. Of a plain one that is read past the page cache no single chunk can be read. */
static struct ckpt_object *source_file(struct ckpt_repairer *m)
{
	return m->there.cached.fd >= 0 ? &m->there.cached : &m->there.file;
}

static void start_copy(struct ckpt_repairer *m)
{
	bool useless = is_useless(m);

	m->patch = (struct ckpt_shard_read_patch){.store = m->source,
		.file = source_file(m),
		.encoded = m->there.encoded,
		.chunks = &m->bad};
	m->copy = (struct ckpt_shard_copy){.shard = &m->shard,
		.view = useless ? ckpt_shard_view(&m->there) : NULL,
		.dest = m->core->store,
		.read = {.core = m->core,
			.store = useless ? m->source : m->core->store,
			.file = useless ? &m->there.file : &m->shard.file,
			.encoded = useless ? m->there.encoded : m->shard.encoded,
			.patch = !useless && m->bad.count > 0 ? &m->patch : NULL,
			.stop = m->stop,
			.err = &m->err,
			.counter = &m->read},
		.stop = m->stop,
		.syncs = true,
		.fresh = true,
		.waiter = &m->task};
	ckpt_shard_copy_start(&m->copy);
}

/*
 * The bad chunk is encoded there with the help of one that is good here and may be bad there. With this one its bytes
 * might be decoded, which nobody tries: so the chunk is not known to be lost.
 */
static bool may_be_decodable(const struct ckpt_repairer *m)
{
	const struct ckpt_encoded *encoded = m->there.encoded;
	size_t chunk = m->copy.fetch.code_chunk;

	if (!encoded || is_useless(m) || chunk == CKPT_SHARD_READ_NO_CHUNK)
		return false;
	const struct ckpt_encoded_chunk *c = &encoded->chunks[chunk];
	for (size_t i = 0; i < c->ref_count; i++)
		if (!ckpt_chunkset_has(&m->bad, encoded->refs[c->first_ref + i]))
			return true;
	return false;
}

/* The one here was good when it was scanned: if it is not now, another scan is to see it. */
static int end_write(struct ckpt_repairer *m, int code)
{
	const struct ckpt_object *bad = ckpt_shard_read_bad_file(&m->copy.fetch);
	bool there = bad && (bad == &m->there.file || bad == &m->there.cached);

	m->unread = m->unread || (there && may_be_decodable(m));

	if (there && ckpt_shard_is_bad_copy(code) && !*m->stop)
		return ckpt_task_continue(&m->task, other_body);
	return end(m, code);
}

/* The file there is bad, and why is worded: the rank's next one there may be good. */
static int other_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_shard_copy_start_undo(&m->copy);
	CKPT_AWAIT(task, m->copy.task.finished);
	ckpt_shard_copy_clear(&m->copy);
	ckpt_shard_start_other(&m->there);
	CKPT_AWAIT(task, m->there.task.finished);
	r = m->there.task.result;
	if (r == -ENOENT)
		return end_without(m, m->err.code);
	return r < 0 ? end(m, r) : ckpt_task_continue(task, write_body);
	CKPT_TASK_END(task);
}

static int write_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	if (!is_useless(m) && m->there.file.fd >= 0 && m->there.file.direct && !m->there.encoded) {
		ckpt_shard_start_share(&m->there);
		CKPT_AWAIT(task, m->there.task.finished);
		if (m->there.cached.fd < 0)
			return end(
				m, ckpt_store_fail(&m->there.op, "open", &m->there.said, &m->err));
	}
	start_copy(m);
	CKPT_AWAIT(task, m->copy.task.finished);
	if (m->copy.task.result < 0)
		return end_write(m, m->copy.task.result);
	ckpt_shard_copy_start_index(&m->copy);
	CKPT_AWAIT(task, m->copy.task.finished);
	if (m->copy.task.result < 0)
		return end(m, m->copy.task.result);
	return ckpt_task_continue(task, clean_body);
	CKPT_TASK_END(task);
}

/* A later job may have removed the step and copied it here again: then the names in the list are those of its files. */
static bool may_clean(struct ckpt_repairer *m)
{
	uint64_t known = ckpt_scan_newest_claim(&m->core->lineage->scan);
	uint64_t newest = ckpt_take_newest_claim(&m->op);
	int r = trouble(m, "list");

	if (r == 0 && newest > known)
		(void)ckpt_fail(&m->err, CKPT_EFENCED, "generation %llu has taken over %s",
			(unsigned long long)newest, m->core->store->label);
	return r == 0 && newest <= known;
}

/*
 * The old files stay until the new ones are durable: they may have what nobody else has. One that cannot be removed is
 * passed over by who reads the step.
 */
static int clean_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(m->core->store, &m->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, m->op.done);
	if (may_clean(m)) {
		ckpt_shard_copy_start_clean(&m->copy, &m->elsewhere.lister.files);
		CKPT_AWAIT(task, m->copy.task.finished);
	}
	m->copy.made = false;
	if (m->err.code)
		ckpt_log(m->core->parts.log, CKPT_LOG_WARN,
			"old files of rank %u of step %llu stay in %s: %.600s", m->rank,
			(unsigned long long)m->shard.step, m->core->store->label, m->err.message);
	ckpt_error_clear(&m->err);
	return ckpt_task_continue(task, shut_body);
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
	ckpt_shard_copy_clear(&m->copy);
	ckpt_shard_read_clear(&m->fetch);
	m->there.index = NULL;
	ckpt_shard_clear(&m->there);
	ckpt_shard_clear(&m->shard);
	ckpt_chunkset_clear(&m->bad);
	ckpt_chunkset_clear(&m->best_bad);
}

/* A file that was not finished is no file. */
static int shut_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	if (m->copy.made) {
		ckpt_shard_copy_start_undo(&m->copy);
		CKPT_AWAIT(task, m->copy.task.finished);
	}
	if (m->there.file.fd >= 0) {
		ckpt_shard_start_shut(&m->there);
		CKPT_AWAIT(task, m->there.task.finished);
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
	ckpt_rank_lister_clear(&m->lister);
	return m->code;
	CKPT_TASK_END(task);
}

static int repairer_body(struct ckpt_task *task)
{
	struct ckpt_repairer *m = repairer_of(task);

	CKPT_TASK_BEGIN(task);
	m->elsewhere = (struct ckpt_shard_location){
		.core = m->core, .pick = m->pick, .err = &m->err, .waiter = task};
	m->lister = (struct ckpt_rank_lister){.store = m->source,
		.sched = &m->core->sched,
		.generation = m->pick->chosen.generation,
		.step = m->pick->chosen.step,
		.stop = m->stop};
	ckpt_shard_location_start(&m->elsewhere);
	CKPT_AWAIT(task, m->elsewhere.task.finished);
	if (m->elsewhere.task.result < 0)
		return end(m, m->elsewhere.task.result);
	return ckpt_task_continue(task, verify_body);
	CKPT_TASK_END(task);
}

static void repairer_done(struct ckpt_task *task)
{
	ckpt_task_wake(repairer_of(task)->waiter);
}

void ckpt_repairer_start(struct ckpt_repairer *repairer)
{
	repairer->copy.file.fd = -1;
	ckpt_shard_init(&repairer->shard);
	ckpt_shard_init(&repairer->there);
	ckpt_error_clear(&repairer->err);
	ckpt_error_clear(&repairer->said);
	ckpt_store_op_init(&repairer->op, &repairer->task, &repairer->said);
	repairer->op.quiet = true;
	repairer->op.stop = repairer->stop;
	ckpt_task_start(&repairer->task, &repairer->core->sched, repairer_body, repairer_done);
}

void ckpt_repairer_wake(struct ckpt_repairer *repairer)
{
	ckpt_task_wake(&repairer->fetch.task);
	ckpt_shard_copy_wake(&repairer->copy);
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
