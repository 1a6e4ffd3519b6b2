/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares what very many ranks describe, which is too much to hold at once: reads their indexes a few at a time, in
 * the order of ranks, adds them to a catalog, and frees them. Reading and processing alternate, so that at most one
 * window of indexes is in memory. Equal boxes of several ranks are compared by their digests. If only some ranks are
 * read (`only`), nothing else is done. Internal to the engine.
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
	struct ckpt_task task; /* await `finished`, then look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	uint64_t window;      /* bytes of indexes at once; a single index may be larger */
	uint64_t until_ns;    /* by ckpt_env_now(): no window begins later */
	const uint64_t *only; /* bits of the ranks to read, without a catalog; NULL: all */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* Results on success: the ranks that are elsewhere, and the tensors of the others. */
	struct ckpt_shard_location elsewhere;
	struct ckpt_catalog_builder *builder; /* NULL with `only` */
	struct ckpt_replica_check replicas;

	/* Private. */
	int stop;
	uint32_t next; /* next rank */
	struct ckpt_schema_survey_way *ways;
	unsigned way_count; /* ranks of this window */
	struct ckpt_task_job job;
};

/*
 * The caller zeroes it and sets the fields before the first blank line. CKPT_EFORMAT: two ranks use one name for
 * different tensors; the error names both. CKPT_EINCOMPLETE, CKPT_EINTEGRITY: an index is missing, or differs from what
 * its rank has reported. -E2BIG: too much for a catalog. -ETIME: the time was too short.
 */
void ckpt_schema_survey_start(struct ckpt_schema_survey *survey);
/* Ends it with this code. Any time. */
void ckpt_schema_survey_stop(struct ckpt_schema_survey *survey, int code);
/* It has ended, or was never started. */
void ckpt_schema_survey_clear(struct ckpt_schema_survey *survey);

#endif
