/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save of many ranks, from the point where this rank's part is durable and its gate open. Each rank
 * tells rank 0 what it has; rank 0 publishes the manifest of all, or an abort record, and tells the others
 * how it ended. Who does not hear that in time tries the register itself, with an abort record: whatever is
 * there then is the outcome. Engine-internal.
 */
#ifndef CKPT_ENGINE_SAVE_RANKS_H
#define CKPT_ENGINE_SAVE_RANKS_H

#include "engine/talk.h"
#include "exchange/rank_record.h"

struct ckpt_save;

struct ckpt_save_ranks {
	struct ckpt_talk talk;
	struct ckpt_buf words;          /* what is being told */
	struct ckpt_manifest_rank *all; /* rank 0: by rank; `attempt` empty: not heard of */
	uint32_t heard;
	uint32_t from; /* rank to ask for next; to drop next, after the end */
	bool told;     /* this rank's part may be known to rank 0: its files may be named */
	bool settled;  /* there is no manifest that names the files, and there will be none */
	int never;     /* 0: stops nothing */
	struct ckpt_verdict outcome;
};

/* -ENOMEM. */
int ckpt_save_ranks_new(uint32_t rank, uint32_t world, struct ckpt_save_ranks **ret_ranks);
void ckpt_save_ranks_free(struct ckpt_save_ranks *ranks);

/* Bodies of the save's task. Rank 0: until all have been heard of, then ckpt_save_publish_body. */
int ckpt_save_gather_body(struct ckpt_task *task);
/* Another: until the outcome is known. */
int ckpt_save_follow_body(struct ckpt_task *task);
/* After the end of the save: the others are told, if they may be waiting. */
int ckpt_save_tell_body(struct ckpt_task *task);

#endif
