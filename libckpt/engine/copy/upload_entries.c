/* SPDX-License-Identifier: Apache-2.0 */
/* The steps on their way: what one is, and what others ask of them. */
#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/remote_gc.h"
#include "engine/copy/upload_queue.h"

struct ckpt_upload_entry *ckpt_upload_entry_new(void)
{
	struct ckpt_upload_entry *e = ckpt_alloc(sizeof(*e));

	if (!e || ckpt_latch_init(&e->latch) < 0) {
		ckpt_free(e);
		return NULL;
	}
	ckpt_error_clear(&e->error);
	atomic_init(&e->owners, 1);
	return e;
}

void ckpt_upload_entry_unref(struct ckpt_upload_entry *entry)
{
	if (!entry || atomic_fetch_sub(&entry->owners, 1) > 1)
		return;
	ckpt_latch_destroy(&entry->latch);
	ckpt_free(entry);
}

bool ckpt_upload_entry_before(const struct ckpt_upload_entry *e, uint64_t generation, uint64_t step)
{
	return e->generation < generation || (e->generation == generation && e->step < step);
}

/* The place in the list of a step, or where it would be. */
struct ckpt_upload_entry **ckpt_upload_queue_find(
	struct ckpt_upload_queue *u, uint64_t generation, uint64_t step)
{
	struct ckpt_upload_entry **link = &u->first;

	while (*link && ckpt_upload_entry_before(*link, generation, step))
		link = &(*link)->next;
	return link;
}

/* Its outcome is known; `error` has it. */
void ckpt_upload_queue_end_entry(struct ckpt_upload_queue *u, struct ckpt_upload_entry *e)
{
	struct ckpt_upload_entry **link = ckpt_upload_queue_find(u, e->generation, e->step);

	CKPT_ASSERT(*link == e);
	*link = e->next;
	u->count--;
	e->error.step = (int64_t)e->step;
	ckpt_staged_shard_free(e->left);
	e->left = NULL;
	ckpt_core_answer(u->core, &e->latch, CKPT_DONE_END);
	ckpt_upload_entry_unref(e);
	ckpt_remote_gc_wake(u->core);
}

void ckpt_upload_queue_end_all(struct ckpt_upload_queue *u, const struct ckpt_error *why)
{
	while (u->first) {
		if (!u->first->known)
			ckpt_record_writer_unsent(
				&u->record_writer, u->first->generation, u->first->step);
		u->first->error = *why;
		ckpt_upload_queue_end_entry(u, u->first);
	}
}

/* What it looks at does not change while the engine lives. */
bool ckpt_upload_queue_takes(const struct ckpt_core *core, uint64_t step)
{
	const struct ckpt_upload_queue *u = core->upload_queue;

	return u && (u->every == 0 || step % u->every == 0);
}

bool ckpt_upload_queue_keeps(const struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	const struct ckpt_upload_queue *u = core->upload_queue;

	if (!u || u->yielded)
		return false;
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		if (e->generation == generation && e->step == step)
			return true;
	return false;
}

void ckpt_upload_queue_report(const struct ckpt_core *core, struct ckpt_stats *stats)
{
	const struct ckpt_upload_queue *u = core->upload_queue;

	if (!u)
		return;
	stats->bytes_uploaded = atomic_load(&u->bytes);
	stats->bytes_uploaded_staged = atomic_load(&u->bytes_left);
	stats->uploads_waiting = u->count;
	stats->remote_generation = u->record_writer.uploaded_generation;
	stats->remote_step = u->record_writer.uploaded_step;
	stats->remote_wall_ms = u->record_writer.uploaded_wall_ms;
	stats->remote_code = u->record_writer.error.code;
	stats->remote_failing_ms = u->record_writer.error.code ? u->record_writer.since_ms : 0;
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		stats->uploads_waiting_bytes += e->bytes;
	if (u->current)
		stats->uploads_waiting_bytes -=
			ckpt_min_u64(u->current->bytes, stats->bytes_uploaded - u->begun);
}

struct ckpt_upload_entry *ckpt_upload_queue_last(struct ckpt_core *core)
{
	struct ckpt_upload_entry *e = core->upload_queue ? core->upload_queue->first : NULL;

	while (e && e->next)
		e = e->next;
	if (e)
		atomic_fetch_add(&e->owners, 1);
	return e;
}
