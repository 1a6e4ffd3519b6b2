/* SPDX-License-Identifier: Apache-2.0 */
/* The steps on their way: what one is, and what others ask of them. */
#include "base/alloc.h"
#include "base/fail.h"
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
	stats->remote_generation = u->scribe.there_generation;
	stats->remote_step = u->scribe.there_step;
	stats->remote_wall_ms = u->scribe.there_wall_ms;
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
