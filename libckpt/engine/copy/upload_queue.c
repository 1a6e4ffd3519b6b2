/* SPDX-License-Identifier: Apache-2.0 */
/* What is uploaded next. */
#include "engine/copy/upload_queue.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/record_writer.h"
#include "engine/copy/remote_gc.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"

static struct ckpt_upload_queue *upload_queue_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_upload_queue, task);
}

/* Takes over a hold on `e`. */
static void put(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e, uint64_t generation,
	uint64_t step, uint64_t bytes)
{
	struct ckpt_upload_entry **link = ckpt_upload_queue_find(u, generation, step);

	CKPT_ASSERT(!*link || (*link)->generation != generation || (*link)->step != step);
	e->generation = generation;
	e->step = step;
	e->bytes = bytes;
	e->next = *link;
	*link = e;
	u->count++;
}

/* What is durable here goes by itself the next time, and whoever waits for all is told that it does not now. */
static void leave_out(struct ckpt_upload_queue *u, const struct ckpt_scan_step *s)
{
	struct ckpt_error why = {.size = sizeof(why)};

	(void)ckpt_fail(&why, -ENOMEM,
		"out of memory: step %llu of %s is uploaded when the job is started again",
		(unsigned long long)s->step, u->core->parts.label);
	why.step = (int64_t)s->step;
	if (u->lost.code == 0)
		u->lost = why;
	ckpt_log(u->core->parts.log, CKPT_LOG_ERROR, "%s", why.message);
	ckpt_record_writer_unsent(u->record_writer, s->generation, s->step);
}

/* A step that was there before. NULL: it is left out. */
static struct ckpt_upload_entry *put_found(
	struct ckpt_upload_queue *u, const struct ckpt_scan_step *s)
{
	struct ckpt_upload_entry *e = ckpt_upload_entry_new();

	if (!e) {
		leave_out(u, s);
		return NULL;
	}
	e->all = true;
	put(u, e, s->generation, s->step, s->bytes);
	return e;
}

/* Trying again. */

static void timer_fired(struct ckpt_timer *timer)
{
	ckpt_task_wake(&CKPT_CONTAINER(timer, struct ckpt_upload_queue, timer)->task);
}

static void pause_until(struct ckpt_upload_queue *u, uint64_t at_ns)
{
	u->timer.fire = timer_fired;
	ckpt_core_timer_set(u->core, &u->timer, at_ns);
}

static uint64_t now(const struct ckpt_upload_queue *u)
{
	return ckpt_env_now(u->core->parts.env);
}

/* Steps. */

static bool must_place(const struct ckpt_upload_queue *u)
{
	return !u->placed ||
	       u->placed_generation != ckpt_scan_newest_claim(&u->core->lineage->scan);
}

static void start_place(struct ckpt_upload_queue *u)
{
	ckpt_error_clear(&u->error);
	u->placed = false;
	u->placed_generation = ckpt_scan_newest_claim(&u->core->lineage->scan);
	u->place = (struct ckpt_upload_dest){.core = u->core,
		.dest = u->dest,
		.stop = &u->stop,
		.err = &u->error,
		.waiter = &u->task};
	ckpt_upload_dest_start(&u->place);
}

/* Only of what is here of earlier generations: nobody waits for it. */
static bool must_upload_filter(const struct ckpt_upload_queue *u)
{
	const struct ckpt_upload_entry *e = u->first;

	while (e && !e->all)
		e = e->next;
	return e && !u->sieved && u->core->config.remote_keep_last > 0;
}

static void start_upload_filter(struct ckpt_upload_queue *u)
{
	ckpt_error_clear(&u->error);
	u->upload_filter = (struct ckpt_upload_filter){
		.core = u->core, .dest = u->dest, .err = &u->error, .waiter = &u->task};
	ckpt_upload_filter_start(&u->upload_filter);
}

static void take_upload_filter(struct ckpt_upload_queue *u)
{
	struct ckpt_upload_entry *e = u->first;
	int r = u->upload_filter.task.result;

	if (r < 0)
		ckpt_upload_queue_take_failure(u, NULL, r);
	while (r == 0 && e) {
		struct ckpt_upload_entry *next = e->next;
		if (e->all && !e->parent &&
			ckpt_upload_filter_holds_back(&u->upload_filter, e->generation, e->step)) {
			ckpt_log(u->core->parts.log, CKPT_LOG_INFO,
				"step %llu of %s is not sent: retention in %s has newer ones",
				(unsigned long long)e->step, u->core->parts.label, u->dest->label);
			ckpt_record_writer_absent(u->record_writer, e->generation, e->step, 0);
			ckpt_upload_queue_end_entry(u, e);
		}
		e = next;
	}
	u->sieved = r == 0;
	ckpt_upload_filter_clear(&u->upload_filter);
	ckpt_upload_queue_ask_retention(u);
}

static void start_upload(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	ckpt_error_clear(&u->error);
	u->current = e;
	e->buried = false;
	u->begun = atomic_load(&u->bytes);
	u->current_generation = u->placed_generation;
	u->upload = (struct ckpt_upload){.core = u->core,
		.dest = u->dest,
		.generation = e->generation,
		.step = e->step,
		.all = e->all,
		.parent = e->parent || e->newest,
		.left = e->left,
		.bytes_left = &u->bytes_left,
		.stop = &u->stop,
		.err = &u->error,
		.counter = &u->bytes,
		.rate_limit = u->core->parts.remote.bucket ? NULL : &u->rate_limit,
		.waiter = &u->task};
	ckpt_upload_start(&u->upload);
}

/* The oldest that may be tried now; NULL: none, and `ret_at` says when one may. */
static struct ckpt_upload_entry *next_entry(struct ckpt_upload_queue *u, uint64_t *ret_at)
{
	uint64_t at = UINT64_MAX;

	for (struct ckpt_upload_entry *e = u->first; e; e = e->next) {
		if (e->retry_ns <= now(u))
			return e;
		at = ckpt_min_u64(at, e->retry_ns);
	}
	*ret_at = at;
	return NULL;
}

/* Somebody else has the store: what is in it is his to upload. */
static void look_at_fence(struct ckpt_upload_queue *u)
{
	if (!u->core->lineage->fenced || u->halted || u->stop)
		return;
	ckpt_error_clear(&u->error);
	ckpt_upload_queue_halt(
		u, ckpt_fail(&u->error, CKPT_EFENCED,
			   "a later generation has taken over the store %s", u->core->parts.label));
}

/* Whether there is something to do now; else the timer is set for when there may be. */
static bool is_due(struct ckpt_upload_queue *u)
{
	uint64_t at = UINT64_MAX;
	bool work = must_place(u) ? u->first || u->core->lineage->generation
				  : next_entry(u, &at) != NULL;

	ckpt_core_timer_clear(u->core, &u->timer);
	if (u->stop)
		return true;
	look_at_fence(u);
	if (u->halted)
		return false;
	if (work && u->pause_ns <= now(u))
		return true;
	if (work)
		at = u->pause_ns;
	if (at < UINT64_MAX)
		pause_until(u, ckpt_max_u64(at, u->pause_ns));
	return false;
}

static int upload_queue_body(struct ckpt_task *task)
{
	struct ckpt_upload_queue *u = upload_queue_of(task);
	uint64_t at;

	CKPT_TASK_BEGIN(task);
	for (;;) {
		CKPT_AWAIT(task, is_due(u));
		if (u->stop)
			return u->stop;
		if (must_place(u)) {
			start_place(u);
			CKPT_AWAIT(task, u->place.task.finished);
			u->placed = u->place.task.result == 0;
			if (!u->placed)
				ckpt_upload_queue_take_failure(u, NULL, u->place.task.result);
			else
				ckpt_upload_queue_succeed(u);
			ckpt_remote_gc_wake(u->core);
			continue;
		}
		if (must_upload_filter(u)) {
			start_upload_filter(u);
			CKPT_AWAIT(task, u->upload_filter.task.finished);
			take_upload_filter(u);
			continue;
		}
		start_upload(u, next_entry(u, &at));
		CKPT_AWAIT(task, u->upload.task.finished);
		ckpt_upload_queue_take_upload(u);
	}
	CKPT_TASK_END(task);
}

static void word_closed(const struct ckpt_upload_queue *u, struct ckpt_error *err)
{
	ckpt_error_clear(err);
	(void)ckpt_fail(err, CKPT_ECLOSED,
		"the engine of %s was closed before it was uploaded: that is done when the job is "
		"started again, or by `ckpt upload`",
		u->core->parts.label);
}

static void upload_queue_done(struct ckpt_task *task)
{
	struct ckpt_upload_queue *u = upload_queue_of(task);
	struct ckpt_error closed;

	ckpt_record_writer_stop(u->record_writer);
	word_closed(u, &closed);
	ckpt_upload_queue_end_all(u, &closed);
	ckpt_task_wake(u->core->closer);
}

/* From outside. */

static void wake(struct ckpt_upload_queue *u)
{
	ckpt_task_wake(&u->task);
}

int ckpt_upload_queue_open(struct ckpt_core *core, uint64_t every)
{
	if (!core->parts.remote.label)
		return 0;
	struct ckpt_upload_queue *u = ckpt_alloc(sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->record_writer = ckpt_alloc(sizeof(*u->record_writer));
	int r = u->record_writer ? ckpt_core_open_store(core, &core->parts.remote, &u->dest)
				 : -ENOMEM;
	if (r < 0) {
		ckpt_free(u->record_writer);
		ckpt_free(u);
		return r;
	}
	u->dest->tier = "remote";
	u->core = core;
	u->every = every;
	ckpt_rate_limit_init(&u->rate_limit, core, core->config.remote_bytes_per_s);
	ckpt_error_clear(&u->error);
	ckpt_error_clear(&u->lost);
	ckpt_error_clear(&u->record_writer->error);
	core->upload_queue = u;
	r = ckpt_remote_gc_open(core, u->dest);
	if (core->remote_gc)
		u->watcher = &core->remote_gc->task;
	return r;
}

/* Steps of earlier generations: whoever keeps a store sends what is there. */
void ckpt_upload_queue_begin(struct ckpt_core *core)
{
	struct ckpt_upload_queue *u = core->upload_queue;
	const struct ckpt_scan *scan = &core->lineage->scan;

	if (!u)
		return;
	for (size_t i = 0; i < scan->step_count && ckpt_core_owns_store(core); i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->state != CKPT_STEP_COMMITTED || !s->in_lineage ||
			!ckpt_upload_queue_takes(core, s->step))
			continue;
		struct ckpt_upload_entry *e = put_found(u, s);
		if (e)
			e->newest = u->count == 1;
	}
	ckpt_record_writer_start(u->record_writer, core);
	ckpt_task_start(&u->task, &core->sched, upload_queue_body, upload_queue_done);
	ckpt_remote_gc_begin(core);
}

void ckpt_upload_queue_add(struct ckpt_core *core, struct ckpt_upload_entry *e, uint64_t generation,
	uint64_t step, uint64_t bytes, struct ckpt_staged_shard *left)
{
	struct ckpt_upload_queue *u = core->upload_queue;

	CKPT_ASSERT(ckpt_upload_queue_takes(core, step) == (e != NULL));
	if (!e) {
		ckpt_staged_shard_free(left);
		return;
	}
	atomic_fetch_add(&e->owners, 1);
	put(u, e, generation, step, bytes);
	u->yielded = false;
	e->left = left;
	if (u->stop || u->halted) {
		if (u->stop) {
			word_closed(u, &e->error);
		} else {
			e->error = u->error;
			core->stats.uploads_failed++;
		}
		ckpt_record_writer_unsent(u->record_writer, generation, step);
		ckpt_upload_queue_end_entry(u, e);
	}
	ckpt_record_writer_touch(u->record_writer);
	wake(u);
}

void ckpt_upload_queue_yield(struct ckpt_core *core)
{
	struct ckpt_upload_queue *u = core->upload_queue;

	if (!u || u->yielded || !u->first)
		return;
	u->yielded = true;
	ckpt_log(core->parts.log, CKPT_LOG_ERROR,
		"%s is full: of the %zu steps that are not in %s yet, retention removes what it "
		"would have removed without it",
		core->parts.label, u->count, u->dest->label);
	ckpt_upload_queue_ask_retention(u);
}

/* The newest of the lineage that goes there. If none does, what the job goes on from: something of it is to be there. */
static const struct ckpt_scan_step *find_parent(struct ckpt_core *core)
{
	struct ckpt_scan *scan = &core->lineage->scan;

	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->in_lineage && s->state == CKPT_STEP_COMMITTED &&
			ckpt_upload_queue_takes(core, s->step))
			return s;
	}
	return ckpt_scan_find(scan, core->lineage->parent_generation, core->lineage->parent_step);
}

/*
 * What the upload filter has held back, or retention there removed, by the lineage before. If it is there that costs one
 * request.
 */
static void put_parent(struct ckpt_upload_queue *u)
{
	struct ckpt_core *core = u->core;
	const struct ckpt_scan_step *s = find_parent(core);

	if (!s || s->state != CKPT_STEP_COMMITTED || !ckpt_core_owns_store(core) || u->stop ||
		u->halted)
		return;
	struct ckpt_upload_entry *e = *ckpt_upload_queue_find(u, s->generation, s->step);
	if (!e || e->generation != s->generation || e->step != s->step)
		e = put_found(u, s);
	if (!e)
		return;
	e->parent = true;
	e->since_ns = 0;
}

/* What a lost node's store had of them does not come any more: whoever waits for them would wait for ever. */
static void drop_lost(struct ckpt_upload_queue *u)
{
	struct ckpt_upload_entry *e = u->first;

	while (e) {
		struct ckpt_upload_entry *next = e->next;
		if (e != u->current && ckpt_upload_queue_is_lost(u, e))
			ckpt_upload_queue_end_lost(u, e);
		e = next;
	}
}

void ckpt_upload_queue_note_claim(struct ckpt_core *core)
{
	if (!core->upload_queue)
		return;
	put_parent(core->upload_queue);
	drop_lost(core->upload_queue);
	ckpt_remote_gc_note_claim(core);
	ckpt_record_writer_claimed(core->upload_queue->record_writer);
	wake(core->upload_queue);
}

void ckpt_upload_queue_stop(struct ckpt_core *core)
{
	struct ckpt_upload_queue *u = core->upload_queue;

	if (!u)
		return;
	ckpt_remote_gc_stop(core);
	u->stop = CKPT_ECLOSED;
	ckpt_shard_copy_wake(&u->upload.copy);
	wake(u);
}

bool ckpt_upload_queue_ended(const struct ckpt_core *core)
{
	return !core->upload_queue ||
	       (!ckpt_task_active(&core->upload_queue->task) && ckpt_remote_gc_ended(core) &&
		       ckpt_record_writer_ended(core->upload_queue->record_writer));
}

void ckpt_upload_queue_close(struct ckpt_core *core)
{
	struct ckpt_upload_queue *u = core->upload_queue;

	if (!u)
		return;
	CKPT_ASSERT(ckpt_upload_queue_ended(core));
	ckpt_remote_gc_close(core);
	ckpt_core_timer_clear(core, &u->timer);
	ckpt_record_writer_close(u->record_writer);
	ckpt_store_close(u->dest);
	ckpt_free(u->record_writer);
	ckpt_free(u);
	core->upload_queue = NULL;
}

void ckpt_upload_queue_report(const struct ckpt_core *core, struct ckpt_stats *stats)
{
	const struct ckpt_upload_queue *u = core->upload_queue;

	if (!u)
		return;
	stats->bytes_uploaded = atomic_load(&u->bytes);
	stats->bytes_uploaded_staged = atomic_load(&u->bytes_left);
	stats->uploads_waiting = u->count;
	stats->remote_generation = u->record_writer->uploaded_generation;
	stats->remote_step = u->record_writer->uploaded_step;
	stats->remote_wall_ms = u->record_writer->uploaded_wall_ms;
	stats->remote_code = u->record_writer->error.code;
	stats->remote_failing_ms = u->record_writer->error.code ? u->record_writer->since_ms : 0;
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		stats->uploads_waiting_bytes += e->bytes;
	if (u->current)
		stats->uploads_waiting_bytes -=
			ckpt_min_u64(u->current->bytes, stats->bytes_uploaded - u->begun);
}
