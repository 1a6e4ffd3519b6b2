/* SPDX-License-Identifier: Apache-2.0 */
/* From a manifest's record of a rank to its open, checked files. */
#include "engine/shard/shard_state.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "config.h"
#include "engine/shard/bad_chunk.h"

#define HEADER_ALIGN 4096
/* The end of an encoded shard that is read first: most tables are in it. */
#define TAIL_BYTES   (UINT64_C(64) << 10)
#define TAIL_REQUEST (UINT64_C(64) << 20)

static int fail_missing(struct ckpt_shard *s, const char *what, const char *other_form)
{
	return ckpt_fail_at(s->err, CKPT_EINCOMPLETE,
		&(struct ckpt_where){.tier = ckpt_store_tier(s->store), .file = s->path},
		"%s %s%s of step %llu is not in %s%s%s, though the step was committed%s%s; bring "
		"the file back, or use another step",
		what, s->path, other_form, (unsigned long long)s->step, s->store->label,
		s->op.result == -ENOENT ? "" : ", but something else: ",
		s->op.result == -ENOENT ? "" : ckpt_code_text(s->op.result),
		s->rank->node[0] ? ": it was written on node " : "", s->rank->node);
}

static int fail_read(struct ckpt_shard *s, int code)
{
	const struct ckpt_where where = {.tier = ckpt_store_tier(s->store), .file = s->path};

	if (ckpt_fail_said(s->err, code, &where, &s->said))
		return code;
	return ckpt_fail_at(s->err, code, &where, "cannot read %s in %s: %s", s->path,
		s->store->label, ckpt_code_text(code));
}

static int fail_size(struct ckpt_shard *s, uint64_t have, uint64_t want)
{
	struct ckpt_where where = {.tier = ckpt_store_tier(s->store),
		.file = s->path,
		.has_offset = true,
		.offset = ckpt_min_u64(have, want)};

	return ckpt_fail_at(s->err, have < want ? CKPT_EINCOMPLETE : CKPT_EINTEGRITY, &where,
		"%s in %s has %s%llu bytes, the manifest says %llu: it was %s; put the file back "
		"from a copy, or use another step",
		s->path, s->store->label, have < want ? "only " : "", (unsigned long long)have,
		(unsigned long long)want, have < want ? "cut" : "added to");
}

/* Searching. */

/* -ESTALE: another machine has removed the file (NFS). */
bool ckpt_shard_is_bad_copy(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == -ESTALE ||
	       ckpt_store_is_unreadable(code);
}

/* Whether another file may be good where this one is not. */
static bool may_search(const struct ckpt_shard *s, int code)
{
	return code < 0 && s->lister && !s->exhausted && !*s->stop && ckpt_shard_is_bad_copy(code);
}

static void begin_search(struct ckpt_shard *s, enum ckpt_rank_file form)
{
	ckpt_shard_search_begin(&s->search, s->rank, form, s->lister, &s->name);
	s->exhausted = false;
	s->other = false;
}

/* A run stores its shards in one form, mostly. */
void ckpt_shard_search_shard(struct ckpt_shard *s)
{
	begin_search(s, s->core->encoded_seen ? CKPT_RANK_ENCODED : CKPT_RANK_SHARD);
}

void ckpt_shard_name_file(const struct ckpt_shard *s, char *path)
{
	ckpt_name_rank_file(
		path, s->generation, s->step, s->rank->rank, s->name.form, s->name.attempt);
}

static void keep_first(struct ckpt_shard *s)
{
	if (s->op.result == -ENOENT || s->op.result == -ESTALE)
		ckpt_shard_search_miss(&s->search);
	ckpt_shard_search_keep(&s->search, &s->name, s->err, s->file.fd >= 0);
}

/* As ckpt_shard_search_next(). That a file is missing is as it should be, of a rank that was repaired. */
static int next_file(struct ckpt_shard *s)
{
	char path[CKPT_PATH_MAX];
	int r = ckpt_shard_search_next(&s->search, &s->task, &s->name, s->err);

	if (r != 0)
		return r;
	ckpt_shard_name_file(s, path);
	if (s->err->code != 0 && s->op.result != -ENOENT)
		ckpt_log(s->core->parts.log, CKPT_LOG_WARN, "%.800s (now %s is tried)",
			s->err->message, path);
	ckpt_error_clear(s->err);
	return 0;
}

/* The index. */

/* Digests and parsing are for a worker: it may have hundreds of megabytes. */
static void index_work(struct ckpt_job *job)
{
	struct ckpt_shard *s = CKPT_CONTAINER(job, struct ckpt_shard, job.job);
	struct ckpt_digest digest = ckpt_digest_of(s->index_bytes, s->index_length);
	struct ckpt_where where = {.tier = ckpt_store_tier(s->store), .file = s->path};

	if (!ckpt_digest_equal(&digest, &s->rank->index_digest)) {
		s->job.result = ckpt_fail_at(&s->job.error, CKPT_EINTEGRITY, &where,
			"%s in %s does not match the digest that the manifest has of it: it has "
			"changed since it was written; put the file back from a copy, or use "
			"another step",
			s->path, s->store->label);
		return;
	}
	s->job.result = ckpt_index_decode(
		s->index_bytes, s->index_length, s->path, &s->job.error, &s->index);
	if (s->job.result < 0)
		return;
	const struct ckpt_layout *layout = s->index->layout;
	if (s->index->rank != s->rank->rank || layout->bytes != s->rank->shard_bytes)
		s->job.result = ckpt_fail_at(&s->job.error, CKPT_EFORMAT, &where,
			"%s describes %llu bytes of rank %u, the manifest %llu bytes of rank %u",
			s->path, (unsigned long long)layout->bytes, s->index->rank,
			(unsigned long long)s->rank->shard_bytes, s->rank->rank);
}

static int take_index(struct ckpt_shard *s)
{
	int r = s->op.result;

	if (r == -ENOENT || (ckpt_store_is_no_file(r) && r != -EFBIG))
		return fail_missing(s, "the index", "");
	if (r == -EFBIG)
		return ckpt_fail_at(s->err, CKPT_EINTEGRITY,
			&(struct ckpt_where){.tier = ckpt_store_tier(s->store), .file = s->path},
			"%s in %s has more than the %llu bytes that the manifest says: it was "
			"added to; put the file back from a copy, or use another step",
			s->path, s->store->label, (unsigned long long)s->rank->index_bytes);
	if (r < 0)
		return fail_read(s, r);
	s->index_bytes = s->op.data;
	s->index_length = s->op.length;
	s->op.data = NULL;
	if (s->index_length != s->rank->index_bytes)
		return fail_size(s, s->index_length, s->rank->index_bytes);
	return *s->stop;
}

static void drop_index(struct ckpt_shard *s)
{
	ckpt_index_free(s->index);
	ckpt_free(s->index_bytes);
	s->index = NULL;
	s->index_bytes = NULL;
}

static int take_decoded(struct ckpt_shard *s)
{
	int r = ckpt_task_job_take(&s->job, s->err);

	if (r == 0 && s->keep_bytes)
		return 0;
	ckpt_free(s->index_bytes);
	s->index_bytes = NULL;
	return r;
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	begin_search(s, CKPT_RANK_INDEX);
	/* The decoder of the manifest has seen to it. */
	CKPT_ASSERT(s->rank->index_bytes > 0 && s->rank->index_bytes <= CKPT_INDEX_MAX);
	for (;;) {
		ckpt_shard_name_file(s, s->path);
		ckpt_store_get(s->store, &s->op, s->path, s->rank->index_bytes);
		CKPT_AWAIT(task, s->op.done);
		r = take_index(s);
		if (r == 0) {
			ckpt_task_job_start(&s->job, s->core->parts.env, task, index_work);
			CKPT_AWAIT(task, s->job.done);
			r = take_decoded(s);
		}
		if (!may_search(s, r))
			return r;
		drop_index(s);
		keep_first(s);
		ckpt_shard_search_list(&s->search, task);
		do {
			CKPT_AWAIT(task, s->search.wait.done);
			r = next_file(s);
		} while (r > 0);
		if (r < 0)
			return r == -ENOENT ? s->search.first.code : r;
	}
	CKPT_TASK_END(task);
}

/* The shard. */

/* What an encoded one is, when its table is there. */

static void drop_tail(struct ckpt_shard *s)
{
	ckpt_free(s->tail_memory);
	s->tail_memory = NULL;
	s->tail = NULL;
}

static void drop_table(struct ckpt_shard *s)
{
	ckpt_stored_view_clear(&s->view);
	ckpt_encoded_free(s->encoded);
	s->encoded = NULL;
}

/* Makes room for the file's end, from `from` on. */
static int make_tail(struct ckpt_shard *s, uint64_t from)
{
	drop_tail(s);
	s->tail_from = from & ~(uint64_t)(HEADER_ALIGN - 1);
	s->tail_read = s->tail_from;
	s->tail_memory = ckpt_alloc(s->file_bytes - s->tail_from + UINT64_C(2) * HEADER_ALIGN);
	if (!s->tail_memory)
		return ckpt_fail(s->err, -ENOMEM, "out of memory for the table of %s", s->path);
	s->tail = s->tail_memory + (0 - (uintptr_t)s->tail_memory) % HEADER_ALIGN;
	return 0;
}

static int begin_tail(struct ckpt_shard *s)
{
	const struct ckpt_where where = {.tier = ckpt_store_tier(s->store), .file = s->path};

	if (!CKPT_HAVE_CODEC)
		return ckpt_fail_at(s->err, CKPT_EUNSUPPORTED, &where,
			"%s is stored encoded, and this libckpt was built without zstd: use one "
			"that was built with it",
			s->path);
	s->file_bytes = s->op.size;
	if (s->file_bytes < CKPT_ENCODED_TRAILER)
		return ckpt_fail_at(s->err, CKPT_EINCOMPLETE, &where,
			"%s in %s has only %llu bytes: it was cut; put the file back from a copy, "
			"or use another step",
			s->path, s->store->label, (unsigned long long)s->file_bytes);
	return make_tail(s, s->file_bytes - ckpt_min_u64(s->file_bytes, TAIL_BYTES));
}

/* False: all of it is there. */
static bool read_tail(struct ckpt_shard *s)
{
	uint64_t at = s->tail_read;

	if (at >= s->file_bytes)
		return false;
	s->tail_read +=
		ckpt_min_u64(TAIL_REQUEST, ckpt_align_up(s->file_bytes - at, s->store->align));
	ckpt_store_read(s->store, &s->op, &s->file, s->tail + (at - s->tail_from),
		s->tail_read - at, at, -1);
	return true;
}

static int take_tail(struct ckpt_shard *s)
{
	if (s->op.result < 0)
		return fail_read(s, s->op.result);
	if (s->op.offset + s->op.size < ckpt_min_u64(s->tail_read, s->file_bytes))
		return fail_read(s, CKPT_EINCOMPLETE);
	return *s->stop;
}

static int take_trailer(struct ckpt_shard *s)
{
	return ckpt_encoded_read_trailer(
		s->tail + (s->file_bytes - CKPT_ENCODED_TRAILER - s->tail_from), s->file_bytes,
		s->index->layout, s->path, s->err, &s->trailer);
}

/* Of many chunks it takes its time. */
static void table_work(struct ckpt_job *job)
{
	struct ckpt_shard *s = CKPT_CONTAINER(job, struct ckpt_shard, job.job);

	const char *table = s->tail + (s->trailer.table_offset - s->tail_from);

	s->job.result = ckpt_encoded_decode(
		table, &s->trailer, s->index->layout, s->path, &s->job.error, &s->encoded);
	if (s->job.result == 0 && s->keep_bytes && s->encoded->base_count == 0)
		s->job.result = ckpt_stored_view_build(&s->view, s->encoded, s->index->layout,
			table, s->file_bytes, s->path, &s->job.error);
}

/* Each form was tried. */
static bool is_in_no_form(const struct ckpt_shard *s)
{
	return s->op.result == -ENOENT && s->search.own_count > 0;
}

static int take_open(struct ckpt_shard *s)
{
	if (s->op.result == -ENOENT || ckpt_store_is_no_file(s->op.result))
		return fail_missing(s, "shard", is_in_no_form(s) ? " (or .encoded)" : "");
	if (s->op.result < 0)
		return fail_read(s, s->op.result);
	s->core->encoded_seen = s->name.form == CKPT_RANK_ENCODED;
	s->holds = s->core->encoded_seen ? s->rank->shard_bytes : s->op.size;
	if (s->holds != s->rank->shard_bytes)
		return fail_size(s, s->op.size, s->rank->shard_bytes);
	return 0;
}

static int none_code(const struct ckpt_shard *s)
{
	return s->other ? -ENOENT : s->search.first.code;
}

static ckpt_task_fn other_body;
static ckpt_task_fn table_body;

static int end_table(struct ckpt_shard *s, int code)
{
	drop_tail(s);
	if (s->exhausted)
		return none_code(s);
	return may_search(s, code) ? ckpt_task_continue(&s->task, other_body) : code;
}

/* Without its table nothing can be had of an encoded shard. */
static int no_table_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_store_shut(s->store, &s->op, &s->file);
	CKPT_AWAIT(task, s->op.done);
	s->op.result = 0;
	drop_table(s);
	return end_table(s, s->table_code);
	CKPT_TASK_END(task);
}

/* The table of the encoded shard that is open. */
static int table_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	r = take_open(s);
	r = r < 0 ? r : begin_tail(s);
	while (r == 0 && read_tail(s)) {
		CKPT_AWAIT(task, s->op.done);
		r = take_tail(s);
	}
	r = r < 0 ? r : take_trailer(s);
	if (r == 0 && s->trailer.table_offset < s->tail_from) {
		r = make_tail(s, s->trailer.table_offset);
		while (r == 0 && read_tail(s)) {
			CKPT_AWAIT(task, s->op.done);
			r = take_tail(s);
		}
	}
	if (r == 0) {
		ckpt_task_job_start(&s->job, s->core->parts.env, task, table_work);
		CKPT_AWAIT(task, s->job.done);
		r = ckpt_task_job_take(&s->job, s->err);
	}
	s->table_code = r;
	return r == 0 ? end_table(s, 0) : ckpt_task_continue(task, no_table_body);
	CKPT_TASK_END(task);
}

/* The file of s->name. */
static int attempt_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	do {
		ckpt_shard_name_file(s, s->path);
		ckpt_error_clear(&s->said);
		ckpt_store_open(s->store, &s->op, s->path, &s->file);
		CKPT_AWAIT(task, s->op.done);
	} while (s->op.result == -ENOENT && ckpt_shard_search_turn(&s->search, &s->name));
	if (is_in_no_form(s))
		ckpt_name_shard(s->path, s->generation, s->step, s->rank->rank, s->name.attempt);
	if (s->name.form == CKPT_RANK_ENCODED && s->file.fd >= 0)
		return ckpt_task_continue(task, table_body);
	if (s->exhausted)
		return none_code(s);
	r = take_open(s);
	return may_search(s, r) ? ckpt_task_continue(task, other_body) : r;
	CKPT_TASK_END(task);
}

static int open_body(struct ckpt_task *task)
{
	ckpt_shard_search_shard(shard_of(task));
	return ckpt_task_continue(task, attempt_body);
}

/* No file is good. The one that is told is open again, for who can use a part of it. */
static int exhaust(struct ckpt_shard *s)
{
	s->exhausted = true;
	if (!s->search.first_open)
		return none_code(s);
	s->name = s->search.first_name;
	ckpt_shard_search_fix(&s->search);
	return ckpt_task_continue(&s->task, attempt_body);
}

static int other_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	keep_first(s);
	ckpt_shard_search_list(&s->search, task);
	do {
		CKPT_AWAIT(task, s->search.wait.done);
		r = next_file(s);
	} while (r > 0);
	if (r < 0 && r != -ENOENT)
		return r;
	if (s->cached.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->cached);
		CKPT_AWAIT(task, s->op.done);
	}
	if (s->file.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->file);
		CKPT_AWAIT(task, s->op.done);
	}
	ckpt_free(s->header_memory);
	s->header_memory = NULL;
	s->header = NULL;
	s->header_read = 0;
	drop_table(s);
	if (s->err->code != 0)
		return exhaust(s);
	return ckpt_task_continue(task, attempt_body);
	CKPT_TASK_END(task);
}

static int again_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);

	CKPT_TASK_BEGIN(task);
	if (s->file.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->file);
		CKPT_AWAIT(task, s->op.done);
	}
	drop_table(s);
	return ckpt_task_continue(task, attempt_body);
	CKPT_TASK_END(task);
}

static int share_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_store_open_cached(s->store, &s->op, s->path, &s->cached);
	CKPT_AWAIT(task, s->op.done);
	CKPT_TASK_END(task);
}

/* Its header. */

static void header_work(struct ckpt_job *job)
{
	struct ckpt_shard *s = CKPT_CONTAINER(job, struct ckpt_shard, job.job);
	const struct ckpt_layout *layout = s->index->layout;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];
		if (c->offset >= layout->header_bytes)
			break;
		struct ckpt_digest digest = ckpt_digest_of(s->header + c->offset, c->length);
		if (!ckpt_digest_equal(&digest, &c->digest)) {
			s->job.result =
				ckpt_bad_chunk_fail(&s->job.error, layout, i, s->path, s->store);
			return;
		}
	}
	s->job.result = ckpt_index_check_header(
		s->index, s->header, layout->header_bytes, s->path, &s->job.error);
}

static int make_header(struct ckpt_shard *s)
{
	const struct ckpt_layout *layout = s->index->layout;

	/* The chunks of the header end where it ends: the decoder has compared them with the rule. */
	CKPT_ASSERT(s->store->align <= HEADER_ALIGN);
	/* So has that of the index, whose bound is about what follows the header's length. */
	CKPT_ASSERT(layout->header_bytes <= CKPT_HEADER_MAX + sizeof(uint64_t));
	s->header_memory = ckpt_alloc((size_t)layout->header_bytes + HEADER_ALIGN);
	if (!s->header_memory)
		return ckpt_fail(s->err, -ENOMEM, "out of memory for the header of %s", s->path);
	s->header = s->header_memory + (0 - (uintptr_t)s->header_memory) % HEADER_ALIGN;
	return 0;
}

static int header_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);
	uint64_t length;
	int r;

	CKPT_TASK_BEGIN(task);
	if (s->encoded)
		return 0;
	r = make_header(s);
	if (r < 0)
		return r;
	while (s->header_read < s->index->layout->header_bytes) {
		length = ckpt_min_u64(s->core->config.block_bytes,
			s->index->layout->header_bytes - s->header_read);
		ckpt_store_read(s->store, &s->op, &s->file, s->header + s->header_read, length,
			s->header_read, -1);
		CKPT_AWAIT(task, s->op.done);
		if (s->op.result < 0)
			return fail_read(s, s->op.result);
		if (*s->stop)
			return *s->stop;
		s->header_read += s->core->config.block_bytes;
	}
	ckpt_task_job_start(&s->job, s->core->parts.env, task, header_work);
	CKPT_AWAIT(task, s->job.done);
	return ckpt_task_job_take(&s->job, s->err);
	CKPT_TASK_END(task);
}

static int shut_body(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);

	CKPT_TASK_BEGIN(task);
	if (s->file.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->file);
		CKPT_AWAIT(task, s->op.done);
	}
	if (s->cached.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->cached);
		CKPT_AWAIT(task, s->op.done);
	}
	if (s->sole.fd >= 0) {
		ckpt_store_shut(s->store, &s->op, &s->sole);
		CKPT_AWAIT(task, s->op.done);
	}
	CKPT_TASK_END(task);
}

static void shard_done(struct ckpt_task *task)
{
	struct ckpt_shard *s = shard_of(task);

	/* Whatever is worded of it, now or later. */
	s->err->step = (int64_t)s->step;
	s->err->rank = (int32_t)s->rank->rank;
	ckpt_task_wake(s->waiter);
}

void ckpt_shard_init(struct ckpt_shard *shard)
{
	shard->file.fd = -1;
	shard->cached.fd = -1;
	shard->sole.fd = -1;
}

void ckpt_shard_start(struct ckpt_shard *s, ckpt_task_fn *body)
{
	if (!s->store)
		s->store = s->core->store;
	ckpt_error_clear(&s->said);
	ckpt_store_op_init(&s->op, &s->task, &s->said);
	s->op.stop = s->stop;
	ckpt_task_start(&s->task, &s->core->sched, body, shard_done);
}

void ckpt_shard_start_index(struct ckpt_shard *shard)
{
	ckpt_shard_start(shard, index_body);
}

void ckpt_shard_start_open(struct ckpt_shard *shard)
{
	CKPT_ASSERT(shard->index && shard->file.fd < 0);
	ckpt_shard_start(shard, open_body);
}

void ckpt_shard_start_again(struct ckpt_shard *shard, const struct ckpt_rank_file_name *name)
{
	CKPT_ASSERT(shard->index && shard->cached.fd < 0);
	shard->name = *name;
	shard->exhausted = false;
	shard->lister = NULL;
	ckpt_shard_search_fix(&shard->search);
	ckpt_shard_start(shard, again_body);
}

static int none_body(struct ckpt_task *task)
{
	(void)task;
	return -ENOENT;
}

void ckpt_shard_start_other(struct ckpt_shard *shard)
{
	CKPT_ASSERT(shard->index && shard->err->code != 0);
	shard->other = true;
	ckpt_shard_start(shard, shard->lister && !shard->exhausted ? other_body : none_body);
}

void ckpt_shard_start_share(struct ckpt_shard *shard)
{
	CKPT_ASSERT(shard->file.fd >= 0 && shard->cached.fd < 0);
	ckpt_shard_start(shard, share_body);
}

void ckpt_shard_start_header(struct ckpt_shard *shard)
{
	CKPT_ASSERT(shard->file.fd >= 0 && !shard->header_memory);
	ckpt_shard_start(shard, header_body);
}

void ckpt_shard_start_shut(struct ckpt_shard *shard)
{
	ckpt_shard_start(shard, shut_body);
}

void ckpt_shard_clear(struct ckpt_shard *shard)
{
	CKPT_ASSERT(!ckpt_task_active(&shard->task) && shard->file.fd < 0 && shard->cached.fd < 0 &&
		    shard->sole.fd < 0);
	ckpt_index_free(shard->index);
	ckpt_free(shard->index_bytes);
	ckpt_free(shard->header_memory);
	drop_table(shard);
	drop_tail(shard);
	*shard = (struct ckpt_shard){0};
	ckpt_shard_init(shard);
}
