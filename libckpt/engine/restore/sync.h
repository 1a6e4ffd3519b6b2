/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restore of all ranks of a job. Rank 0 picks the step and tells which; the others open that one; it is
 * open when it is on all of them, and has been read when all have read it. For the files of restore/ only.
 */
#ifndef CKPT_ENGINE_RESTORE_SYNC_H
#define CKPT_ENGINE_RESTORE_SYNC_H

#include "engine/restore/vote.h"

struct ckpt_restore;

struct ckpt_restore_sync {
	uint32_t number;                /* of the restore in this session */
	struct ckpt_exchange_call call; /* about what was chosen */
	struct ckpt_buf words;
	struct ckpt_restore_record chosen; /* generation 0: nothing yet */
	struct ckpt_restore_vote votes[3]; /* by part */
	enum ckpt_restore_part part;       /* the one that is under way */
	bool taken;                        /* the restore's result is the outcome for all */
	struct ckpt_error refused; /* guarded by the restore's lock: the last bind, if it failed */
};

/* -ENOMEM. NULL is ignored by the other. */
int ckpt_restore_sync_new(struct ckpt_core *core, struct ckpt_restore_sync **ret_ranks);
void ckpt_restore_sync_free(struct ckpt_restore_sync *ranks);

/* What follows is of a restore that has them, on the core's thread. */

/* The opening begins; on another rank than 0 await the talk then. */
void ckpt_restore_sync_begin(struct ckpt_restore *restore);
/* After that: what is to be picked. 0, or why not. */
int ckpt_restore_sync_heard(struct ckpt_restore *restore);
/* Rank 0: tells what was picked. Await the talk, and take its result with the other one. */
void ckpt_restore_sync_tell(struct ckpt_restore *restore);
int ckpt_restore_sync_told(struct ckpt_restore *restore);
/* The reading begins: it is open on all ranks. */
void ckpt_restore_sync_read(struct ckpt_restore *restore);

/* Says how the part that is under way has ended here: restore->result. */
void ckpt_restore_sync_vote(struct ckpt_restore *restore);
/* The outcome of that part for all ranks; NULL: not known yet. */
const struct ckpt_restore_record *ckpt_restore_sync_outcome(const struct ckpt_restore *restore);
/* It is known, and that part has gone well. */
bool ckpt_restore_sync_passed(const struct ckpt_restore *restore);
/* Makes it the restore's. */
void ckpt_restore_sync_take(struct ckpt_restore *restore);
/*
 * All have restored from nodes with a store each, and one was damaged: mending begins, which all know at about the same
 * time. That is when the deadline of the vote is counted from, however long it takes until this rank votes.
 */
void ckpt_restore_sync_repair(struct ckpt_restore *restore);
/* How mending it has ended here. Once. */
void ckpt_restore_sync_vote_repaired(
	struct ckpt_restore *restore, const struct ckpt_verdict *verdict);
/* After that: how it has ended for all; NULL: not known yet. */
const struct ckpt_restore_record *ckpt_restore_sync_repaired(const struct ckpt_restore *restore);
/* Nothing of it is under way any more. */
bool ckpt_restore_sync_over(const struct ckpt_restore *restore);

#endif
