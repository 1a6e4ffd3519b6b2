/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of an upload share. Engine-internal. */
#ifndef CKPT_ENGINE_COPY_UPLOAD_STATE_H
#define CKPT_ENGINE_COPY_UPLOAD_STATE_H

#include "engine/copy/upload.h"

static inline struct ckpt_upload *ckpt_upload_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_upload, task);
}

/* What to give up with after an operation in the remote store; 0: go on. */
int ckpt_upload_trouble(struct ckpt_upload *u, const char *doing);
/* The way to the end, with this code. */
int ckpt_upload_give_up(struct ckpt_upload *u, int code);

/* copy/upload.c. Of the newest claim there: 0, or what to give up with. It may set `outdone`. */
int ckpt_upload_check_newest(struct ckpt_upload *u, uint64_t newest);

/* copy/upload_probe.c. Of the claims that were listed: 0, or what to give up with. */
int ckpt_upload_take_newest(struct ckpt_upload *u, uint64_t *ret_newest);
/* Looks for the step's tombstone there, lists the step if `lists`, and goes on with `then`. A tombstone ends the upload. */
int ckpt_upload_look(struct ckpt_upload *u, bool lists, ckpt_task_fn *then);

/* Bodies: the first one, and then that of each rank's files. */
int ckpt_upload_probe_body(struct ckpt_task *task);
int ckpt_upload_rank_body(struct ckpt_task *task);

#endif
