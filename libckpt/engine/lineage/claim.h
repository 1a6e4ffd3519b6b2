/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming a generation: once, by atomic create, with a lock on the claim from its first moment. */
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
	uint64_t newest; /* newest claim in the listing; 0: none */

	/* Used if there are other ranks. */
	struct ckpt_exchange_call call;
	struct ckpt_buf words;
	struct ckpt_timer timer; /* waits until the claim is visible */
	int never;               /* always 0 */
};

/*
 * Claims a generation if this core has none; `claim` has the result. -EBUSY while another claim is running. Afterwards
 * the garbage collector settles what dead generations left.
 */
int ckpt_claim_body(struct ckpt_task *task);
/* The claim exists and becomes this core's generation. Its place in the scan is reserved already. */
int ckpt_claim_adopt(struct ckpt_claimer *claimer);
/*
 * The writer of the step to resume from may have died between naming its manifest and syncing the directory. This syncs
 * it, before a claim depends on it and retention deletes older steps. Await the op, and look at its result. It is no
 * failure if a node store that had no step has none.
 */
void ckpt_claim_start_settle(struct ckpt_claimer *claimer);
int ckpt_claim_settled(struct ckpt_claimer *claimer);
/* Body of `work` on all ranks but 0: receives the claim of rank 0. */
int ckpt_claim_join_body(struct ckpt_task *task);
/* Rank 0: starts to send the result of its claim; false: out of memory. Await the call if it was started. */
bool ckpt_claim_tell(struct ckpt_claimer *claimer);
/* The claim counts, sent or not: other ranks that have heard nothing find it in the store. */
void ckpt_claim_told(struct ckpt_claimer *claimer);
/* Rank 0: sends the claim again in the background, because the others may not know it. */
void ckpt_claim_retell(struct ckpt_core *core);
/* Call it after END. */
void ckpt_claimer_clear(struct ckpt_command *command);

#endif
