/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register of a step of many ranks is not empty: its contents are the outcome. Rank 0 may find its own commit
 * there, if the answer to it was lost.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/opener.h"
#include "engine/save/save_state.h"
#include "format/sealed.h"

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

int ckpt_save_aborted(struct ckpt_save *save, int code, const char *reason)
{
	save->ranks->settled = true;
	/* The error of asking does not matter any more. */
	ckpt_error_clear(&save->work);
	return ckpt_fail_at(&save->work, code, &(struct ckpt_where){.tier = "local"},
		"step %llu was %s for all ranks: %s", (unsigned long long)save->step,
		code == CKPT_ESKIPPED ? "skipped" : "aborted", reason);
}

/* Whether a commit names this rank's files: no other process may publish in this generation. */
static bool is_ours(const struct ckpt_save *save, const struct ckpt_manifest *m)
{
	uint32_t rank = save->core->config.rank;

	return m->world == save->core->config.world &&
	       strcmp(m->ranks[rank].attempt, save->shard_attempt) == 0 &&
	       (rank > 0 || strcmp(m->attempt, save->attempt) == 0);
}

static int take_commit(struct ckpt_save *save, const struct ckpt_manifest *m)
{
	struct ckpt_outcome *outcome = &save->ranks->outcome;

	if (!is_ours(save, m))
		return ckpt_fail_at(&save->work, CKPT_EINUSE,
			&(struct ckpt_where){.tier = "local", .file = save->path},
			"step %llu of %s was published by another process, as rank %u of "
			"generation %llu: stop that job, or give this one a store of its own",
			(unsigned long long)save->step, save->core->parts.label,
			save->core->config.rank,
			(unsigned long long)save->core->lineage->generation);
	memcpy(outcome->attempt, m->attempt, sizeof(outcome->attempt));
	memcpy(save->ranks->differ, m->replicas, sizeof(m->replicas));
	outcome->bytes = 0;
	for (uint32_t i = 0; i < m->world; i++)
		if (__builtin_add_overflow(
			    outcome->bytes, m->ranks[i].shard_bytes, &outcome->bytes))
			outcome->bytes = INT64_MAX;
	ckpt_save_take_run(save, m);
	save->committed = true;
	return 0;
}

int ckpt_save_check_manifest(struct ckpt_save *save, const void *data, size_t length)
{
	const struct ckpt_core *core = save->core;
	struct ckpt_manifest m = {0};

	int r = ckpt_manifest_decode(data, length, save->path, &save->work, &m);
	if (r < 0)
		return r;
	bool good = m.kind == CKPT_MANIFEST_COMMIT && m.generation == core->lineage->generation &&
		    m.step == save->step && strcmp(m.run_id, core->lineage->marker.run_id) == 0 &&
		    is_ours(save, &m);
	ckpt_save_take_run(save, &m);
	ckpt_manifest_clear(&m);
	return good ? 0
		    : ckpt_fail_at(&save->work, CKPT_EMISMATCH,
			      &(struct ckpt_where){.tier = "local", .file = save->path},
			      "the manifest of step %llu that rank 0 has sent does not name what "
			      "rank "
			      "%u has written: give every start of the job a session of its own",
			      (unsigned long long)save->step, core->config.rank);
}

static int read_register(struct ckpt_save *save)
{
	struct ckpt_manifest manifest = {0};
	int r = ckpt_manifest_decode(
		save->op.data, save->op.length, save->path, &save->work, &manifest);

	ckpt_free(save->op.data);
	save->op.data = NULL;
	if (r < 0)
		return r;
	if (manifest.kind == CKPT_MANIFEST_ABORT)
		r = ckpt_save_aborted(save, CKPT_EABORTED, manifest.reason);
	else
		r = take_commit(save, &manifest);
	ckpt_manifest_clear(&manifest);
	return r;
}

static int end(struct ckpt_task *task, int code)
{
	struct ckpt_save *save = save_of(task);

	save->publishing = false;
	if (code < 0)
		ckpt_save_stop(save, code);
	return ckpt_task_continue(task, ckpt_save_end_body);
}

int ckpt_save_resolve_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	struct ckpt_store *store = save->core->store;
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_error_clear(&save->work);
	save->op.err = &save->work;
	/* The manifest may be so new that a power cut would remove its name. */
	ckpt_name_step(save->path, save->core->lineage->generation, save->step);
	ckpt_store_sync(store, &save->op, save->path);
	CKPT_AWAIT(task, save->op.done);
	if (save->op.result < 0)
		return end(task, save->op.result);
	ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
	ckpt_store_get(store, &save->op, save->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, save->op.done);
	r = save->op.result == 0 ? read_register(save) : save->op.result;
	if (r != CKPT_EABORTED)
		return end(task, r);
	/* Another start of the job has taken over, and settles what it finds. */
	save->op.err = NULL;
	ckpt_store_list(store, &save->op, CKPT_NAME_GENS);
	CKPT_AWAIT(task, save->op.done);
	if (ckpt_newest_claim(&save->op.listing) > save->core->lineage->generation)
		ckpt_error_clear(&save->work);
	r = ckpt_save_check_fence(save);
	return end(task, r < 0 ? r : CKPT_EABORTED);
	CKPT_TASK_END(task);
}
