/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upload queue: takes committed steps into the remote store, oldest first, behind everything else. It lives as long
 * as the engine. What cannot be sent now is tried again, for ever, with pauses that grow; the training never
 * waits for it.
 *
 * What is on its way is kept by retention until it is there, unless the disk is full.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_QUEUE_H
#define CKPT_ENGINE_COPY_UPLOAD_QUEUE_H

#include "engine/copy/upload_entries.h"

/* Into core->upload queue, if the core's parts name a remote place. -ENOMEM. */
int ckpt_upload_queue_open(struct ckpt_core *core, uint64_t every);
/* Once the store has been read: takes up what was committed and may not be there. */
void ckpt_upload_queue_begin(struct ckpt_core *core);
/*
 * A step was committed just now; `entry` becomes its own, and stays the caller's, too. NULL: it does not go there.
 * `left` is given away.
 */
void ckpt_upload_queue_add(struct ckpt_core *core, struct ckpt_upload_entry *entry,
	uint64_t generation, uint64_t step, uint64_t bytes, struct ckpt_staged_shard *left);
/* The disk is full: retention may have everything but what is being sent just now. */
void ckpt_upload_queue_yield(struct ckpt_core *core);
/* A claim was made: it goes there before anything else. What it goes on from is on the list again. */
void ckpt_upload_queue_note_claim(struct ckpt_core *core);
/* Ends soon; ckpt_upload_queue_ended() then, and core->closer is woken. What it had is told CKPT_ECLOSED. */
void ckpt_upload_queue_stop(struct ckpt_core *core);
bool ckpt_upload_queue_ended(const struct ckpt_core *core);
/* After the end. */
void ckpt_upload_queue_close(struct ckpt_core *core);
/* Counts what is on its way. */
void ckpt_upload_queue_report(const struct ckpt_core *core, struct ckpt_stats *stats);

/* Of the upload queue's own files. */

/* The outcome of all that are on the list. */
void ckpt_upload_queue_end_all(
	struct ckpt_upload_queue *upload_queue, const struct ckpt_error *why);

/* With lost_nodes: the job has gone on from an older step, and nobody has all parts of this one. */
bool ckpt_upload_queue_is_lost(
	const struct ckpt_upload_queue *upload_queue, const struct ckpt_upload_entry *entry);
void ckpt_upload_queue_end_lost(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry);

/* What becomes of a try. */
void ckpt_upload_queue_take_upload(struct ckpt_upload_queue *upload_queue);
/* upload queue->error, of which nothing can be done but what its kind allows. `entry` NULL: of the place. */
void ckpt_upload_queue_take_failure(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry, int code);
void ckpt_upload_queue_succeed(struct ckpt_upload_queue *upload_queue);
/* Nothing is sent any more, for upload queue->error. */
void ckpt_upload_queue_halt(struct ckpt_upload_queue *upload_queue, int code);
/* What was kept here because it was on its way no longer is. */
void ckpt_upload_queue_ask_retention(struct ckpt_upload_queue *upload_queue);

#endif
