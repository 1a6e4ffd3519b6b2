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

/* copy/upload_probe.c. Of an answer: 0, or what to give up with. */
int ckpt_upload_take_tombstone(struct ckpt_upload *u);
/* Of the claims that were listed. */
int ckpt_upload_take_newest(struct ckpt_upload *u, uint64_t *ret_newest);

/* Bodies: the first one, and then that of each rank's files. */
int ckpt_upload_probe_body(struct ckpt_task *task);
/* Lists the step there, and goes on with u->then. A tombstone ends the upload. */
int ckpt_upload_there_body(struct ckpt_task *task);
int ckpt_upload_rank_body(struct ckpt_task *task);

#endif
