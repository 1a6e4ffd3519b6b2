/* SPDX-License-Identifier: Apache-2.0 */
/* The steps on their way: what one is, and what others ask of them. */
#include "base/alloc.h"
#include "base/fail.h"
#include "engine/undertaker.h"
#include "engine/uploader.h"

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
struct ckpt_upload_entry **ckpt_uploader_find(
	struct ckpt_uploader *u, uint64_t generation, uint64_t step)
{
	struct ckpt_upload_entry **link = &u->first;

	while (*link && ckpt_upload_entry_before(*link, generation, step))
		link = &(*link)->next;
	return link;
}

/* Its outcome is known; `error` has it. */
void ckpt_uploader_end_entry(struct ckpt_uploader *u, struct ckpt_upload_entry *e)
{
	struct ckpt_upload_entry **link = ckpt_uploader_find(u, e->generation, e->step);

	CKPT_ASSERT(*link == e);
	*link = e->next;
	u->count--;
	e->error.step = (int64_t)e->step;
	ckpt_leavings_free(e->left);
	e->left = NULL;
	ckpt_core_answer(u->core, &e->latch, CKPT_DONE_END);
	ckpt_upload_entry_unref(e);
	ckpt_undertaker_wake(u->core);
}

void ckpt_uploader_end_all(struct ckpt_uploader *u, const struct ckpt_error *why)
{
	while (u->first) {
		if (!u->first->known)
			ckpt_scribe_unsent(&u->scribe, u->first->generation, u->first->step);
		u->first->error = *why;
		ckpt_uploader_end_entry(u, u->first);
	}
}

/* What it looks at does not change while the engine lives. */
bool ckpt_uploader_takes(const struct ckpt_core *core, uint64_t step)
{
	const struct ckpt_uploader *u = core->uploader;

	return u && (u->every == 0 || step % u->every == 0);
}

bool ckpt_uploader_keeps(const struct ckpt_core *core, uint64_t generation, uint64_t step)
{
	const struct ckpt_uploader *u = core->uploader;

	if (!u || u->yielded)
		return false;
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		if (e->generation == generation && e->step == step)
			return true;
	return false;
}

void ckpt_uploader_report(const struct ckpt_core *core, struct ckpt_stats *stats)
{
	const struct ckpt_uploader *u = core->uploader;

	if (!u)
		return;
	stats->bytes_uploaded = atomic_load(&u->bytes);
	stats->bytes_uploaded_staged = atomic_load(&u->bytes_left);
	stats->uploads_waiting = u->count;
	stats->remote_generation = u->scribe.uploaded_generation;
	stats->remote_step = u->scribe.uploaded_step;
	stats->remote_wall_ms = u->scribe.uploaded_wall_ms;
	stats->remote_code = u->scribe.error.code;
	stats->remote_failing_ms = u->scribe.error.code ? u->scribe.since_ms : 0;
	for (const struct ckpt_upload_entry *e = u->first; e; e = e->next)
		stats->uploads_waiting_bytes += e->bytes;
	if (u->current)
		stats->uploads_waiting_bytes -=
			ckpt_min_u64(u->current->bytes, stats->bytes_uploaded - u->begun);
}

struct ckpt_upload_entry *ckpt_uploader_last(struct ckpt_core *core)
{
	struct ckpt_upload_entry *e = core->uploader ? core->uploader->first : NULL;

	while (e && e->next)
		e = e->next;
	if (e)
		atomic_fetch_add(&e->owners, 1);
	return e;
}
