/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What very many ranks describe, for whom it is too much to hold at once: their indexes are read a few at a time,
 * in the order of the ranks, put into a catalog under way, and let go. Reads of one window and the work on it
 * take turns, so that of indexes never more than a window is held. Equal boxes of several ranks are compared by their
 * digests. Of some ranks only (`only`) nothing else is done. Engine-internal.
 */
#ifndef CKPT_ENGINE_SAVE_RANK_SCHEMA_SURVEY_H
#define CKPT_ENGINE_SAVE_RANK_SCHEMA_SURVEY_H

#include "base/task_job.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/replica_check.h"
#include "engine/reshard/shard_location.h"
#include "format/catalog.h"

struct ckpt_schema_survey_way;

struct ckpt_schema_survey {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	uint64_t window;   /* bytes of indexes at once; one index may be longer */
	uint64_t until_ns; /* by ckpt_env_now(): no window begins after that */
	const uint64_t
		*only; /* bits of the ranks that are read, without a catalog; NULL: all are */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* When it has ended well: who was not asked, and what the others say. */
	struct ckpt_shard_location elsewhere;
	struct ckpt_catalog_builder *builder; /* NULL with `only` */
	struct ckpt_replica_check replicas;

	/* Its own. */
	int stop;
	uint32_t next; /* rank */
	struct ckpt_schema_survey_way *ways;
	unsigned way_count; /* of this window */
	struct ckpt_task_job job;
};

/*
 * Zeroed, but for what comes before the first blank line. CKPT_EFORMAT: two ranks mean different tensors by one
 * name, both named. CKPT_EINCOMPLETE, CKPT_EINTEGRITY: an index that is not there, or is not what its rank has
 * told of it. -E2BIG: no catalog could hold it, or what they name is too much. -ETIME: it was too late for some.
 */
void ckpt_schema_survey_start(struct ckpt_schema_survey *survey);
/* Gives up, with this code. Any time. */
void ckpt_schema_survey_stop(struct ckpt_schema_survey *survey, int code);
/* After the end, or never started. */
void ckpt_schema_survey_clear(struct ckpt_schema_survey *survey);

#endif
