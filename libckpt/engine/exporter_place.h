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
/* The rest of it, for a step that is there: it is locked, and still there. */
int ckpt_exporter_add_body(struct ckpt_task *task);
/* What to give up with after an operation, worded; 0: go on. `doing` is what it was to do. */
int ckpt_exporter_trouble(struct ckpt_exporter *e, const char *doing);
/* The manifest that was read there: the same, or -EEXIST. */
int ckpt_exporter_take_there(struct ckpt_exporter *e);
/* Asks for the tombstone of the step; and then -EBUSY: there is one. */
void ckpt_exporter_look_for_stone(struct ckpt_exporter *e);
int ckpt_exporter_take_stone(struct ckpt_exporter *e);
/* -EEXIST: another step of that number is there. */
int ckpt_exporter_fail_there(struct ckpt_exporter *e);

/* exporter_left.c */

/* What is there of a rank. */
int ckpt_exporter_look_body(struct ckpt_task *task);
/* Of all ranks that are wanted, of a step that is there. */
int ckpt_exporter_check_body(struct ckpt_task *task);
/* The step is there and whole: whether a note says that it is not. */
int ckpt_exporter_note_body(struct ckpt_task *task);
/* Lets go of what is there of a rank, once it has been shut. */
void ckpt_exporter_drop_left(struct ckpt_exporter *e);

#endif
