/* SPDX-License-Identifier: Apache-2.0 */
/* A step that was picked, into another store. */
#include "engine/restore/sink.h"

#include <errno.h>

#include "base/error.h"
#include "engine/reshard/near.h"

static void start_step_copy(struct ckpt_restore *r)
{
	r->step_copy = (struct ckpt_step_copy){.core = r->core,
		.pick = &r->pick,
		.ranks = r->dest_ranks,
		.catalog = r->catalog ? r->catalog->catalog_map : NULL,
		.place = r->dest,
		.plain = r->dest_plain,
		.stop = &r->stop,
		.err = &r->why,
		.counter = &r->bytes_done,
		.waiter = &r->sink_task};
	ckpt_step_copy_init(&r->step_copy);
	ckpt_step_copy_start_prepare(&r->step_copy);
}

static int export_end_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	/* Whoever waits for the shard finds nothing of this one on its way any more. */
	ckpt_step_copy_start_end(&r->step_copy, r->code);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	if (r->shard.file.fd >= 0 || r->shard.sole.fd >= 0) {
		ckpt_shard_start_shut(&r->shard);
		CKPT_AWAIT(task, r->shard.task.finished);
	}
	return r->code;
	CKPT_TASK_END(task);
}

static ckpt_task_fn export_rank_body;
static ckpt_task_fn export_copy_body;

/* The file that is open has a bad header, or a bad chunk: the rank's next one is copied, from its beginning. */
static int export_other_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_other(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	r->code = r->shard.task.result;
	if (r->code == -ENOENT)
		r->code = r->why.code;
	if (r->code < 0)
		return ckpt_task_continue(task, export_end_body);
	atomic_fetch_add(&r->bytes_total, atomic_load(&r->bytes_done) - r->done_before);
	return ckpt_task_continue(task, export_copy_body);
	CKPT_TASK_END(task);
}

static int export_shard_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	ckpt_shard_start_open(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	return ckpt_task_continue(
		task, ckpt_sink_passed(r, &r->shard.task) ? export_copy_body : export_end_body);
	CKPT_TASK_END(task);
}

/* The bytes of the file that is open, which are written on the way. */
static int export_copy_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	r->done_before = atomic_load(&r->bytes_done);
	ckpt_shard_start_header(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	if (ckpt_shard_is_bad_copy(r->shard.task.result) && !r->stop)
		return ckpt_task_continue(task, export_other_body);
	if (!ckpt_sink_passed(r, &r->shard.task))
		return ckpt_task_continue(task, export_end_body);
	ckpt_sink_count_header(r);
	/* Of a file that is read past the cache no single chunk can be read. */
	if (r->step_copy.left.file.fd >= 0 && r->shard.file.direct) {
		ckpt_shard_start_share(&r->shard);
		CKPT_AWAIT(task, r->shard.task.finished);
		if (r->shard.cached.fd < 0) {
			r->code = ckpt_fail(&r->why, r->shard.op.result, "cannot open %s again: %s",
				r->shard.path, ckpt_code_text(r->shard.op.result));
			return ckpt_task_continue(task, export_end_body);
		}
	}
	ckpt_step_copy_start_shard(&r->step_copy);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	if (!ckpt_sink_passed(r, &r->step_copy.task))
		return ckpt_task_continue(
			task, !r->stop && ckpt_shard_copy_has_bad_source(&r->step_copy.copy)
				      ? export_other_body
				      : export_end_body);
	ckpt_shard_start_shut(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	ckpt_sink_end_rank(r);
	r->rank++;
	return ckpt_task_continue(task, export_rank_body);
	CKPT_TASK_END(task);
}

/* One rank after the other: what verify_body does, but for those that are there. */
static int export_rank_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	for (; r->rank < r->pick.manifest.world; r->rank++) {
		if (!ckpt_rankset_has(&r->dest_ranks, r->rank))
			continue;
		ckpt_sink_begin_rank(r, r->rank);
		if (r->dest.bucket) {
			ckpt_shard_start_claim(&r->shard);
			CKPT_AWAIT(task, r->shard.task.finished);
			if (!ckpt_sink_passed(r, &r->shard.task))
				return ckpt_task_continue(task, export_end_body);
		}
		ckpt_shard_start_index(&r->shard);
		CKPT_AWAIT(task, r->shard.task.finished);
		if (!ckpt_sink_passed(r, &r->shard.task))
			return ckpt_task_continue(task, export_end_body);
		ckpt_step_copy_start_look(&r->step_copy, &r->shard);
		CKPT_AWAIT(task, r->step_copy.task.finished);
		if (!ckpt_sink_passed(r, &r->step_copy.task))
			return ckpt_task_continue(task, export_end_body);
		if (!r->step_copy.have)
			return ckpt_task_continue(task, export_shard_body);
		ckpt_shard_start_shut(&r->shard);
		CKPT_AWAIT(task, r->shard.task.finished);
		ckpt_sink_end_rank(r);
	}
	ckpt_step_copy_start_commit(&r->step_copy);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	r->code = r->step_copy.task.result;
	return ckpt_task_continue(task, export_end_body);
	CKPT_TASK_END(task);
}

/* Nothing is to be copied, or ranks are to be added. */
static int export_there_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	ckpt_step_copy_start_check(&r->step_copy);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	if (ckpt_sink_passed(r, &r->step_copy.task))
		atomic_store(&r->bytes_done, atomic_load(&r->bytes_total));
	if (!ckpt_step_copy_may_add(&r->step_copy, r->code))
		return ckpt_task_continue(task, export_end_body);
	ckpt_error_clear(&r->why);
	ckpt_step_copy_start_add(&r->step_copy);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	return ckpt_task_continue(
		task, ckpt_sink_passed(r, &r->step_copy.task) ? export_rank_body : export_end_body);
	CKPT_TASK_END(task);
}

/* Which ranks' files the store of a node is brought: that depends on the step. */
static int choose_ranks(struct ckpt_restore *r)
{
	bool enough = false;

	if (ckpt_rankset_is_all(&r->near))
		return 0;
	int code = ckpt_near_suffices(&r->near, r->near_world, &r->pick.manifest, &enough);
	if (code < 0)
		return ckpt_fail(&r->why, code, "out of memory");
	if (!enough)
		ckpt_rankset_clear(&r->dest_ranks);
	else if (ckpt_rankset_set(&r->dest_ranks, r->near.items, r->near.count) < 0)
		return ckpt_fail(&r->why, -ENOMEM, "out of memory");
	return 0;
}

/* What is wanted is of the step, and here: else nothing is written. */
static int check_ranks(struct ckpt_restore *r)
{
	const struct ckpt_rankset *ranks = &r->dest_ranks;
	uint32_t world = r->pick.manifest.world;

	if (!ckpt_rankset_is_all(ranks) && r->dest.bucket)
		return ckpt_fail(&r->why, -EINVAL,
			"the files of some ranks go into a directory: %s would be a store of whole "
			"steps",
			r->dest.label);
	if (!ckpt_rankset_is_all(ranks) && ckpt_rankset_last(ranks) >= world)
		return ckpt_fail(&r->why, -EINVAL,
			"there is no rank %u in step %llu of %s: %u rank%s saved it, 0 to %u",
			ckpt_rankset_last(ranks), (unsigned long long)r->pick.chosen.step,
			r->core->parts.label, world, world == 1 ? "" : "s", world - 1);
	for (uint32_t i = 0; i < world; i++)
		if (ckpt_rankset_has(ranks, i) && ckpt_shard_location_has(&r->elsewhere, i))
			return ckpt_shard_location_fail(&r->elsewhere, i, NULL,
				ckpt_rankset_is_all(ranks) ? "the step cannot be copied as a whole"
							   : "its files cannot be copied",
				&r->why);
	return 0;
}

int ckpt_sink_export_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	ckpt_sink_start_elsewhere(r);
	CKPT_AWAIT(task, r->elsewhere.task.finished);
	if (!ckpt_sink_passed(r, &r->elsewhere.task) || r->stop)
		return r->stop ? r->stop : r->code;
	r->code = choose_ranks(r);
	if (r->code == 0)
		r->code = check_ranks(r);
	if (r->code < 0)
		return r->code;
	ckpt_sink_count_all(r);
	if (r->pick.manifest.catalog_bytes > 0) {
		if (ckpt_sink_start_catalog(r) < 0)
			return -ENOMEM;
		CKPT_AWAIT(task, r->catalog->task.finished);
		r->code = r->stop ? r->stop : ckpt_catalog_map_reader_take(r->catalog, "copied");
		if (r->code < 0)
			return r->code;
	}
	start_step_copy(r);
	CKPT_AWAIT(task, r->step_copy.task.finished);
	r->code = r->step_copy.task.result;
	if (r->code == 0 && r->step_copy.there)
		return ckpt_task_continue(task, export_there_body);
	return ckpt_task_continue(task, r->code < 0 ? export_end_body : export_rank_body);
	CKPT_TASK_END(task);
}
