/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a part of a restore has ended, for all ranks: well, once every one of them has said so, or with the
 * failure that was told first. The outcome is a key of the exchange that is put once: rank 0 puts it when
 * all has gone well, whoever fails or waits in vain puts it otherwise, and what is there is what counts.
 */
#ifndef CKPT_ENGINE_BALLOT_H
#define CKPT_ENGINE_BALLOT_H

#include "engine/talk.h"
#include "exchange/restore_record.h"

struct ckpt_ballot {
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
	struct ckpt_talk talk;
	struct ckpt_timer limit; /* the exchange does not even answer */
	struct ckpt_error why;
	struct ckpt_buf words;
};

/* Zeroed; allocates what must not be lacking later. -ENOMEM. */
int ckpt_ballot_init(struct ckpt_ballot *ballot, uint32_t rank, uint32_t world);
void ckpt_ballot_clear(struct ckpt_ballot *ballot);
/* When this rank gives up waiting for the others, if it begins now. */
uint64_t ckpt_ballot_deadline(const struct ckpt_ballot *ballot);
void ckpt_ballot_start(struct ckpt_ballot *ballot);
/*
 * How it has ended here. Once; but who has said that it went well may say later that it has failed, and is
 * believed if the outcome was not there yet. Harmless when it is decided.
 */
void ckpt_ballot_vote(struct ckpt_ballot *ballot, const struct ckpt_restore_record *vote);

#endif
