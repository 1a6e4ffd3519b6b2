/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a part of a restore has ended, for all ranks: well, once every one of them has said so, or with the failure that
 * was told first. One round of the ranks (ranks/round.h), whose values are records of the restore.
 */
#ifndef CKPT_ENGINE_RESTORE_VOTE_H
#define CKPT_ENGINE_RESTORE_VOTE_H

#include "engine/ranks/round.h"
#include "exchange/restore_messages.h"

struct ckpt_restore_vote {
	struct ckpt_round
		round; /* core, waiter and deadline_ns are set by the owner before it starts */

	/* Set by the owner before it starts. */
	uint32_t number; /* of the restore in this session */
	enum ckpt_restore_part part;

	struct ckpt_restore_record outcome; /* once the round is decided */
	struct ckpt_restore_record vote;    /* of this rank, once it has voted */
};

/* Zeroed; allocates what must not be lacking later. -ENOMEM. */
int ckpt_restore_vote_init(struct ckpt_restore_vote *vote, uint32_t rank, uint32_t world);
void ckpt_restore_vote_clear(struct ckpt_restore_vote *vote);
void ckpt_restore_vote_start(struct ckpt_restore_vote *vote);
/*
 * How it has ended here. Once; but a rank that has said that it went well may say later that it has failed, and is
 * believed if the outcome was not there yet. Harmless when it is decided.
 */
void ckpt_restore_vote_cast(
	struct ckpt_restore_vote *vote, const struct ckpt_restore_record *record);

#endif
