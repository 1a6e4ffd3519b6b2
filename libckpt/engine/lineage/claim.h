/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming a generation: once, by atomic create, locked from its first moment. */
#ifndef CKPT_ENGINE_LINEAGE_CLAIM_H
#define CKPT_ENGINE_LINEAGE_CLAIM_H

#include "engine/ranks/exchange_call.h"
#include "exchange/rank_messages.h"

struct ckpt_claimer {
	struct ckpt_command command;
	struct ckpt_store_op op;
	struct ckpt_buf buf;
	struct ckpt_claim claim;
	struct ckpt_object lock;
	char path[CKPT_PATH_MAX];
	struct ckpt_task work;
	uint64_t newest; /* claim that is there; 0: none */

	/* With other ranks. */
	struct ckpt_exchange_call call;
	struct ckpt_buf words;
	struct ckpt_timer timer; /* the claim is not seen yet */
	int never;               /* 0: stops nothing */
};

/*
 * Claims, if this core has not claimed yet; `claim` says what. -EBUSY while another one has not ended.
 * Afterwards what dead generations left behind is settled in the background.
 */
int ckpt_claim_body(struct ckpt_task *task);
/* The claim is there: this core's generation from now on. Its place in the scan is made already. */
int ckpt_claim_adopt(struct ckpt_claimer *claimer);
/*
 * Who wrote the step to go on from may have died between naming its manifest and syncing the name: that is done before
 * a claim counts on it, and retention takes the steps before it. Await the op, and look. No step, in the store of a
 * node that had none, is no failure.
 */
void ckpt_claim_start_settle(struct ckpt_claimer *claimer);
int ckpt_claim_settled(struct ckpt_claimer *claimer);
/* Body of `work` on any rank but 0: hears what rank 0 has claimed. */
int ckpt_claim_join_body(struct ckpt_task *task);
/* Rank 0: begins to tell how its claim has ended; false: without memory. Await the talk if it was begun. */
bool ckpt_claim_tell(struct ckpt_claimer *claimer);
/* It counts, told or not: the others count it as well, when they have heard nothing. */
void ckpt_claim_told(struct ckpt_claimer *claimer);
/* Rank 0, when the others may not know of its claim: tells it again, in the background. */
void ckpt_claim_retell(struct ckpt_core *core);
/* After END. */
void ckpt_claimer_clear(struct ckpt_command *command);

#endif
