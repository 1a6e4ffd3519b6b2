/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a save: made, and published if no later generation has taken over. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "engine/save/rank_schema.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

void ckpt_save_own_rank(const struct ckpt_save *save, struct ckpt_manifest_rank *ret_rank)
{
	const struct ckpt_core *core = save->core;

	*ret_rank = (struct ckpt_manifest_rank){.rank = core->config.rank,
		.index_digest = ckpt_digest_of(save->index.data, save->index.len),
		.index_bytes = save->index.len,
		.shard_bytes = save->plan->layout->bytes};
	memcpy(ret_rank->node, core->config.node, sizeof(ret_rank->node));
	memcpy(ret_rank->attempt, save->shard_attempt, sizeof(ret_rank->attempt));
}

static int encode_manifest(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_manifest_rank own;
	struct ckpt_manifest manifest = {.kind = CKPT_MANIFEST_COMMIT,
		.generation = core->lineage->generation,
		.step = save->step,
		.wall_ms = ckpt_env_wall_ms(core->parts.env),
		.world = core->config.world,
		.node_stores = core->config.node_store,
		.ranks = save->ranks ? save->ranks->all : &own};

	if (!save->ranks)
		ckpt_save_own_rank(save, &own);
	if (save->ranks && core->saver->catalog.generation == core->lineage->generation &&
		ckpt_save_agreed(save)) {
		manifest.catalog = core->saver->catalog.digest;
		manifest.catalog_bytes = core->saver->catalog.bytes;
	}
	manifest.base_count = save->run.count;
	memcpy(manifest.bases, save->run.steps, sizeof(manifest.bases));
	if (save->ranks) {
		CKPT_ASSERT(strlen(save->ranks->differ) < sizeof(manifest.replicas));
		memcpy(manifest.replicas, save->ranks->differ, sizeof(manifest.replicas));
	}
	memcpy(manifest.run_id, core->lineage->marker.run_id, sizeof(manifest.run_id));
	memcpy(manifest.attempt, save->attempt, sizeof(manifest.attempt));
	/* It fits: see CKPT_WORLD_SAVING. */
	int r = ckpt_manifest_encode(&manifest, &save->manifest);
	return r < 0 ? ckpt_fail(&save->work, r, "out of memory") : 0;
}

static void drop_listing(struct ckpt_save *save)
{
	ckpt_free(save->op.listing.names);
	save->op.listing = (struct ckpt_listing){0};
}

int ckpt_save_check_fence(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	uint64_t newest = ckpt_take_newest_claim(&save->op);

	if (newest <= core->lineage->generation)
		return 0;
	core->lineage->fenced = true;
	return ckpt_fail_at(&save->work, CKPT_EFENCED, &(struct ckpt_where){.tier = "local"},
		"generation %llu has taken over the store %s from generation "
		"%llu: " CKPT_SAVE_FENCED_TEXT,
		(unsigned long long)newest, core->parts.label,
		(unsigned long long)core->lineage->generation);
}

/* Whoever waited was told that nobody knew: now it is known. */
static void note_late(struct ckpt_save *save)
{
	if (save->ended)
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"step %llu is not durable in %s, whose storage has answered at last: %s",
			(unsigned long long)save->step, save->core->parts.label,
			ckpt_code_text(save->op.result));
}

int ckpt_save_publish_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_store *store = save->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_store_list(store, &save->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, save->op.done);
	r = ckpt_save_check_op(save);
	if (r == 0)
		r = ckpt_save_check_fence(save);
	else
		drop_listing(save);
	if (r == 0)
		r = ckpt_save_judge_run(save);
	if (r == 0)
		r = encode_manifest(save);
	if (r < 0)
		return ckpt_save_fail_body(task, r);
	if (save->ranks && save->core->config.node_store)
		return ckpt_task_continue(task, ckpt_save_commit_nodes_body);
	ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
	save->publishing = true;
	save->publish_tried = true;
	ckpt_store_publish(
		store, &save->op, save->path, save->manifest.data, save->manifest.len, NULL);
	CKPT_AWAIT(task, save->op.done);
	/* Another rank's abort, or this commit, whose answer was lost. */
	if (save->op.result == -EEXIST && save->ranks)
		return ckpt_task_continue(task, ckpt_save_resolve_body);
	save->publishing = false;
	if (save->op.result < 0) {
		note_late(save);
		return ckpt_save_fail_body(task, save->op.result);
	}
	save->committed = true;
	return ckpt_task_continue(task, ckpt_save_end_body);
	CKPT_TASK_END(task);
}
