/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of an exporter share; for exporter.c and exporter_place.c only. */
#ifndef CKPT_ENGINE_EXPORTER_PLACE_H
#define CKPT_ENGINE_EXPORTER_PLACE_H

#include "engine/exporter.h"

static inline struct ckpt_exporter *ckpt_exporter_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_exporter, task);
}

static inline uint64_t ckpt_exporter_generation(const struct ckpt_exporter *e)
{
	return e->pick->chosen.generation;
}

static inline uint64_t ckpt_exporter_step(const struct ckpt_exporter *e)
{
	return e->pick->chosen.step;
}

/* exporter_place.c */

/* Makes the destination a store, locked, with directories for the step. */
int ckpt_exporter_place_body(struct ckpt_task *task);
/* What to give up with after an operation, worded; 0: go on. `doing` is what it was to do. */
int ckpt_exporter_trouble(struct ckpt_exporter *e, const char *doing);
/* -EEXIST: the step is there already. */
int ckpt_exporter_fail_there(struct ckpt_exporter *e);

#endif
