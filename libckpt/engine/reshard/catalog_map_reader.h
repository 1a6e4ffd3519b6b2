/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog of the selected step. */
#ifndef CKPT_ENGINE_RESHARD_CATALOG_MAP_READER_H
#define CKPT_ENGINE_RESHARD_CATALOG_MAP_READER_H

#include "engine/lineage/select_step.h"
#include "engine/reshard/catalog_map.h"

struct ckpt_catalog_map_reader {
	/*
	 * Await `finished`. `result`: 0; -ENOENT: there is none; CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, -ENOMEM,
	 * system errors.
	 */
	struct ckpt_task task;
	struct ckpt_core *core;
	const struct ckpt_select *pick; /* its manifest names one */
	struct ckpt_error *err;         /* receives the error */
	struct ckpt_task *waiter;

	struct ckpt_catalog_map *catalog_map; /* a caller that takes it sets NULL */
	char path[CKPT_PATH_MAX];

	/* Private. */
	struct ckpt_store_op op;
	struct ckpt_error said; /* error of `op` */
	struct ckpt_job job;
	int job_result;
	struct ckpt_error job_error;
	bool job_done;
};

/* Starts reading. NULL: out of memory. */
struct ckpt_catalog_map_reader *ckpt_catalog_map_reader_new(struct ckpt_core *core,
	const struct ckpt_select *pick, struct ckpt_error *err, struct ckpt_task *waiter);
/* After its end, of who copies the step: one that is no good does not go along, and the log says so. 0, -ENOMEM. */
int ckpt_catalog_map_reader_take(const struct ckpt_catalog_map_reader *reader, const char *copied);
/* Frees it after its end. NULL is ignored. */
void ckpt_catalog_map_reader_free(struct ckpt_catalog_map_reader *reader);

#endif
