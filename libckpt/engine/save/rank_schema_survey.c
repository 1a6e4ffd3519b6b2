/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the indexes in windows. */
#include "engine/save/rank_schema_survey.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/save/catalog_writer.h"
#include "engine/shard/load.h"
#include "engine/shard/shard.h"

struct ckpt_schema_survey_way {
	uint32_t rank;
	struct ckpt_shard shard;
	struct ckpt_error err;
};

static struct ckpt_schema_survey *survey_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_schema_survey, task);
}

static const struct ckpt_manifest_rank *rank_of(const struct ckpt_schema_survey *s, uint32_t rank)
{
	return &s->pick->manifest.ranks[rank];
}

static void start_way(struct ckpt_schema_survey *s, struct ckpt_schema_survey_way *w, uint32_t rank)
{
	w->rank = rank;
	ckpt_error_clear(&w->err);
	w->shard = (struct ckpt_shard){.core = s->core,
		.generation = s->pick->chosen.generation,
		.step = s->pick->chosen.step,
		.rank = rank_of(s, rank),
		.stop = &s->stop,
		.err = &w->err,
		.waiter = &s->task};
	ckpt_shard_init(&w->shard);
	ckpt_shard_start_index(&w->shard);
}

static bool is_wanted(const struct ckpt_schema_survey *s, uint32_t rank)
{
	return !ckpt_shard_location_has(&s->elsewhere, rank) &&
	       (!s->only || ckpt_replica_check_has(s->only, rank));
}

/* Starts the next window. False: there are no more ranks. */
static bool start_window(struct ckpt_schema_survey *s)
{
	uint32_t world = s->pick->manifest.world;
	uint64_t bytes = 0;

	CKPT_ASSERT(s->way_count == 0);
	for (; s->next < world && s->way_count < CKPT_SHARD_LOAD_INDEXES; s->next++) {
		if (!is_wanted(s, s->next))
			continue;
		bytes += rank_of(s, s->next)->index_bytes;
		if (s->way_count > 0 && bytes > s->window)
			break;
		start_way(s, &s->ways[s->way_count++], s->next);
	}
	return s->way_count > 0;
}

static bool is_read(const struct ckpt_schema_survey *s)
{
	for (unsigned i = 0; i < s->way_count; i++)
		if (!s->ways[i].shard.task.finished)
			return false;
	return true;
}

/* Of several failures that of the lowest rank counts; one that was only cancelled does not. */
static int take_window(const struct ckpt_schema_survey *s)
{
	for (unsigned i = 0; i < s->way_count; i++) {
		const struct ckpt_schema_survey_way *w = &s->ways[i];

		if (w->shard.task.result < 0 && !s->stop) {
			*s->err = w->err;
			return w->shard.task.result;
		}
	}
	return s->stop;
}

static void drop_window(struct ckpt_schema_survey *s)
{
	for (unsigned i = 0; i < s->way_count; i++)
		ckpt_shard_clear(&s->ways[i].shard);
	s->way_count = 0;
}

static int add_rank(struct ckpt_schema_survey *s, uint32_t rank, const struct ckpt_layout *layout,
	struct ckpt_error *err)
{
	int r = s->builder ? ckpt_catalog_builder_add(s->builder, rank, layout, err) : 0;

	if (r == 0)
		ckpt_replica_check_add(&s->replicas, rank, layout);
	return r;
}

static void add_work(struct ckpt_job *job)
{
	struct ckpt_schema_survey *s = CKPT_CONTAINER(job, struct ckpt_schema_survey, job.job);

	for (unsigned i = 0; i < s->way_count && s->job.result == 0; i++)
		s->job.result =
			add_rank(s, s->ways[i].rank, s->ways[i].shard.index->layout, &s->job.error);
}

static void start_elsewhere(struct ckpt_schema_survey *s)
{
	s->elsewhere = (struct ckpt_shard_location){
		.core = s->core, .pick = s->pick, .err = s->err, .waiter = &s->task};
	ckpt_shard_location_start(&s->elsewhere);
}

static int take_memory(struct ckpt_schema_survey *s)
{
	s->ways = ckpt_alloc_array(CKPT_SHARD_LOAD_INDEXES, sizeof(*s->ways));
	s->replicas.world = s->pick->manifest.world;
	s->replicas.most = s->core->config.agree_boxes;
	if (!s->ways || (!s->only && ckpt_catalog_writer_builder(s->core, &s->builder) < 0))
		return ckpt_fail(s->err, -ENOMEM, "out of memory");
	return 0;
}

static int check_time(const struct ckpt_schema_survey *s)
{
	uint32_t world = s->pick->manifest.world;

	if (s->next >= world || ckpt_env_now(s->core->parts.env) <= s->until_ns)
		return 0;
	return ckpt_fail(s->err, -ETIME,
		"there was time to read the indexes of only %u of %u ranks: raise the timeout of "
		"saves",
		s->next, world);
}

static int take_elsewhere(const struct ckpt_schema_survey *s)
{
	if (s->elsewhere.task.result < 0 || !ckpt_shard_location_has_all(&s->elsewhere))
		return s->elsewhere.task.result;
	return ckpt_shard_location_fail(
		&s->elsewhere, 0, NULL, "no rank of the step has its files here", s->err);
}

static int survey_body(struct ckpt_task *task)
{
	struct ckpt_schema_survey *s = survey_of(task);

	int r;

	CKPT_TASK_BEGIN(task);
	start_elsewhere(s);
	CKPT_AWAIT(task, s->elsewhere.task.finished);
	r = take_elsewhere(s);
	if (r == 0)
		r = take_memory(s);
	if (r < 0)
		return r;
	while (!s->stop && start_window(s)) {
		CKPT_AWAIT(task, is_read(s));
		r = take_window(s);
		if (r == 0) {
			ckpt_task_job_start(&s->job, s->core->parts.env, task, add_work);
			CKPT_AWAIT(task, s->job.done);
			r = ckpt_task_job_take(&s->job, s->err);
		}
		drop_window(s);
		if (r == 0)
			r = check_time(s);
		if (r < 0)
			return r;
	}
	return s->stop;
	CKPT_TASK_END(task);
}

static void survey_done(struct ckpt_task *task)
{
	ckpt_task_wake(survey_of(task)->waiter);
}

void ckpt_schema_survey_start(struct ckpt_schema_survey *survey)
{
	ckpt_task_start(&survey->task, &survey->core->sched, survey_body, survey_done);
}

void ckpt_schema_survey_stop(struct ckpt_schema_survey *survey, int code)
{
	if (!survey->stop)
		survey->stop = code;
	ckpt_task_wake(&survey->task);
}

void ckpt_schema_survey_clear(struct ckpt_schema_survey *survey)
{
	CKPT_ASSERT(!ckpt_task_active(&survey->task));
	ckpt_free(survey->ways);
	survey->ways = NULL;
	ckpt_catalog_builder_free(survey->builder);
	survey->builder = NULL;
	ckpt_shard_location_clear(&survey->elsewhere);
	ckpt_replica_check_clear(&survey->replicas);
}
