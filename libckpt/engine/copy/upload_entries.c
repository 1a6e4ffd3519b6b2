/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/copy/upload_entries.h"

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"

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
	ckpt_task_wake(u->watcher);
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

bool ckpt_upload_queue_sends(const struct ckpt_core *core)
{
	const struct ckpt_upload_queue *u = core->upload_queue;

	return core->lineage->generation > 0 && u->placed &&
	       u->placed_generation == core->lineage->generation && !u->halted;
}

bool ckpt_upload_queue_rests(const struct ckpt_core *core)
{
	const struct ckpt_upload_entry *e = core->upload_queue->first;

	while (e && e->buried)
		e = e->next;
	return !e && ckpt_upload_queue_sends(core);
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
