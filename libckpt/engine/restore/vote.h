/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a part of a restore has ended, for all ranks: well, once every one of them has said so, or with the
 * failure that was told first. The outcome is a key of the exchange that is put once: rank 0 puts it when
 * all has gone well, whoever fails or waits in vain puts it otherwise, and what is there is what counts.
 */
#ifndef CKPT_ENGINE_RESTORE_VOTE_H
#define CKPT_ENGINE_RESTORE_VOTE_H

#include "engine/ranks/exchange_call.h"
#include "exchange/restore_messages.h"

struct ckpt_restore_vote {
	struct ckpt_task task; /* await `finished` before the memory goes */

	/* Set by the owner before it starts. */
	struct ckpt_core *core;
	struct ckpt_task *waiter; /* woken when it is decided, and at the end */
	uint32_t number;          /* of the restore in this session */
	enum ckpt_restore_part part;
	uint64_t deadline_ns; /* UINT64_MAX: none before this rank has voted */

	/* The answer. */
	bool decided;
	struct ckpt_restore_record outcome;

	/* Its own. */
	struct ckpt_restore_record vote; /* of this rank, once it has voted */
	bool voted;
	bool passed;   /* it has said that it went well, be it that it has changed its mind */
	bool told;     /* that it has gone well here, to rank 0 */
	bool *heard;   /* rank 0: of which ranks */
	uint32_t from; /* rank 0: all below have been heard of */
	int interrupt; /* not 0: the talk under way gives up */
	int never;     /* 0: stops nothing */
	struct ckpt_exchange_call call;
	struct ckpt_timer limit; /* the exchange does not even answer */
	struct ckpt_error why;
	struct ckpt_buf words;
};

/* Zeroed; allocates what must not be lacking later. -ENOMEM. */
int ckpt_restore_vote_init(struct ckpt_restore_vote *outcome_vote, uint32_t rank, uint32_t world);
void ckpt_restore_vote_clear(struct ckpt_restore_vote *outcome_vote);
/* When this rank gives up waiting for the others, if it begins now. */
uint64_t ckpt_restore_vote_deadline(const struct ckpt_restore_vote *outcome_vote);
void ckpt_restore_vote_start(struct ckpt_restore_vote *outcome_vote);
/*
 * How it has ended here. Once; but who has said that it went well may say later that it has failed, and is
 * believed if the outcome was not there yet. Harmless when it is decided.
 */
void ckpt_restore_vote_cast(
	struct ckpt_restore_vote *outcome_vote, const struct ckpt_restore_record *vote);

#endif
