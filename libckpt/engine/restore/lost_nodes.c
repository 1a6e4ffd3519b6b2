/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a restore of all ranks that cannot be opened because some node has no file of the step, when the user has
 * declared that nodes were lost with their disks (lost_nodes). Rank 0, which selects, then skips the step as long as it
 * lives, so that the next restore uses the one before. It does not skip a step that can be had: its own store has the
 * files of all ranks, or the remote store has the step, or the rest of it, or cannot be asked. No note is written,
 * because the node may be back at the next start.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/upload_queue.h"
#include "engine/restore/restore_state.h"
#include "format/sealed.h"

/* If the files of other ranks are here, nothing was lost, but ranks run on the wrong nodes. That is not of OPENING. */
bool ckpt_restore_is_lost(const struct ckpt_restore *restore)
{
	const struct ckpt_restore *r = restore;
	const struct ckpt_core_config *config = &r->core->config;

	if (!r->ranks || config->rank > 0 || !config->lost_nodes || r->wanted != CKPT_STEP_LATEST ||
		!ckpt_restore_is_mine(r))
		return false;
	const struct ckpt_restore_record *outcome = ckpt_restore_sync_outcome(r);
	return outcome->verdict.code == CKPT_EOTHERNODE && r->ranks->part == CKPT_RESTORE_OPENING &&
	       outcome->generation == r->pick.chosen.generation &&
	       outcome->step == r->pick.chosen.step;
}

/* All ranks have heard the outcome and ask for the latest again: the next restore selects the same step. */
static void keep(struct ckpt_restore *r, const char *reason)
{
	size_t length = strlen(r->why.message);

	(void)snprintf(r->why.message + length, sizeof(r->why.message) - length, "; %s", reason);
	ckpt_log(r->core->parts.log, CKPT_LOG_ERROR, "step %llu of %s is not skipped: %s",
		(unsigned long long)r->pick.chosen.step, r->core->parts.label, reason);
}

static void take_here(struct ckpt_restore *r)
{
	if (r->elsewhere.task.result == 0 && r->elsewhere.count > 0) {
		r->passes_over = true;
		return;
	}
	keep(r, r->elsewhere.task.result < 0
			? "its files in the store of rank 0 could not be listed: try again"
			: "the store of rank 0 has the files of all its ranks: copy them into the "
			  "stores that have none (rsync -a, then sync), and start the job again");
}

/* The remote store has the step, or cannot be asked. */
static void keep_there(struct ckpt_restore *r)
{
	const char *label = r->core->upload_queue->dest->label;
	char reason[700];

	if (r->op.result == 0)
		(void)snprintf(reason, sizeof(reason),
			"it is in %.300s: start the job again, and every node downloads it", label);
	else
		(void)snprintf(reason, sizeof(reason),
			"it is unknown whether it is in %.300s: %.300s; start the job again when "
			"that can be read",
			label,
			r->repair_why.code ? r->repair_why.message : ckpt_code_text(r->op.result));
	keep(r, reason);
}

/* A rank's index exists only if its shard does. */
static bool has_rest(const struct ckpt_restore *r, const struct ckpt_rank_files *there)
{
	for (uint32_t i = 0; i < r->pick.manifest.world; i++)
		if (ckpt_shard_location_has(&r->elsewhere, i) &&
			!ckpt_rank_files_has(there, i, CKPT_RANK_INDEX))
			return false;
	return true;
}

/* There is no manifest: some ranks have uploaded their files, and the others were lost first or have not finished. */
static void take_parts(struct ckpt_restore *r)
{
	struct ckpt_rank_files there = {0};

	if (r->op.result == 0)
		r->op.result = ckpt_rank_files_take(&there, &r->op.listing);
	if (r->op.result == 0 && has_rest(r, &there)) {
		char reason[700];
		(void)snprintf(reason, sizeof(reason),
			"the files that the store of rank 0 lacks are in %.300s: run `ckpt upload` "
			"on that store, and start the job again",
			r->core->upload_queue->dest->label);
		keep(r, reason);
	} else if (r->op.result == 0 || r->op.result == -ENOENT) {
		r->passes_over = true;
	} else {
		keep_there(r);
	}
	ckpt_rank_files_clear(&there);
	ckpt_free(r->op.listing.names);
	r->op.listing = (struct ckpt_listing){0};
}

static int lost_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, repair);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_shard_location_start(&r->elsewhere);
	CKPT_AWAIT(task, r->elsewhere.task.finished);
	take_here(r);
	if (!r->passes_over || !r->core->upload_queue)
		return 0;
	r->passes_over = false;
	ckpt_name_manifest(path, r->pick.chosen.generation, r->pick.chosen.step);
	ckpt_error_clear(&r->repair_why);
	ckpt_store_op_init(&r->op, task, &r->repair_why);
	r->op.quiet = true;
	r->op.stop = &r->repair_stop;
	ckpt_store_get(r->core->upload_queue->dest, &r->op, path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, r->op.done);
	ckpt_free(r->op.data);
	r->op.data = NULL;
	if (r->op.result != -ENOENT) {
		keep_there(r);
		return 0;
	}
	ckpt_error_clear(&r->repair_why);
	ckpt_name_step(path, r->pick.chosen.generation, r->pick.chosen.step);
	ckpt_store_list(r->core->upload_queue->dest, &r->op, path);
	CKPT_AWAIT(task, r->op.done);
	take_parts(r);
	CKPT_TASK_END(task);
}

static void lost_done(struct ckpt_task *task)
{
	struct ckpt_restore *r = CKPT_CONTAINER(task, struct ckpt_restore, repair);

	ckpt_core_timer_clear(r->core, &r->repair_limit);
	ckpt_task_wake(&r->task);
}

void ckpt_restore_lost_start(struct ckpt_restore *restore)
{
	struct ckpt_restore *r = restore;

	CKPT_ASSERT(!ckpt_task_active(&r->repair));
	ckpt_shard_location_clear(&r->elsewhere);
	ckpt_error_clear(&r->elsewhere_why);
	r->elsewhere = (struct ckpt_shard_location){
		.core = r->core, .pick = &r->pick, .err = &r->elsewhere_why, .waiter = &r->repair};
	ckpt_restore_repair_limit(r);
	ckpt_task_start(&r->repair, &r->core->sched, lost_body, lost_done);
}
