/* SPDX-License-Identifier: Apache-2.0 */
/* What a store remembers of its remote store. */
#include "engine/copy/record_writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/copy/upload_entries.h"
#include "engine/lineage/lineage.h"

#define PAUSE_NS  UINT64_C(5000000000) /* between two records */
#define NS_PER_MS 1000000

static struct ckpt_record_writer *record_writer_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_record_writer, task);
}

static const char *url_of(const struct ckpt_record_writer *r)
{
	return r->core->parts.remote.url;
}

static bool before(const struct ckpt_record_step *s, uint64_t generation, uint64_t step)
{
	return s->generation < generation || (s->generation == generation && s->step < step);
}

/* Whether it may have gone off the list without being there. */
static bool may_be_unsent(const struct ckpt_record_writer *r, const struct ckpt_scan_step *s)
{
	const struct ckpt_record_step one = {.generation = s->generation, .step = s->step};

	return r->unsent.generation > 0 && !before(&one, r->unsent.generation, r->unsent.step);
}

static bool is_for_remote(const struct ckpt_record_writer *r, const struct ckpt_scan_step *s)
{
	return s->state == CKPT_STEP_COMMITTED && s->in_lineage &&
	       ckpt_upload_queue_takes(r->core, s->step);
}

/* What the last one says. */

/* The list was ended before that was known: what it says to be there is not among the unsent. */
static void pass_known(struct ckpt_record_writer *r, const struct ckpt_remote_record *record)
{
	const struct ckpt_scan *scan = &r->core->lineage->scan;

	for (size_t i = scan->step_count; i-- > 0;) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (!may_be_unsent(r, s) || !is_for_remote(r, s) ||
			ckpt_remote_record_state(record, s->generation, s->step) ==
				CKPT_REMOTE_UPLOADED)
			continue;
		r->unsent = (struct ckpt_record_step){.generation = s->generation, .step = s->step};
		return;
	}
	r->unsent = (struct ckpt_record_step){0};
}

/* A step that was found here: whoever uploaded before this process has seen it there. */
static void take_known(struct ckpt_record_writer *r, const struct ckpt_remote_record *record)
{
	for (struct ckpt_upload_entry *e = r->core->upload_queue->first; e; e = e->next)
		e->known = e->all && ckpt_remote_record_state(record, e->generation, e->step) ==
					     CKPT_REMOTE_UPLOADED;
	pass_known(r, record);
	if (r->uploaded_generation == record->uploaded_generation &&
		r->uploaded_step == record->uploaded_step)
		r->uploaded_wall_ms = record->uploaded_wall_ms;
	if (r->uploaded_generation == 0) {
		r->uploaded_generation = record->uploaded_generation;
		r->uploaded_step = record->uploaded_step;
		r->uploaded_wall_ms = record->uploaded_wall_ms;
	}
	if (record->code < 0)
		r->failed_before_ms = record->since_ms;
}

static bool is_same_remote(
	const struct ckpt_record_writer *r, const struct ckpt_remote_record *record)
{
	return strcmp(record->remote, url_of(r)) == 0;
}

/* Of the run's own, the first that is read: what this process finds out comes after it. */
static void catch_up(struct ckpt_record_writer *r)
{
	const struct ckpt_remote_record *record = &r->reader.record;

	if (r->caught_up)
		return;
	r->caught_up = true;
	if (r->reader.found && is_same_remote(r, record) &&
		strcmp(record->run_id, r->core->lineage->marker.run_id) == 0)
		take_known(r, record);
}

/*
 * A later generation's is not this process's to replace. And one that has claimed nothing (`ckpt upload` to another
 * place, once) does not say where the steps of the job go.
 */
static bool may_write(const struct ckpt_record_writer *r)
{
	const struct ckpt_remote_record *record = &r->reader.record;
	uint64_t newest = ckpt_scan_newest_claim(&r->core->lineage->scan);

	if (r->core->lineage->fenced || newest == 0 || r->reader.newest == CKPT_STEP_MAX)
		return false;
	if (!r->reader.found || strcmp(record->run_id, r->core->lineage->marker.run_id) != 0)
		return true;
	return record->generation <= newest &&
	       (r->core->lineage->generation > 0 || is_same_remote(r, record));
}

/* The next one. */

/* That none of the unsent is before. */
static void take_newest(const struct ckpt_record_writer *r, struct ckpt_remote_record *record)
{
	const struct ckpt_scan *scan = &r->core->lineage->scan;

	/* Newest first. */
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if ((s->state != CKPT_STEP_COMMITTED && s->state != CKPT_STEP_QUARANTINED) ||
			may_be_unsent(r, s))
			continue;
		record->known_generation = s->generation;
		record->known_step = s->step;
		return;
	}
}

static void put_waiting(struct ckpt_remote_record *record, uint64_t generation, uint64_t step)
{
	if (record->waiting_count == CKPT_RECORD_WAITING_MAX) {
		record->waiting_more++;
		return;
	}
	record->waiting[record->waiting_count++] =
		(struct ckpt_record_step){.generation = generation, .step = step};
}

static void take_waiting(const struct ckpt_upload_queue *u, struct ckpt_remote_record *record)
{
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		if (!e->known)
			put_waiting(record, e->generation, e->step);
}

static bool may_be_absent(const struct ckpt_record_writer *r, const struct ckpt_scan_step *s)
{
	for (size_t i = 0; i < r->absent_count; i++)
		if (r->absent[i].generation == s->generation && r->absent[i].step == s->step)
			return true;
	return r->absent_more > 0 && !before(&r->left_out, s->generation, s->step);
}

/* Nothing is sent any more, and there is no list: what was committed since the newest that is there waits. */
static void take_left(const struct ckpt_record_writer *r, struct ckpt_remote_record *record)
{
	const struct ckpt_record_step there = {
		.generation = r->uploaded_generation, .step = r->uploaded_step};
	const struct ckpt_scan *scan = &r->core->lineage->scan;

	for (size_t i = scan->step_count; i-- > 0;) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (may_be_unsent(r, s) && is_for_remote(r, s) && !may_be_absent(r, s) &&
			before(&there, s->generation, s->step))
			put_waiting(record, s->generation, s->step);
	}
}

static int compose(
	struct ckpt_record_writer *r, struct ckpt_remote_record *record, struct ckpt_buf *out)
{
	const struct ckpt_core *core = r->core;
	const struct ckpt_upload_queue *u = core->upload_queue;
	size_t length = strlen(r->error.message);

	record->waiting = ckpt_alloc_array(
		ckpt_min_u64((u->halted ? core->lineage->scan.step_count : u->count) + 1,
			CKPT_RECORD_WAITING_MAX),
		sizeof(*record->waiting));
	if (!record->waiting)
		return -ENOMEM;
	memcpy(record->run_id, core->lineage->marker.run_id, sizeof(record->run_id));
	(void)snprintf(record->remote, sizeof(record->remote), "%s", url_of(r));
	memcpy(record->node, core->config.node, sizeof(record->node));
	record->every = u->every;
	record->generation = ckpt_scan_newest_claim(&core->lineage->scan);
	record->wall_ms = ckpt_env_wall_ms(core->parts.env);
	record->uploaded_generation = r->uploaded_generation;
	record->uploaded_step = r->uploaded_step;
	record->uploaded_wall_ms = r->uploaded_wall_ms;
	take_newest(r, record);
	if (u->halted)
		take_left(r, record);
	else
		take_waiting(u, record);
	memcpy(record->absent, r->absent, r->absent_count * sizeof(r->absent[0]));
	record->absent_count = r->absent_count;
	record->absent_more = r->absent_more;
	record->code = r->error.code;
	record->tries = r->tries;
	record->since_ms = r->since_ms;
	record->next_ms = r->next_ms;
	memcpy(record->reason, r->error.message,
		ckpt_utf8_cut(r->error.message, length, sizeof(record->reason) - 1));
	return ckpt_remote_record_encode(record, out);
}

/* From the list as it is now. */
static int put_together(struct ckpt_record_writer *r, struct ckpt_buf *out)
{
	struct ckpt_remote_record *record = ckpt_alloc(sizeof(*record));

	if (!record)
		return -ENOMEM;
	int code = compose(r, record, out);
	ckpt_remote_record_clear(record);
	ckpt_free(record);
	if (code < 0)
		ckpt_buf_free(out);
	r->dirty = false;
	return code;
}

/* Without one everything goes on as ever: it is said once, and tried again when something changes. */
static void take_failure(struct ckpt_record_writer *r, int code)
{
	if (!r->failing)
		ckpt_log(r->core->parts.log, CKPT_LOG_WARN,
			"cannot write into %s what of it is in %s, for `ckpt ls` and `ckpt "
			"upload`: %s",
			r->core->parts.label, r->core->upload_queue->dest->label,
			ckpt_code_text(code));
	r->failing = true;
	r->dirty = false;
}

static void take_written(struct ckpt_record_writer *r)
{
	int code = r->op.result;

	ckpt_buf_free(&r->buf);
	/* Another process has written one of that number: this is the next, soon. */
	if (code == -EEXIST)
		r->dirty = true;
	else if (code < 0)
		take_failure(r, code);
	else
		r->failing = false;
}

static ckpt_task_fn wait_body;
static ckpt_task_fn write_body;

/* Those before it. */
static bool next_old(struct ckpt_record_writer *r)
{
	r->old = ckpt_record_next_old(&r->reader.names, r->old, r->number);
	return r->old;
}

static int remove_body(struct ckpt_task *task)
{
	struct ckpt_record_writer *r = record_writer_of(task);

	CKPT_TASK_BEGIN(task);
	for (r->old = NULL; next_old(r);) {
		ckpt_store_remove(r->core->store, &r->op, r->old);
		CKPT_AWAIT(task, r->op.done);
	}
	return ckpt_task_continue(task, wait_body);
	CKPT_TASK_END(task);
}

static int write_body(struct ckpt_task *task)
{
	struct ckpt_record_writer *r = record_writer_of(task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	r->number = r->reader.newest + 1;
	ckpt_name_remote(path, r->number);
	ckpt_store_publish(r->core->store, &r->op, path, r->buf.data, r->buf.len, NULL);
	CKPT_AWAIT(task, r->op.done);
	take_written(r);
	return ckpt_task_continue(task, r->op.result < 0 ? wait_body : remove_body);
	CKPT_TASK_END(task);
}

/* Into `buf`; it stays empty if nothing is to be written. At the end that was put together before the list went. */
static int take_next(struct ckpt_record_writer *r)
{
	int code = r->reader.task.result;

	if (code < 0)
		return code;
	catch_up(r);
	bool may = may_write(r);
	if (may && !r->stop)
		return put_together(r, &r->buf);
	r->dirty = false;
	if (!may)
		return 0;
	r->buf = r->last;
	r->last = (struct ckpt_buf){0};
	return 0;
}

static int read_body(struct ckpt_task *task)
{
	struct ckpt_record_writer *r = record_writer_of(task);

	CKPT_TASK_BEGIN(task);
	r->next_ns = ckpt_env_now(r->core->parts.env) + PAUSE_NS;
	ckpt_record_reader_clear(&r->reader);
	ckpt_record_reader_start(&r->reader, r->core->store, &r->core->sched, task);
	CKPT_AWAIT(task, r->reader.task.finished);
	int code = take_next(r);
	if (r->stop)
		ckpt_buf_free(&r->last);
	if (code < 0)
		take_failure(r, code);
	return ckpt_task_continue(task, r->buf.len > 0 ? write_body : wait_body);
	CKPT_TASK_END(task);
}

/* Whether its time has come; else the timer is set for that. */
static bool is_due(struct ckpt_record_writer *r)
{
	uint64_t now_ns = ckpt_env_now(r->core->parts.env);

	ckpt_core_timer_clear(r->core, &r->timer);
	if (r->stop || (r->dirty && r->next_ns <= now_ns))
		return true;
	if (r->dirty)
		ckpt_core_timer_set(r->core, &r->timer, r->next_ns);
	return false;
}

static int wait_body(struct ckpt_task *task)
{
	struct ckpt_record_writer *r = record_writer_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, is_due(r));
	if (r->stop && r->last.len == 0)
		return 0;
	return ckpt_task_continue(task, read_body);
	CKPT_TASK_END(task);
}

static void record_writer_done(struct ckpt_task *task)
{
	struct ckpt_record_writer *r = record_writer_of(task);

	ckpt_record_reader_clear(&r->reader);
	ckpt_task_wake(r->core->closer);
}

/* From the upload queue. */

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_record_writer, timer)->task);
}

void ckpt_record_writer_start(struct ckpt_record_writer *record_writer, struct ckpt_core *core)
{
	record_writer->core = core;
	record_writer->timer.fire = timer_fired;
	record_writer->dirty = true;
	if (!core->parts.remote.url || !ckpt_core_owns_store(core))
		return;
	ckpt_store_op_init(&record_writer->op, &record_writer->task, NULL);
	ckpt_task_start(&record_writer->task, &core->sched, wait_body, record_writer_done);
}

void ckpt_record_writer_touch(struct ckpt_record_writer *record_writer)
{
	record_writer->dirty = true;
	ckpt_task_wake(&record_writer->task);
}

static void hurry(struct ckpt_record_writer *r)
{
	r->next_ns = 0;
	ckpt_record_writer_touch(r);
}

void ckpt_record_writer_claimed(struct ckpt_record_writer *record_writer)
{
	hurry(record_writer);
}

/* The first of `absent` that is not before it. */
static size_t place_of(const struct ckpt_record_writer *r, uint64_t generation, uint64_t step)
{
	size_t at = 0;

	while (at < r->absent_count && before(&r->absent[at], generation, step))
		at++;
	return at;
}

static bool is_absent_at(
	const struct ckpt_record_writer *r, size_t at, uint64_t generation, uint64_t step)
{
	return at < r->absent_count && r->absent[at].generation == generation &&
	       r->absent[at].step == step;
}

/* It was sent again. */
static void drop_absent(struct ckpt_record_writer *r, uint64_t generation, uint64_t step)
{
	size_t at = place_of(r, generation, step);

	if (!is_absent_at(r, at, generation, step))
		return;
	r->absent_count--;
	memmove(r->absent + at, r->absent + at + 1, (r->absent_count - at) * sizeof(r->absent[0]));
}

void ckpt_record_writer_there(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step)
{
	struct ckpt_record_writer *r = record_writer;

	drop_absent(r, generation, step);
	if (r->uploaded_generation < generation ||
		(r->uploaded_generation == generation && r->uploaded_step < step) ||
		r->uploaded_wall_ms == 0) {
		r->uploaded_generation = generation;
		r->uploaded_step = step;
		r->uploaded_wall_ms = ckpt_env_wall_ms(r->core->parts.env);
	}
	ckpt_record_writer_touch(r);
}

/* Of too many the newest stay. */
static void leave_absent_out(struct ckpt_record_writer *r, const struct ckpt_record_step *s)
{
	r->absent_more++;
	if (r->left_out.generation == 0 || before(&r->left_out, s->generation, s->step))
		r->left_out = *s;
}

void ckpt_record_writer_absent(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step, int code)
{
	const struct ckpt_record_step one = {.generation = generation, .step = step, .code = code};
	struct ckpt_record_writer *r = record_writer;
	size_t at = place_of(r, generation, step);
	struct ckpt_record_step *s = &r->absent[at];

	ckpt_record_writer_touch(r);
	if (is_absent_at(r, at, generation, step)) {
		/* That the rest of one that failed was removed there as well is no news. */
		s->code = code ? code : s->code;
		return;
	}
	/* The list begins behind all that are not in it, also when it has become shorter. */
	bool full = r->absent_count == CKPT_RECORD_ABSENT_MAX;
	if ((full && at == 0) || (r->absent_more > 0 && !before(&r->left_out, generation, step))) {
		leave_absent_out(r, &one);
		return;
	}
	if (full) {
		leave_absent_out(r, &r->absent[0]);
		at--;
		memmove(r->absent, r->absent + 1, at * sizeof(one));
	} else {
		memmove(s + 1, s, (r->absent_count - at) * sizeof(one));
		r->absent_count++;
	}
	r->absent[at] = one;
}

void ckpt_record_writer_unsent(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step)
{
	struct ckpt_record_step *unsent = &record_writer->unsent;

	if (unsent->generation == 0 || !before(unsent, generation, step))
		*unsent = (struct ckpt_record_step){.generation = generation, .step = step};
	ckpt_record_writer_touch(record_writer);
}

void ckpt_record_writer_failed(struct ckpt_record_writer *record_writer,
	const struct ckpt_error *error, uint64_t tries, uint64_t next_ns)
{
	struct ckpt_record_writer *r = record_writer;
	struct ckpt_env *env = r->core->parts.env;
	uint64_t now_ms = ckpt_env_wall_ms(env);
	bool first = r->error.code == 0;

	if (first)
		r->since_ms = r->failed_before_ms ? r->failed_before_ms : now_ms;
	r->error = *error;
	r->tries = tries;
	r->next_ms = next_ns ? now_ms + (next_ns - ckpt_env_now(env)) / NS_PER_MS : 0;
	if (first || next_ns == 0)
		hurry(r);
	else
		ckpt_record_writer_touch(r);
}

void ckpt_record_writer_succeeded(struct ckpt_record_writer *record_writer)
{
	bool changed = record_writer->error.code < 0;

	record_writer->failed_before_ms = 0;
	ckpt_error_clear(&record_writer->error);
	record_writer->tries = 0;
	if (changed)
		ckpt_record_writer_touch(record_writer);
}

void ckpt_record_writer_stop(struct ckpt_record_writer *record_writer)
{
	struct ckpt_record_writer *r = record_writer;

	if (!ckpt_task_active(&r->task) || r->stop)
		return;
	/* Who has not even read the last one knows no more than that. */
	if (r->dirty && r->caught_up)
		(void)put_together(r, &r->last);
	r->stop = true;
	ckpt_task_wake(&r->task);
}

bool ckpt_record_writer_ended(const struct ckpt_record_writer *record_writer)
{
	return !ckpt_task_active(&record_writer->task);
}

void ckpt_record_writer_close(struct ckpt_record_writer *record_writer)
{
	if (!record_writer->core)
		return;
	CKPT_ASSERT(ckpt_record_writer_ended(record_writer));
	ckpt_core_timer_clear(record_writer->core, &record_writer->timer);
	ckpt_buf_free(&record_writer->last);
	ckpt_buf_free(&record_writer->buf);
}
