/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a copy of a step share. For the files of copy/ only. */
#ifndef CKPT_ENGINE_COPY_STEP_COPY_STATE_H
#define CKPT_ENGINE_COPY_STEP_COPY_STATE_H

#include "engine/copy/step_copy.h"

static inline struct ckpt_step_copy *ckpt_step_copy_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_step_copy, task);
}

static inline uint64_t ckpt_step_copy_generation(const struct ckpt_step_copy *e)
{
	return e->pick->chosen.generation;
}

static inline uint64_t ckpt_step_copy_step(const struct ckpt_step_copy *e)
{
	return e->pick->chosen.step;
}

/* copy/step_copy_dest.c */

/* Makes the destination a store, locked, with directories for the step. */
int ckpt_step_copy_place_body(struct ckpt_task *task);
/* The rest of it, for a step that is there: it is locked, and still there. */
int ckpt_step_copy_add_body(struct ckpt_task *task);
/* What to give up with after an operation, worded; 0: go on. `doing` is what it was to do. */
int ckpt_step_copy_trouble(struct ckpt_step_copy *e, const char *doing);
/* The manifest that was read there: the same, or -EEXIST. */
int ckpt_step_copy_take_there(struct ckpt_step_copy *e);
/* Asks for the tombstone of the step; and then -EBUSY: there is one. */
void ckpt_step_copy_look_for_stone(struct ckpt_step_copy *e);
int ckpt_step_copy_take_stone(struct ckpt_step_copy *e);
/* -EEXIST: another step of that number is there. */
int ckpt_step_copy_fail_there(struct ckpt_step_copy *e);

/* -EEXIST: the shard at `path` is there in the other form than the one that is wanted. */
int ckpt_step_copy_fail_form(struct ckpt_step_copy *e, const char *path, bool encoded);

/* copy/step_copy.c */

/* Of e->shard, with nothing begun. */
void ckpt_step_copy_init_copy(struct ckpt_step_copy *e);
/* After the removal of what else there was of a rank that is whole and durable now. 0, or what to stop with. */
int ckpt_step_copy_take_clean(struct ckpt_step_copy *e);

/* copy/step_copy_resume.c */

/* What is there of a rank. */
int ckpt_step_copy_look_body(struct ckpt_task *task);
/* Of all ranks that are wanted, of a step that is there. */
int ckpt_step_copy_check_body(struct ckpt_task *task);
/* The step is there and whole: whether a note says that it is not. */
int ckpt_step_copy_note_body(struct ckpt_task *task);
/* Lets go of what is there of a rank, once it has been shut. */
void ckpt_step_copy_drop_left(struct ckpt_step_copy *e);

#endif
